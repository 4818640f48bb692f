package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// etcdTimeout bounds one command to the driver.
const etcdTimeout = 90 * time.Second

// etcd is a cluster of the peer that NorthStar is measured beside, and the
// process that drives it: benchmarks/peers, which is a module of its own.
type etcd struct {
	cluster *proc.Cluster
	driver  *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// startEtcd starts three members at the timeouts of NorthStar's defaults, and a
// driver, and waits for a leader.
func (b *bench) startEtcd(ctx context.Context) (_ *etcd, err error) {
	e := &etcd{}
	if e.cluster, err = proc.Etcd(b.etcdBin, 3); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("etcd: %w\n%s", err, e.cluster.Logs())
			e.close()
		}
	}()
	if err := e.cluster.Start(); err != nil {
		return nil, err
	}
	e.driver = exec.CommandContext(ctx, b.etcdBin, "drive", "--endpoints", strings.Join(addresses(e.cluster), ","))
	e.driver.Stderr = os.Stderr
	e.driver.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if e.in, err = e.driver.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := e.driver.StdoutPipe()
	if err != nil {
		return nil, err
	}
	e.out = bufio.NewReader(out)
	if err := e.driver.Start(); err != nil {
		return nil, err
	}
	_, err = e.leader(ctx)
	return e, err
}

func addresses(c *proc.Cluster) (all []string) {
	for _, n := range c.Nodes {
		all = append(all, n.HTTP)
	}
	return all
}

func (e *etcd) close() {
	if e.driver != nil && e.driver.Process != nil {
		_ = e.in.Close()
		_ = e.driver.Process.Kill() // it has nothing that is worth a wait
		_ = e.driver.Wait()
	}
	e.cluster.Close()
}

// do has the driver carry out one command, and returns its answer's words.
func (e *etcd) do(ctx context.Context, command ...any) ([]string, error) {
	line := strings.TrimSuffix(fmt.Sprintln(command...), "\n")
	stop := context.AfterFunc(ctx, func() { _ = e.driver.Process.Kill() })
	defer stop()
	late := time.AfterFunc(etcdTimeout, func() { _ = e.driver.Process.Kill() })
	defer late.Stop()
	if _, err := fmt.Fprintln(e.in, line); err != nil {
		return nil, fmt.Errorf("etcd's driver: %w", err)
	}
	answer, err := e.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("etcd's driver, at %q: %w", line, err)
	}
	words := strings.Fields(answer)
	if len(words) == 0 || words[0] != "ok" {
		return nil, fmt.Errorf("etcd, %s: %s", line, strings.TrimSpace(answer))
	}
	return words[1:], nil
}

// took has the driver measure one time.
func (e *etcd) took(ctx context.Context, what string) (time.Duration, error) {
	words, err := e.do(ctx, what)
	if err != nil {
		return 0, err
	}
	ns, err := numbers(words, 1)
	if err != nil {
		return 0, err
	}
	return time.Duration(ns[0]), nil
}

func (e *etcd) leader(ctx context.Context) (*proc.Node, error) {
	words, err := e.do(ctx, "leader")
	if err != nil {
		return nil, err
	}
	for _, n := range e.cluster.Nodes {
		if len(words) == 1 && n.HTTP == words[0] {
			return n, nil
		}
	}
	return nil, fmt.Errorf("etcd's driver names %q as leader", words)
}

// renew renews leases one at a time.
func (e *etcd) renew(ctx context.Context, clients int, d time.Duration) (load.Result, error) {
	words, err := e.do(ctx, "renew", clients, d.Milliseconds())
	if err != nil {
		return load.Result{}, err
	}
	ns, err := numbers(words, 3)
	if err != nil {
		return load.Result{}, err
	}
	return load.Result{
		Clients: clients, Done: int(ns[0]), Elapsed: d, P50: time.Duration(ns[1]),
		P99: time.Duration(ns[2]),
	}, nil
}

// keep has leases kept, on few streams, or on a connection each; lost counts those
// that have ended.
func (e *etcd) keep(ctx context.Context, n int, ttl time.Duration, connections bool) (lost func() (int, error),
	err error,
) {
	command := "keep"
	if connections {
		command = "connect"
	}
	if _, err := e.do(ctx, command, n, ttl.Milliseconds()); err != nil {
		return nil, err
	}
	return func() (int, error) {
		words, err := e.do(ctx, "lost")
		if err != nil {
			return 0, err
		}
		ns, err := numbers(words, 1)
		if err != nil {
			return 0, err
		}
		return int(ns[0]), nil
	}, nil
}

func numbers(words []string, want int) (all []int64, err error) {
	for _, w := range words {
		n, e := strconv.ParseInt(w, 10, 64)
		all, err = append(all, n), errors.Join(err, e)
	}
	if err == nil && len(all) != want {
		err = fmt.Errorf("etcd's driver gave %d numbers, not %d", len(all), want)
	}
	return all, err
}
