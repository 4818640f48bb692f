package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// etcdTimeout bounds one command to the driver.
const etcdTimeout = 90 * time.Second

// etcd is a cluster of the peer that NorthStar is measured beside, and the
// process that drives it: benchmarks/etcd, which is a module of its own.
type etcd struct {
	cluster *proc.Cluster
	clients []string // its nodes' addresses for etcd clients, in their order
	driver  *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// startEtcd starts three members at the timeouts of NorthStar's defaults, and a driver, and waits for a leader.
func (b *bench) startEtcd(ctx context.Context) (*etcd, error) {
	c, err := b.start(proc.Etcd(b.etcdBin, 3))
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return b.startDriver(ctx, c, addresses(c))
}

// startEtcdAPI starts three nodes that serve the etcd API, and the driver of etcd for them.
func (b *bench) startEtcdAPI(ctx context.Context, extra ...string) (*etcd, error) {
	c, err := b.start(proc.EtcdAPI(b.northstar, 3, extra...))
	if err != nil {
		return nil, err
	}
	if _, err := c.Leader(ctx); err != nil {
		return nil, err
	}
	var clients []string
	for _, n := range c.Nodes {
		clients = append(clients, n.Etcd)
	}
	return b.startDriver(ctx, c, clients)
}

// startDriver starts a driver for a cluster with these addresses for clients, and waits for a leader.
func (b *bench) startDriver(
	ctx context.Context, c *proc.Cluster, clients []string, args ...string,
) (*etcd, error) {
	e, err := b.openDriver(ctx, c, clients, args...)
	if err != nil {
		return nil, err
	}
	if _, err = e.leader(ctx); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, c.Logs())
	}
	return e, nil
}

// openDriver starts a driver for a cluster that may not run yet.
func (b *bench) openDriver(
	ctx context.Context, c *proc.Cluster, clients []string, args ...string,
) (e *etcd, err error) {
	e = &etcd{cluster: c, clients: clients}
	args = append([]string{"drive", "--endpoints", strings.Join(clients, ",")}, args...)
	e.driver = exec.CommandContext(ctx, b.etcdBin, args...)
	if e.in, e.out, err = startPiped(e.driver); err != nil {
		return nil, err
	}
	b.add(func() error {
		_ = e.in.Close()
		_ = e.driver.Process.Kill() // it has nothing that is worth a wait
		_ = e.driver.Wait()
		return nil
	})
	return e, nil
}

// do has the driver carry out one command, and returns its answer's words.
func (e *etcd) do(ctx context.Context, command ...any) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = e.driver.Process.Kill() })()
	line := strings.TrimSuffix(fmt.Sprintln(command...), "\n")
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

// measure has the driver carry out a command that is answered with so many numbers.
func (e *etcd) measure(ctx context.Context, want int, command ...any) (all []int64, err error) {
	words, err := e.do(ctx, command...)
	if err == nil && len(words) != want {
		err = fmt.Errorf("etcd's driver gave %q, not %d numbers", words, want)
	}
	for _, w := range words {
		n, e := strconv.ParseInt(w, 10, 64)
		all, err = append(all, n), errors.Join(err, e)
	}
	return all, err
}

// took has the driver measure one time.
func (e *etcd) took(ctx context.Context, what string) (time.Duration, error) {
	ns, err := e.measure(ctx, 1, what)
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
	for i, n := range e.cluster.Nodes {
		if len(words) == 1 && e.clients[i] == words[0] {
			return n, nil
		}
	}
	return nil, fmt.Errorf("etcd's driver names %q as leader", words)
}

// renew renews leases one at a time.
func (e *etcd) renew(ctx context.Context, clients int, d time.Duration) (load.Result, error) {
	return e.result(ctx, d, "renew", clients, d.Milliseconds())
}

// result has the driver carry out a command that is answered with a count and two times.
func (e *etcd) result(ctx context.Context, d time.Duration, command ...any) (load.Result, error) {
	ns, err := e.measure(ctx, 3, command...)
	if err != nil {
		return load.Result{}, err
	}
	return load.Result{Done: int(ns[0]), Elapsed: d, P50: time.Duration(ns[1]), P99: time.Duration(ns[2])}, nil
}

// keep has leases kept, on few streams, or on a connection each; lost counts those that have ended.
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
		ns, err := e.measure(ctx, 1, "lost")
		if err != nil {
			return 0, err
		}
		return int(ns[0]), nil
	}, nil
}
