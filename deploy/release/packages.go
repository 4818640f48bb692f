package main

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const description = `Keeps exactly one leader among 3 or 5 nodes
NorthStar elects one leader with Raft, and a new one milliseconds after the
leader's process dies. It keeps a small replicated state, and elects one holder
for each role that programs compete for.`

//go:embed scripts
var scripts embed.FS

// sysusers makes the user of the unit, with a home that systemd makes as its StateDirectory.
const sysusers = "u northstar - \"NorthStar node\" /var/lib/northstar\n"

// packages writes the deb and the rpm of an architecture.
func (r *release) packages(arch string, programs, guides []file) (err error) {
	dir, err := os.MkdirTemp("", "northstar-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	installed, err := r.installed(programs, guides)
	if err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		info, err := r.packageInfo(filepath.Join(dir, format), format, arch, installed)
		if err != nil {
			return err
		}
		if err := r.writePackage(format, arch, info); err != nil {
			return fmt.Errorf("%s for %s: %w", format, arch, err)
		}
	}
	return nil
}

// installed are the files that a package installs.
func (r *release) installed(programs, guides []file) ([]file, error) {
	var all []file
	for _, p := range programs {
		all = append(all, file{"usr/bin/" + p.path, p.mode, p.data})
	}
	for _, g := range guides {
		if name, ok := strings.CutPrefix(g.path, "man/"); ok {
			page, err := compress(g.data)
			if err != nil {
				return nil, err
			}
			all = append(all, file{"usr/share/man/man" + name[len(name)-1:] + "/" + name + ".gz", 0o644, page})
			continue
		}
		all = append(all, file{completionPaths[g.path], 0o644, g.data})
	}
	for _, name := range documents {
		f, err := r.read(name, documentation+name)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	more, err := r.readAll(monitoring, documentation)
	if err != nil {
		return nil, err
	}
	all = append(all, more...)
	unit, err := r.read("deploy/systemd/northstar.service", "usr/lib/systemd/system/northstar.service")
	if err != nil {
		return nil, err
	}
	unit.data = bytes.ReplaceAll(unit.data, []byte("/usr/local/bin/"), []byte("/usr/bin/"))
	config, err := r.packagedConfig()
	if err != nil {
		return nil, err
	}
	all = append(all, unit, config,
		file{"etc/northstar", os.ModeDir | 0o750, nil},
		file{"usr/lib/sysusers.d/northstar.conf", 0o644, []byte(sysusers)})
	return all, nil
}

// documentation is the directory of a package's documents.
const documentation = "usr/share/doc/northstar/"

var completionPaths = map[string]string{
	"completions/bash": "usr/share/bash-completion/completions/northstarctl",
	"completions/zsh":  "usr/share/zsh/vendor-completions/_northstarctl",
	"completions/fish": "usr/share/fish/vendor_completions.d/northstarctl.fish",
}

// packagedConfig returns the example configuration with the data directory that the unit makes. The rest is left to
// its reader.
func (r *release) packagedConfig() (file, error) {
	f, err := r.read("deploy/northstar.toml", "etc/northstar/northstar.toml")
	if err != nil {
		return f, err
	}
	line := []byte("data-dir = \"/var/lib/northstar\"\n")
	if !bytes.Contains(f.data, append([]byte("#"), line...)) {
		return f, errors.New("deploy/northstar.toml has no example of data-dir")
	}
	f.data = bytes.Replace(f.data, append([]byte("#"), line...), line, 1)
	f.mode = 0o640
	return f, nil
}

// packageInfo lays files out below dir, from where nfpm reads them, and returns the description of the package.
func (r *release) packageInfo(dir, format, arch string, installed []file) (*nfpm.Info, error) {
	info := &nfpm.Info{
		Name: "northstar", Arch: arch, Platform: "linux", Version: r.version, Section: "database", Priority: "optional",
		Maintainer: "NorthStar <northstar@localhost>", Description: description, License: "MPL-2.0", MTime: r.time,
		DisableGlobbing: true,
	}
	info.RPM.BuildHost = "localhost" // not the name of this machine
	info.Deb.Compression = "gzip"
	info.RPM.Compression = "gzip:9"
	for _, f := range installed {
		to := f.path
		if format == "rpm" {
			to = strings.Replace(to, "zsh/vendor-completions", "zsh/site-functions", 1)
		}
		c := &files.Content{
			Destination: "/" + to,
			FileInfo:    &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode.Perm(), MTime: r.time},
		}
		if f.mode.IsDir() {
			c.Type = files.TypeDir
		} else {
			c.Source = filepath.Join(dir, f.path)
			if err := writeFile(c.Source, f.data); err != nil {
				return nil, err
			}
		}
		if strings.HasPrefix(f.path, "etc/") && !f.mode.IsDir() {
			c.Type = files.TypeConfigNoReplace
		}
		info.Contents = append(info.Contents, c)
	}
	for name, field := range map[string]*string{
		"postinstall.sh": &info.Scripts.PostInstall,
		"preremove.sh":   &info.Scripts.PreRemove,
		"postremove.sh":  &info.Scripts.PostRemove,
	} {
		text, err := fs.ReadFile(scripts, "scripts/"+name)
		if err != nil {
			return nil, err
		}
		*field = filepath.Join(dir, name)
		if err := writeFile(*field, text); err != nil {
			return nil, err
		}
	}
	return nfpm.WithDefaults(info), nfpm.PrepareForPackager(info, format)
}

// writePackage writes a package. Its name has Go's name of the architecture, as all files of the release.
func (r *release) writePackage(format, arch string, info *nfpm.Info) error {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := packager.Package(info, &b); err != nil {
		return err
	}
	return os.WriteFile(r.path("-linux-"+arch+"."+format), b.Bytes(), 0o644)
}

func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// compress returns data as gzip writes it, without a name or a time.
func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	err = z.Close()
	return b.Bytes(), err
}
