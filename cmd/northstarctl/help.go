package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// version is the version of this build. The linker sets it (-X main.version=v1.2.3).
var version = "devel"

type versionCmd struct{}

func (*versionCmd) Run(a *app) error {
	v := struct {
		Version string `json:"version"`
		Commit  string `json:"commit"`
		Date    string `json:"date"` // of the commit
		Go      string `json:"go"`
	}{version, "unknown", "unknown", runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				v.Commit = s.Value
			case s.Key == "vcs.time":
				v.Date = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				v.Commit += "+changes" // this setting follows the commit
			}
		}
	}
	return a.printResult(v, func() error {
		return a.printf("northstarctl %s\ncommit %s\ndate %s\n%s\n", v.Version, v.Commit, v.Date, v.Go)
	})
}

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command; default: the list of all."`
}

func (h *helpCmd) Run(a *app) error {
	if code := run(a.ctx, append(slices.Clone(h.Command), "--help"), a.stdin, a.stdout, io.Discard); code != exitDone {
		return usagef("there is no command %q; northstarctl help lists them", strings.Join(h.Command, " "))
	}
	return nil
}

// withHint adds where the commands are listed to the error of an unknown one that is like none.
func withHint(err error) error {
	text := err.Error()
	if strings.HasPrefix(text, "unexpected argument") && !strings.Contains(text, "did you mean") {
		return fmt.Errorf("%w; northstarctl help lists the commands", err)
	}
	return err
}

// addExamples adds the examples to the help of each command.
func addExamples(n *kong.Node, path string) {
	for _, child := range n.Children {
		at := strings.TrimSpace(path + " " + child.Name)
		if lines := examples[at]; len(lines) > 0 {
			text := "Examples:\n\n"
			for _, line := range lines {
				text += "    northstarctl " + line + "\n"
			}
			child.Detail = strings.TrimSpace(child.Detail + "\n\n" + text)
		}
		addExamples(child, at)
	}
}
