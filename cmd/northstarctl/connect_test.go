package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"northstar/chaos/ports"
	"northstar/chaos/testenv"
)

// refused returns n addresses where nothing listens.
func refused(t *testing.T, n int) string {
	t.Helper()
	addrs, err := ports.Reserve(n)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(addrs, ",")
}

// When every endpoint refuses connections, any command says so, and how to name another one. It takes milliseconds if
// the machine is idle.
func TestUnreachable_FailsFast(t *testing.T) {
	t.Parallel()
	one, three := refused(t, 1), refused(t, 3)
	for _, args := range []string{
		"status", "leader", "kv get a", "kv put a b", "kv ls", "kv watch", "events --follow", "transfer", "failover",
		"failover --dry-run", "members ls", "role campaign r", "status --watch", "why",
		"snapshot save /tmp/not-written", "status " + one, "splitbrain " + one,
	} {
		for _, endpoints := range []string{one, three} {
			begin := time.Now()
			var out, errs bytes.Buffer
			words := append(strings.Fields(args), "--endpoints", endpoints)
			code := run(t.Context(), words, strings.NewReader(""), &out, &errs)
			if took := time.Since(begin); code != exitUnreachable || took > testenv.Slowdown()*5*time.Second {
				t.Errorf("%s at %s: exit %d after %v", args, endpoints, code, took)
			}
			if text := errs.String(); !strings.Contains(text, "--endpoints") ||
				!strings.Contains(text, "connection refused") || !strings.HasSuffix(text, "\n") {
				t.Errorf("%s at %s: %s", args, endpoints, text)
			}
		}
	}
}

// One endpoint that answers is enough.
func TestUnreachable_OneOfThree(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	if code, _, stderr := ctl(t, nil, "", "--endpoints", refused(t, 2)+","+s.URL, "kv", "get",
		"app/config"); code != exitDone {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// An endpoint that takes no connection and refuses none is tried until the timeout, and is unreachable then.
func TestUnreachable_Silent(t *testing.T) {
	t.Parallel()
	r := &reachability{giveUp: func(err error) { t.Errorf("gave up: %v", err) }, endpoints: 1}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := r.dial(ctx, "tcp", refused(t, 1)); err == nil {
		t.Fatal("connected")
	}
	if err := r.unreachable(); err == nil {
		t.Error("it counts as reachable")
	}
}

// As soon as a connection was made, a refused one does not end the command: the node may be restarting.
func TestReachable_NeverGivesUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := &reachability{giveUp: func(err error) { t.Errorf("gave up: %v", err) }, endpoints: 1}
	conn, err := r.dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if _, err := r.dial(t.Context(), "tcp", refused(t, 1)); err == nil || r.unreachable() != nil {
		t.Errorf("%v, %v", err, r.unreachable())
	}
}

// A variable that is set to nothing counts as unset, as in CI systems and shell scripts.
func TestEmptyVariables(t *testing.T) {
	s := newServer(t)
	for _, name := range []string{"TOKEN", "TOKEN_FILE", "CA", "CERT", "KEY", "CONTEXT", "POSTGRES"} {
		t.Setenv("NORTHSTAR_"+name, "")
	}
	if code, _, stderr := ctl(t, s, "", "leader"); code != exitDone {
		t.Errorf("exit %d: %s", code, stderr)
	}
	t.Setenv("NORTHSTAR_ENDPOINTS", "")
	a := &app{}
	parser, err := kong.New(&a.commands, kong.TypeMapper(reflect.TypeOf(a.Transfer.To), kong.MapperFunc(decodeNodeID)))
	if err != nil {
		t.Fatal(err)
	}
	ignoreEmptyVariables(parser.Model.Node)
	if _, err := parser.Parse([]string{"leader"}); err != nil || fmt.Sprint(a.Endpoints) != "[127.0.0.1:7701]" {
		t.Errorf("%v, %v", a.Endpoints, err)
	}
}

func TestContexts(t *testing.T) {
	t.Parallel()
	s, other := newServer(t), newServer(t)
	dir := t.TempDir()
	file, tokenFile := filepath.Join(dir, "sub", "contexts.toml"), filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte("ns_x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		args string
		want int
		out  string // in the output
	}{
		{"context ls", exitDone, "CURRENT"},
		{"leader", exitUsage, "no such file"},
		{"context use prod", exitMissing, "there is no context"},
		{"context set prod", exitUsage, "--endpoints"},
		{"context set prod --endpoints ftp://x", exitUsage, "scheme"},
		{"context set prod --endpoints x:1 --token ns_x", exitUsage, "--token-file"},
		{"context set prod --endpoints " + s.URL + " --token-file " + tokenFile, exitDone, "is set"},
		{"context set lab --endpoints " + refused(t, 1), exitDone, "is set"},
		{"leader --context prod", exitDone, "n1"},
		{"leader --context lab", exitUnreachable, "refused"},
		{"leader --context none", exitUsage, "there is no context"},
		{"context use prod", exitDone, "is current"},
		{"leader", exitDone, "n1"},
		{"context ls", exitDone, "*        prod"},
		{"context list -o json", exitDone, `"token_file": "` + tokenFile},
		{"leader --endpoints " + refused(t, 1), exitUnreachable, "refused"}, // not those of the context
		{"context set prod --endpoints " + other.URL, exitDone, "is set"},
		{"context ls -o yaml", exitDone, "token_file: " + tokenFile},
		{"context rm lab", exitDone, "is removed"},
		{"context rm lab", exitMissing, "there is no context"},
		{"context use -", exitDone, "no context"},
	}
	for _, step := range steps {
		code, stdout, stderr := ctl(t, nil, "", append(strings.Fields(step.args), "--context-file", file)...)
		if code != step.want || !strings.Contains(stdout+stderr, step.out) {
			t.Errorf("%s: exit %d, want %d\n%s%s", step.args, code, step.want, stdout, stderr)
		}
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

// A context without endpoints, in a file that a person wrote, is named.
func TestContexts_NoEndpoints(t *testing.T) {
	t.Parallel()
	file, backupFile := filepath.Join(t.TempDir(), "contexts.toml"), filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(file, []byte("current = 'lab'\n[context.lab]\nca = '/ca'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(backupFile, backup(t), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := ctl(t, nil, "", "snapshot", "restore", backupFile, "--context-file", file)
	if code != exitUsage || !strings.Contains(stderr, "context lab has no endpoints") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

// The credentials of a context go to its own endpoints only: other endpoints are used without them, unless the command
// line asks for both. Those of the environment do not go to a context that the command line names.
func TestContexts_CredentialsStay(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "contexts.toml")
	text := "current = \"prod\"\n[context.prod]\nendpoints = [\"a:1\"]\ntoken-file = \"/t\"\nca = \"/ca\"\n" +
		"[context.lab]\nendpoints = [\"l:1\"]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all := func(context string) globals {
		return globals{UseContext: context, Token: "ns_y", TokenFile: "/ty", CA: "/cay", Cert: "/crt", Key: "/key"}
	}
	for name, tc := range map[string]struct {
		flags         globals
		onLine, given string // names of flags, separated by spaces
		want          string // endpoints, token, token file, CA, certificate and key, without those that are empty
	}{
		"current":          {globals{Endpoints: []string{"d:1"}}, "", "", "[a:1] /t /ca"},
		"other endpoints":  {globals{Endpoints: []string{"b:1"}}, "endpoints", "endpoints", "[b:1]"},
		"from environment": {globals{Endpoints: []string{"b:1"}}, "", "endpoints", "[b:1]"},
		"token of own":     {globals{Token: "ns_y"}, "", "token", "[a:1] ns_y /ca"},
		"named, token known": {
			globals{UseContext: "prod", Token: "ns_y"}, "context", "context token", "[a:1] /t /ca",
		},
		"named and endpoints": {
			globals{UseContext: "prod", Endpoints: []string{"b:1"}},
			"context endpoints", "context endpoints",
			"[b:1] /t /ca",
		},
		"named, endpoints of environment": {
			globals{UseContext: "prod", Endpoints: []string{"b:1"}}, "context", "context endpoints", "[a:1] /t /ca",
		},
		"named, without credentials": {
			all("lab"), "context", "context token token-file ca cert key", "[l:1]",
		},
		"named, own token file": {
			all("lab"), "context token-file", "context token token-file ca cert key", "[l:1] /ty",
		},
		"named, own credentials": {
			all("prod"), "context token ca cert key", "context token token-file ca cert key",
			"[a:1] ns_y /ty /cay /crt /key",
		},
		"named by environment": {
			all("lab"), "", "context token token-file ca cert key", "[l:1] ns_y /ty /cay /crt /key",
		},
	} {
		set := func(flags string) map[string]bool {
			m := map[string]bool{}
			for _, name := range strings.Fields(flags) {
				m[name] = true
			}
			return m
		}
		a := &app{onLine: set(tc.onLine), given: set(tc.given)}
		a.globals = tc.flags
		a.ContextFile = file
		err := a.applyContext()
		words := fmt.Sprintln(a.Endpoints, a.Token, a.TokenFile, a.CA, a.Cert, a.Key)
		if got := strings.Join(strings.Fields(words), " "); err != nil || got != tc.want {
			t.Errorf("%s: %q, want %q (%v)", name, got, tc.want, err)
		}
	}
}
