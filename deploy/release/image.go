package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageUser is the user and group of the container: the "nonroot" of distroless images.
const imageUser = 65532

// platformImage is the image of one architecture.
type platformImage struct {
	arch  string
	image v1.Image
}

// image returns the image of an architecture: the two programs, the user, and directories that it may write to. There
// is no shell.
func (r *release) image(arch string, programs []file) (v1.Image, error) {
	system := []file{
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/sbin/nologin\n" +
			"northstar:x:65532:65532:northstar:/var/lib/northstar:/sbin/nologin\n")},
		{"etc/group", 0o644, []byte("root:x:0:\nnorthstar:x:65532:\n")},
		{"tmp", os.ModeDir | os.ModeSticky | 0o777, nil},
	}
	for _, p := range programs {
		system = append(system, file{"usr/local/bin/" + p.path, 0o755, p.data})
	}
	owned := []file{{"var/lib/northstar", os.ModeDir | 0o700, nil}}
	var layers []v1.Layer
	for _, part := range []struct {
		files []file
		user  int
	}{{withDirectories(system), 0}, {owned, imageUser}} {
		var b bytes.Buffer
		if err := r.writeTar(&b, part.files, part.user); err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(b.Bytes())), nil
		}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, layers...)
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Created = "linux", arch, v1.Time{Time: r.time}
	for i := range cfg.History {
		cfg.History[i].Created = v1.Time{Time: r.time}
	}
	cfg.Config = v1.Config{
		User:         "65532:65532",
		Env:          []string{"PATH=/usr/local/bin", "NORTHSTAR_DATA_DIR=/var/lib/northstar"},
		Entrypoint:   []string{"/usr/local/bin/" + server},
		Cmd:          []string{"run"},
		WorkingDir:   "/var/lib/northstar",
		ExposedPorts: map[string]struct{}{"7700/tcp": {}, "7701/tcp": {}},
		Volumes:      map[string]struct{}{"/var/lib/northstar": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "NorthStar",
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.licenses": "MPL-2.0",
		},
	}
	return mutate.ConfigFile(img, cfg)
}

// writeImages writes, for each architecture, an archive that any runtime loads, and one OCI layout of all of them for
// a registry.
func (r *release) writeImages(images []platformImage) error {
	if len(images) == 0 {
		return nil
	}
	tag, err := name.NewTag("northstar:" + r.version)
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range images {
		if err := tarball.WriteToFile(r.path("-image-linux-"+p.arch+".tar"), tag, p.image); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: p.image,
			Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: "linux", Architecture: p.arch},
			},
		})
	}
	// One image in the layout, with the platforms below it: tools that copy to a registry take it without a choice.
	outer := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: index,
		Descriptor: v1.Descriptor{
			Annotations: map[string]string{"org.opencontainers.image.ref.name": r.version},
		},
	})
	dir, err := os.MkdirTemp("", "northstar-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, outer); err != nil {
		return err
	}
	files, err := readTree(dir)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := r.writeTar(&b, files, 0); err != nil {
		return err
	}
	return os.WriteFile(r.path("-image.oci.tar"), b.Bytes(), 0o644)
}

// readTree returns the files below dir, sorted.
func readTree(dir string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		files = append(files, file{filepath.ToSlash(rel), 0o644, data})
		return err
	})
	return withDirectories(files), err
}
