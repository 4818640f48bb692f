package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/proc"
	"northstar/chaos/testenv"
)

var binary string // northstar-node, built once

func TestMain(m *testing.M) {
	if os.Getenv(panicEnv) != "" {
		panicInGoroutine()
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "northstar-node-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if raceDetector {
		binary, err = proc.Build(dir, "northstar/cmd/northstar-node", "-race")
	} else {
		binary, err = proc.Program(dir, "northstar-node")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// soon is the timeout for events on a busy machine.
var soon = testenv.Slowdown() * 30 * time.Second

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(soon)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", soon, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// output collects what a process writes.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// invoke runs the binary until it exits.
func invoke(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(cleanEnv(os.Environ()), env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// server is a running process of the binary.
type server struct {
	t                *testing.T
	id, http         string
	args             []string
	cmd              *exec.Cmd
	stdout, stderr   *output
	ended            chan struct{}
	extraEnvironment []string
}

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(binary, s.args...)
	s.stdout, s.stderr, s.ended = &output{}, &output{}, make(chan struct{})
	s.cmd.Stdout, s.cmd.Stderr = s.stdout, s.stderr
	s.cmd.Env = append(cleanEnv(os.Environ()), s.extraEnvironment...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	cmd, ended := s.cmd, s.ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if s.t.Failed() {
			s.t.Logf("%s stderr:\n%s", s.id, tail(s.stderr.String()))
		}
	})
}

func tail(s string) string { return s[max(0, len(s)-6000):] }

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Fatal(err)
	}
}

// exit waits for the exit of the process and returns its code.
func (s *server) exit() int {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(soon):
		s.t.Fatalf("%s has not ended within %v", s.id, soon)
	}
	return s.cmd.ProcessState.ExitCode()
}

var httpClient = &http.Client{Timeout: 5 * time.Second}

func get(url string, into any) int {
	resp, err := httpClient.Get(url)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if into != nil {
		_ = json.NewDecoder(resp.Body).Decode(into)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func put(t *testing.T, node *server, key, value string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+node.http+"/v1/kv/"+key,
		strings.NewReader(value))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func read(node *server, key string) string {
	resp, err := httpClient.Get("http://" + node.http + "/v1/kv/" + key)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return strconv.Itoa(resp.StatusCode) + " " + string(body)
}
