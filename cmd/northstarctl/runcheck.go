package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"northstar/client"
	"northstar/client/rolemetrics"
)

// monitorFlags are the flags of run for its health check and its metrics.
type monitorFlags struct {
	Check         string        `placeholder:"CMD" help:"Shell command that succeeds while this machine can run CMD. If it fails, run stops CMD, releases the role, and campaigns again when it succeeds."`
	CheckInterval time.Duration `default:"5s" help:"Time between two checks."`
	CheckTimeout  time.Duration `default:"2s" help:"Time after which a check has failed."`
	CheckFailures int           `default:"3" help:"Failed checks in a row until the role is released."`
	MetricsAddr   string        `placeholder:"HOST:PORT" help:"Serve Prometheus metrics of the role at /metrics."`
}

func (f *monitorFlags) check() error {
	switch {
	case f.CheckInterval <= 0, f.CheckTimeout <= 0:
		return usagef("--check-interval, --check-timeout: must be more than 0 (got %v, %v)", f.CheckInterval,
			f.CheckTimeout)
	case f.CheckFailures < 1:
		return usagef("--check-failures: must be at least 1 (got %d)", f.CheckFailures)
	}
	return nil
}

// monitor adds the health check to an elector, and serves its metrics until the returned function is called.
func (r *runCmd) monitor(a *app, e client.Elector, check *checkCommand) (*client.MonitoredElector, func(), error) {
	cfg := client.ElectorConfig{
		Role: r.Role, CheckInterval: r.CheckInterval, CheckTimeout: r.CheckTimeout, CheckFailures: r.CheckFailures,
	}
	var m *client.MonitoredElector
	if r.Check != "" {
		cfg.Healthy = func(ctx context.Context) error {
			err := check.run(ctx, a, r.Check, checkEnviron(r.Role, m.Stats().Token))
			ended := errors.Is(err, errRunEnds) || errors.Is(ctx.Err(), context.Canceled) // no verdict
			if err != nil && !ended {
				fmt.Fprintf(a.stderr, "northstarctl: check of role %s failed: %v\n", r.Role, err)
			}
			return err
		}
	}
	m, err := client.NewElector(e, cfg)
	if err != nil {
		return nil, nil, &usageError{err}
	}
	if r.MetricsAddr == "" {
		return m, func() {}, nil
	}
	stop, err := serveMetrics(r.MetricsAddr, rolemetrics.New(m))
	if err != nil {
		return nil, nil, fmt.Errorf("--metrics-addr: %w", err)
	}
	return m, stop, nil
}

// serveMetrics serves a collector at /metrics until stop is called.
func serveMetrics(addr string, c prometheus.Collector) (stop func(), err error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	server := &http.Server{
		Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // it returns when stop closes the server
	}()
	return func() { _ = server.Close(); <-served }, nil
}

// checkEnviron returns the environment of a check. It has the fencing token only while this process holds the role:
// a check of CMD itself can succeed without it.
func checkEnviron(role string, token uint64) []string {
	inherited := slices.DeleteFunc(commandEnviron(os.Environ()), func(v string) bool { // of an outer run
		return strings.HasPrefix(v, "NORTHSTAR_ROLE=") || strings.HasPrefix(v, "NORTHSTAR_FENCING_TOKEN=")
	})
	env := append(inherited, "NORTHSTAR_ROLE="+role)
	if token != 0 {
		env = append(env, "NORTHSTAR_FENCING_TOKEN="+strconv.FormatUint(token, 10))
	}
	return env
}

// errRunEnds is the result of a check that would begin after run has waited for its checks.
var errRunEnds = errors.New("run ends")

// checkCommand runs the health check as a child of run, at most one at a time, and none after awaitEnd.
type checkCommand struct {
	mu      sync.Mutex // guards closed: nothing is added to running once it is awaited
	closed  bool
	running sync.WaitGroup
}

// begin counts a check as running. It reports false after awaitEnd.
func (c *checkCommand) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// awaitEnd waits until no check is running. Their contexts have ended.
func (c *checkCommand) awaitEnd() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	ended := make(chan struct{})
	go func() { defer close(ended); c.running.Wait() }()
	select {
	case <-ended:
	case <-time.After(releaseTimeout): // a broken disk: the process exits without it
	}
}

// run runs a shell command in its own process group, and kills the group when it has exited or ctx ends.
func (c *checkCommand) run(ctx context.Context, a *app, command string, env []string) error {
	if !c.begin() {
		return errRunEnds
	}
	defer c.running.Done()
	runtime.LockOSThread() // the kernel kills the check when the thread that started it exits
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Env, cmd.Stderr, cmd.SysProcAttr = env, a.stderr, commandAttributes()
	cmd.Cancel = func() error { signalGroup(cmd.Process.Pid, syscall.SIGKILL); return nil }
	err := a.own.start(cmd)
	if err != nil {
		return err
	}
	defer a.own.forget(cmd)
	waitChildExit(cmd.Process.Pid)
	signalGroup(cmd.Process.Pid, syscall.SIGKILL) // processes left in the group, while its ID is reserved
	err = cmd.Wait()
	reapGroup(cmd.Process.Pid)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Errorf("exit code %d", exitStatus(exit.ProcessState))
	}
	return err
}
