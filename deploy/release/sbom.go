package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// sbom is what the programs are made of, as they say themselves: the modules that the Go linker records.
type sbom struct {
	goVersion string
	modules   map[string]*debug.Module // by path and version
}

// add adds what is in programs.
func (s *sbom) add(programs []file) error {
	if s.modules == nil {
		s.modules = map[string]*debug.Module{}
	}
	for _, p := range programs {
		info, err := buildinfo.Read(bytes.NewReader(p.data))
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		s.goVersion = info.GoVersion
		for _, m := range info.Deps {
			if m.Replace != nil {
				return fmt.Errorf("%s: %s is replaced: a release has modules as they were published", p.path, m.Path)
			}
			s.modules[m.Path+"@"+m.Version] = m
		}
	}
	return nil
}

// writeSBOM writes the software bill of materials in CycloneDX's JSON.
func (r *release) writeSBOM(s sbom) error {
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: r.time.Format(time.RFC3339),
		Component: &cyclonedx.Component{
			BOMRef: "northstar", Type: cyclonedx.ComponentTypeApplication, Name: "northstar", Version: r.version,
			Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "MPL-2.0"}}},
			Properties: &[]cyclonedx.Property{
				{Name: "commit", Value: r.commit},
			},
		},
	}
	components := []cyclonedx.Component{{
		BOMRef: "std", Type: cyclonedx.ComponentTypeLibrary, Name: "std",
		Version: strings.TrimPrefix(s.goVersion, "go"), PackageURL: "pkg:golang/std@" + strings.TrimPrefix(s.goVersion, "go"),
	}}
	for _, key := range slices.Sorted(maps.Keys(s.modules)) {
		m := s.modules[key]
		hash, err := moduleHash(m)
		if err != nil {
			return err
		}
		purl := "pkg:golang/" + m.Path + "@" + m.Version
		components = append(components, cyclonedx.Component{
			BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl,
			Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hash}},
		})
	}
	bom.Components = &components
	refs := make([]string, 0, len(components))
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: "northstar", Dependencies: &refs}}
	var b bytes.Buffer
	e := cyclonedx.NewBOMEncoder(&b, cyclonedx.BOMFileFormatJSON)
	e.SetPretty(true)
	if err := e.Encode(bom); err != nil {
		return err
	}
	return os.WriteFile(r.path(".cdx.json"), b.Bytes(), 0o644)
}

// moduleHash returns the hash of a module in go.sum, in hexadecimal.
func moduleHash(m *debug.Module) (string, error) {
	sum, ok := strings.CutPrefix(m.Sum, "h1:")
	raw, err := base64.StdEncoding.DecodeString(sum)
	if !ok || err != nil {
		return "", fmt.Errorf("module %s has the checksum %q", m.Path, m.Sum)
	}
	return hex.EncodeToString(raw), nil
}
