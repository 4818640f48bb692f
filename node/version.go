package node

import (
	"runtime/debug"
)

// Version is the version of this build, set by the linker (-X northstar/node.Version=v1.2.3).
var Version = "devel"

// Build describes a binary.
type Build struct {
	Version string
	Commit  string // "" when built outside of a repository; ends in "+changes" if the tree had changes
	Date    string // of the commit, RFC 3339; "" when built outside of a repository
	Go      string
	Raft    string // version of hashicorp/raft
}

// ReadBuild returns what the linker put into this binary.
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
		case s.Key == "vcs.time":
			b.Date = s.Value
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
