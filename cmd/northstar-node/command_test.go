package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	code, out, _ := invoke(t, nil, "version")
	for _, want := range []string{"northstar-node ", "commit ", "date ", "go1.", "hashicorp/raft v1.8.0"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"--help"}, exitOK, ""},
		{[]string{"run", "--help"}, exitOK, ""},
		{nil, exitUsage, "northstar-node: expected one of"},
		{[]string{"nope"}, exitUsage, "northstar-node: unexpected argument nope"},
		{[]string{"run", "--nope"}, exitUsage, "northstar-node: unknown flag --nope"},
		{[]string{"run", "--priority", "x"}, exitUsage, "northstar-node: priority = x: expected a valid"},
		{
			[]string{
				"run", "--id", "n1", "--priority", "999",
			},
			exitUsage,
			"northstar-node: data-dir: required\nnorthstar-node: priority = 999: must be 0 to 255 (--priority)\n",
		},
		{[]string{"recover"}, exitUsage, "missing flags: --data-dir"},
		{[]string{"recover", "--data-dir", "/nowhere"}, exitFailed, "/nowhere holds no node's data"},
		{[]string{"dev", "--nodes", "0"}, exitUsage, "northstar-node: --nodes: must be 1 to 9 (got 0)"},
		{[]string{"dev", "--base-port", "65535"}, exitUsage, "need the ports up to base + 5"},
		{[]string{"dev", "--base-port", "0", "--data-dir", "x"}, exitUsage, "cannot be combined"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, _, stderr := invoke(t, nil, c.args...)
			if code != c.code || !strings.Contains(stderr, c.stderr) || strings.Contains(stderr, "goroutine") {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, c.code, stderr, c.stderr)
			}
		})
	}
}

func TestCheckConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "northstar.toml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("id = 'n1'\ndata-dir = '/data'\n")
	if code, out, _ := invoke(t, nil, "check-config", "--config", file); code != exitOK || out != "configuration OK\n" {
		t.Errorf("good: exit code %d, %q", code, out)
	}
	write("id = 'n1'\ndata-dir = '/data'\n[auth]\ntokens = '/nowhere'\n")
	if code, out, _ := invoke(t, nil, "check-config", "--config", file); code != exitUsage ||
		!strings.Contains(out, "auth.tokens") {
		t.Errorf("a missing file: exit code %d, %q", code, out)
	}
	write("id = 'N 1'\npriority = 300\nprioritty = 3\n[election]\ntimeout-max = 'soon'\n[snapshot]\ntrailing-logs = 10\n")
	code, out, stderr := invoke(t, []string{"NORTHSTAR_ELIGIBLE=perhaps"}, "check-config", "--config", file)
	for _, want := range []string{
		"prioritty: unknown key (northstar.toml line 3)",
		`election.timeout-max = "soon": expected duration`, "(northstar.toml line 5)",
		"eligible = perhaps: bool value must be", "(NORTHSTAR_ELIGIBLE)",
		`id = "N 1": must be 1 to 63`,
		"data-dir: required",
		"priority = 300: must be 0 to 255 (northstar.toml line 2)",
		"snapshot.trailing-logs = 10: must be at least 1000 (northstar.toml line 7)",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if code != exitUsage || !strings.Contains(stderr, "northstar-node: configuration is invalid") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	if t.Failed() {
		t.Log(out)
	}
	// a flag that cannot be read does not hide the other problems
	_, out, _ = invoke(t, nil, "check-config", "--config", file, "--priority=x")
	for _, want := range []string{"priority = x: expected", "(--priority)", "prioritty: unknown", "data-dir: "} {
		if !strings.Contains(out, want) {
			t.Errorf("with a bad flag: no %q in %q", want, out)
		}
	}
	write("id = [\n")
	if code, out, _ := invoke(t, nil, "check-config", "--config", file); code != exitUsage ||
		!strings.Contains(out, "line") || strings.Contains(out, "data-dir") {
		t.Errorf("no TOML: exit code %d, %q", code, out)
	}
}

func TestDev_ReportsPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	code, _, stderr := invoke(t, nil, "dev", "--nodes=1", "--base-port", port)
	if code != exitFailed || !strings.Contains(stderr, "port "+port+", for the raft address of n1, cannot be used") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}
