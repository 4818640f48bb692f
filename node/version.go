package node

import (
	"runtime/debug"
)

// Version is what this build calls itself; the linker sets it
// (-X northstar/node.Version=v1.2.3).
var Version = "devel"

// Build is what a binary knows of itself.
type Build struct {
	Version string
	Commit  string // "" when built outside of a repository; ends in "+changes" when built with any
	Go      string
	Raft    string // version of hashicorp/raft
}

// ReadBuild reads what the linker has put into this binary.
func ReadBuild() Build {
	b := Build{Version: Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Go = info.GoVersion
	changes := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changes = "+changes"
		}
	}
	if b.Commit != "" {
		b.Commit += changes
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/hashicorp/raft" {
			b.Raft = m.Version
		}
	}
	return b
}
