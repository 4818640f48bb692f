package main

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// TestCommandGetsNoSecrets: the command of run may be less trusted than run itself.
func TestCommandGetsNoSecrets(t *testing.T) {
	t.Parallel()
	all := []string{"PATH=/bin", "NORTHSTAR_TOKEN=ns_x", "NORTHSTAR_POSTGRES=postgres://x", "NORTHSTAR_TOKEN_FILE=/t"}
	want := []string{"PATH=/bin", "NORTHSTAR_TOKEN_FILE=/t"}
	if got := commandEnviron(all); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("ns_file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		globals globals
		want    string
	}{
		{globals{}, ""},
		{globals{TokenFile: file}, "ns_file"},
		{globals{TokenFile: file, Token: "ns_flag"}, "ns_flag"},
	} {
		if got, err := c.globals.bearer(); err != nil || got != c.want {
			t.Errorf("%+v: %q, %v", c.globals, got, err)
		}
	}
	if _, err := (&globals{TokenFile: file + ".not"}).bearer(); err == nil {
		t.Error("no error for a missing file")
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte("ns_pipe\n"), 0o600) }()
	g := globals{TokenFile: pipe}
	for range 2 { // each connection of a command asks for it
		if got, err := g.bearer(); err != nil || got != "ns_pipe" {
			t.Errorf("from a pipe: %q, %v", got, err)
		}
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}
