package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// chartVersions are the lines of Chart.yaml that a release replaces.
var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// chart writes the Helm chart, in the form of helm package, with the release's version as its own and its image's.
func (r *release) chart() error {
	files, err := readTree(filepath.Join(r.root, "deploy/helm/northstar"))
	if err != nil {
		return err
	}
	for i, f := range files {
		files[i].path = "northstar/" + f.path
		if f.path != "Chart.yaml" {
			continue
		}
		replaced := 0
		files[i].data = chartVersions.ReplaceAllFunc(f.data, func(line []byte) []byte {
			replaced++
			if bytes.HasPrefix(line, []byte("version")) {
				return []byte("version: " + strings.TrimPrefix(r.version, "v"))
			}
			return []byte("appVersion: " + r.version)
		})
		if replaced != 2 {
			return fmt.Errorf("the file Chart.yaml has %d of the lines version and appVersion", replaced)
		}
	}
	return r.writeTarGz("-chart.tgz", files)
}
