package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// documents of the repository that every archive and package has.
var documents = []string{"LICENSE", "README.md", "CHANGELOG.md"}

// examples are files of deploy/ for nodes, with their places in an archive.
var examples = map[string]string{
	"deploy/northstar.toml":            "northstar.toml",
	"deploy/systemd/northstar.service": "northstar.service",
}

// monitoring are files of deploy/ for monitoring, with their places in an archive, and below the documentation of a
// package.
var monitoring = map[string]string{
	"deploy/prometheus/prometheus.yml":   "prometheus/prometheus.yml",
	"deploy/prometheus/alerts.yml":       "prometheus/alerts.yml",
	"deploy/prometheus/alertmanager.yml": "prometheus/alertmanager.yml",
	"deploy/grafana/northstar.json":      "grafana/northstar.json",
}

// archive writes the tar.gz of a platform: one directory with the programs, and what belongs to them.
func (r *release) archive(system, arch string, programs, guides []file) error {
	files := append([]file{}, programs...)
	for _, g := range guides {
		if system == "linux" || !strings.Contains(g.path, server) {
			files = append(files, g)
		}
	}
	for _, d := range documents {
		f, err := r.read(d, d)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	for _, copied := range []map[string]string{examples, monitoring} {
		if system != "linux" {
			break
		}
		more, err := r.readAll(copied, "")
		if err != nil {
			return err
		}
		files = append(files, more...)
	}
	suffix := "-" + system + "-" + arch
	for i := range files {
		files[i].path = r.name(suffix) + "/" + files[i].path
	}
	return r.writeTarGz(suffix+".tar.gz", files)
}

// writeTarGz writes a compressed archive of files with their directories.
func (r *release) writeTarGz(suffix string, files []file) error {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := r.writeTar(z, withDirectories(files), 0); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(r.path(suffix), b.Bytes(), 0o644)
}

// read reads a file of the repository.
func (r *release) read(from, to string) (file, error) {
	data, err := os.ReadFile(filepath.Join(r.root, from))
	return file{to, 0o644, data}, err
}

// readAll reads files of the repository whose places are below dir, sorted by name.
func (r *release) readAll(places map[string]string, dir string) ([]file, error) {
	var all []file
	for _, from := range slices.Sorted(maps.Keys(places)) {
		f, err := r.read(from, dir+places[from])
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// withDirectories returns files with the directories that they are in, sorted by path.
func withDirectories(files []file) []file {
	seen := map[string]bool{}
	all := append([]file{}, files...)
	for _, f := range files {
		seen[f.path] = true
	}
	for _, f := range files {
		for dir := filepath.Dir(f.path); dir != "." && !seen[dir]; dir = filepath.Dir(dir) {
			seen[dir] = true
			all = append(all, file{path: dir, mode: os.ModeDir | 0o755})
		}
	}
	sortFiles(all)
	return all
}

// writeTar writes files that belong to the user id, with the time of the commit.
func (r *release) writeTar(w io.Writer, files []file, id int) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{
			Name: f.path, Mode: int64(f.mode.Perm()), Size: int64(len(f.data)), ModTime: r.time,
			Typeflag: tar.TypeReg, Uid: id, Gid: id, Format: tar.FormatUSTAR,
		}
		if f.mode.IsDir() {
			h.Name, h.Typeflag = f.path+"/", tar.TypeDir
		}
		if f.mode&os.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return t.Close()
}
