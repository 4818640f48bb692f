package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/ports"
	"northstar/client"
	"northstar/client/rolemetrics"
)

// A check below another run does not see that one's role and token.
func TestCheckEnviron(t *testing.T) {
	t.Setenv("NORTHSTAR_ROLE", "outer")
	t.Setenv("NORTHSTAR_FENCING_TOKEN", "7")
	for token, want := range map[uint64][]string{
		0: {"NORTHSTAR_ROLE=r"}, 9: {"NORTHSTAR_ROLE=r", "NORTHSTAR_FENCING_TOKEN=9"},
	} {
		var got []string
		for _, v := range checkEnviron("r", token) {
			if strings.HasPrefix(v, "NORTHSTAR_ROLE=") || strings.HasPrefix(v, "NORTHSTAR_FENCING_TOKEN=") {
				got = append(got, v)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("token %d: %q, want %q", token, got, want)
		}
	}
}

// A holder whose check fails stops CMD, releases the role, and campaigns again when the check succeeds.
func testRunCheck(t *testing.T, endpoint string, c *client.Client) {
	addrs, err := ports.Reserve(1)
	if err != nil {
		t.Fatal(err)
	}
	healthy := filepath.Join(t.TempDir(), "healthy")
	if err := os.WriteFile(healthy, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	seen := filepath.Join(t.TempDir(), "seen")
	r := startRun(t, endpoint, `echo token $NORTHSTAR_FENCING_TOKEN; `+willing, "--role", "checked", "--ttl", "5m",
		"--check", fmt.Sprintf(`echo "$NORTHSTAR_ROLE/$NORTHSTAR_FENCING_TOKEN/$NORTHSTAR_TOKEN" > %s; test -e %s`, seen, healthy),
		"--check-interval", "20ms", "--check-timeout", "10s", "--check-failures", "2", "--metrics-addr", addrs[0])
	first := r.pid("token")
	pid := r.pid("pid")
	child := r.pid("child")
	awaitMetrics(t, addrs[0], fmt.Sprintf("northstar_elector_token{role=\"checked\"} %v", float64(first)),
		`northstar_elector_is_leader{role="checked"} 1`, `northstar_elector_check_passed{role="checked"} 1`)
	if err := eventually(func() error { // the file is empty while a check begins
		text, err := os.ReadFile(seen)
		if err == nil && strings.TrimSpace(string(text)) != fmt.Sprintf("checked/%d/", first) {
			err = fmt.Errorf("the environment of the check: %q", text)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := os.Remove(healthy); err != nil {
		t.Fatal(err)
	}
	r.line("TERM")
	vacant(t, c, "checked", "session_ended")
	if alive(pid) || alive(child) {
		t.Error("the role is released while CMD runs")
	}
	metrics := awaitMetrics(t, addrs[0], `northstar_elector_is_leader{role="checked"} 0`,
		`northstar_elector_losses_total{cause="unhealthy",role="checked"} 1`,
		`northstar_elector_check_passed{role="checked"} 0`)
	for _, name := range rolemetrics.Names() {
		if !strings.Contains(metrics, "# HELP "+name+" ") && name != "northstar_elector_renewal_age_seconds" {
			t.Errorf("no metric %s:\n%s", name, metrics)
		}
	}
	if err := os.WriteFile(healthy, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if second := r.pid("token"); second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	r.line("pid")
	r.line("child")
	r.signal(syscall.SIGTERM)
	r.line("TERM")
	r.exit(9)
}

// A waiting process serves its metrics, and its check does not run. A check that is running survives the end of CMD.
func testRunCheckBesideRestarts(t *testing.T, endpoint string, c *client.Client) {
	dir := t.TempDir()
	r := startRun(t, endpoint, fmt.Sprintf(`echo ran; until [ -e %s/go ]; do sleep 0.01; done; [ -e %[1]s/ran ] && exit 0; : > %[1]s/ran; exit 4`, dir),
		"--role", "survives", "--restart", "on-failure", "--check-interval", "1ms", "--check-timeout", "1m",
		"--check-failures", "1",
		"--check", fmt.Sprintf(`: > %s/go; until [ -e %[1]s/ran ]; do sleep 0.01; done; sleep 0.2 & wait`, dir))
	r.line("ran")
	r.line("ran") // a killed check would have ended the tenure
	r.exit(exitDone)
	if text := r.stderr.String(); strings.Contains(text, "check of role") {
		t.Errorf("the check that run has cancelled is reported as failed: %s", text)
	}
	if h, err := c.RoleHistory(t.Context(), "survives"); err != nil || len(h.Items) != 1 {
		t.Errorf("%+v, %v", h, err)
	}
}

// awaitMetrics returns the metrics as soon as they have these lines.
func awaitMetrics(t *testing.T, addr string, want ...string) (text string) {
	t.Helper()
	h := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if err := eventually(func() error {
		res, err := h.Get("http://" + addr + "/metrics")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		text = string(body)
		for _, line := range want {
			if !strings.Contains(text, line+"\n") {
				return fmt.Errorf("no line %q in\n%s (%v)", line, text, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return text
}

// A check that hangs is killed with all that it has started.
func TestCheckCommand_KillsItsGroup(t *testing.T) {
	t.Parallel()
	started := filepath.Join(t.TempDir(), "started")
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	done := make(chan error, 1)
	var check checkCommand
	a := &app{stderr: io.Discard}
	go func() {
		done <- check.run(ctx, a, fmt.Sprintf(`sleep 1000 & echo $! > %s.new; mv %[1]s.new %[1]s; wait`, started), nil)
	}()
	var pid int
	if err := eventually(func() error {
		text, err := os.ReadFile(started)
		if err == nil {
			_, err = fmt.Sscan(string(text), &pid)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("a killed check succeeds")
		}
	case <-time.After(testTimeout):
		t.Fatal("the check does not end")
	}
	awaitExit(t, pid)
	for command, want := range map[string]string{
		"true": "<nil>", "exit 3": "exit code 3", "kill -9 $$": "exit code 137",
	} {
		if err := check.run(t.Context(), a, command, nil); fmt.Sprint(err) != want {
			t.Errorf("%s: %v, want %s", command, err, want)
		}
	}
}

// A goroutine may be about to start a check when run has ended.
func TestCheckCommand_NoneAfterTheEnd(t *testing.T) {
	t.Parallel()
	var check checkCommand
	check.awaitEnd()
	ran := filepath.Join(t.TempDir(), "ran")
	if err := check.run(t.Context(), &app{stderr: io.Discard}, ": > "+ran, nil); err == nil {
		t.Error("a check ran after the end")
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("its command was started")
	}
}
