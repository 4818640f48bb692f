package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is what this build calls itself; the linker sets it
// (-X main.version=v1.2.3).
var version = "devel"

type versionCmd struct{}

func (*versionCmd) Run(a *app) error {
	v := struct {
		Version string `json:"version"`
		Commit  string `json:"commit"`
		Go      string `json:"go"`
	}{version, "unknown", runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	return a.printResult(v, func() error {
		_, err := fmt.Fprintf(a.stdout, "northstarctl %s\ncommit %s\n%s\n", v.Version, v.Commit, v.Go)
		return err
	})
}
