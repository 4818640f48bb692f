package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// A flag with an empty value, as that of a variable that a script has not set, is an error. Otherwise a write would
// lose its condition, or a selection become that of everything. Only texts, and a zone that is cleared, may be empty.
func TestEmptyValues_Refused(t *testing.T) {
	t.Parallel()
	all := leaves(newParser(t).Model.Node, "")
	all["leader"] = &kong.Node{Flags: newParser(t).Model.Flags} // those of every command
	var allowed []string
	checked := 0
	for path, cmd := range all {
		for _, f := range cmd.Flags {
			if f.IsBool() {
				continue
			}
			checked++
			s := newServer(t)
			args := append(strings.Fields(path), "--"+f.Name, "")
			code, _, stderr := ctl(t, s, "", args...)
			switch refusal := "northstarctl: --" + f.Name + ": must not be empty\n"; {
			case f.Tag.Has("empty") && stderr != refusal:
				if !slices.Contains(allowed, f.Name) {
					allowed = append(allowed, f.Name)
				}
			case code != exitUsage || stderr != refusal || len(s.requests) > 0:
				t.Errorf("%q: exit %d, requests %q: %s", args, code, s.requests, stderr)
			}
		}
	}
	slices.Sort(allowed)
	if want := []string{"reason", "value", "zone"}; !slices.Equal(allowed, want) || checked < 60 {
		t.Errorf("%d flags: %q may be empty, want %q", checked, allowed, want)
	}
}

// An empty value is refused in each form, also before another value of the flag. A reason and a zone may be empty.
func TestEmptyValues_Forms(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string // the body of the request; none: refused
	}{
		{[]string{"kv", "put", "app/config", "v", "--fence="}, ""},
		{[]string{"kv", "put", "app/config", "v", "--fence", "", "--fence", "r=1"}, ""},
		{[]string{"sessions", "end", "--identity", "", "--prefix", "w-", "--yes"}, ""},
		{[]string{"leader", "-o", ""}, ""},
		{[]string{"members", "set", "n4", "--zone", "", "--reason="}, `{"zone":""}`},
	} {
		s := newServer(t)
		code, _, stderr := ctl(t, s, "", append(tc.args, "--timeout", "1m")...)
		if got := strings.Join(s.bodies, ""); got != tc.want || (code == exitUsage) != (tc.want == "") {
			t.Errorf("%q: sent %q, want %q, exit %d: %s", tc.args, got, tc.want, code, stderr)
		}
	}
}
