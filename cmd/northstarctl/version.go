package main

import (
	"runtime"
	"runtime/debug"
)

// version is the version of this build. The linker sets it (-X main.version=v1.2.3).
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
		return a.printf("northstarctl %s\ncommit %s\n%s\n", v.Version, v.Commit, v.Go)
	})
}
