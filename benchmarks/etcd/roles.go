package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// smallestTTL is what a lease is granted at the least: etcd counts whole seconds.
const smallestTTL = 1

const roundLimit = 30 * time.Second

// roles are two clients that campaign for one election. Each has a session of its own.
type roles struct {
	d             *driver
	first, second *concurrency.Session
	n             int // of elections so far, for names
}

func (d *driver) openRoles() error {
	if d.roles != nil {
		return nil
	}
	r := &roles{d: d}
	for _, s := range []**concurrency.Session{&r.first, &r.second} {
		c, err := d.dial()
		if err != nil {
			return err
		}
		if *s, err = concurrency.NewSession(c, concurrency.WithTTL(10)); err != nil {
			return err
		}
		d.endings = append(d.endings, func() { _ = (*s).Close() })
	}
	d.roles = r
	return nil
}

// round measures one thing: how long a client takes to be elected when no other client campaigns, or from an end of a
// tenure until the next one in the queue knows that it is elected.
func (r *roles) round(ctx context.Context, measure string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	r.n++
	name := fmt.Sprintf("role-%d-%d", os.Getpid(), r.n)
	if measure == "killed" {
		return r.killed(ctx, name)
	}
	e := concurrency.NewElection(r.first, name)
	began := time.Now()
	if err := e.Campaign(ctx, "value"); err != nil {
		return 0, err
	}
	if measure == "campaign" {
		took := time.Since(began)
		return took, e.Resign(ctx)
	}
	return r.succeeds(ctx, name, 0, func() error { return e.Resign(ctx) })
}

// killed has another process hold the election, and kills that.
func (r *roles) killed(ctx context.Context, name string) (time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, "hold", "--endpoints", strings.Join(r.d.endpoints, ","), "--role", name,
		fmt.Sprintf("--attach=%v", r.d.attach))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe() // without it the holder would end by itself
	if err != nil {
		return 0, err
	}
	defer in.Close()
	said, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || line != "elected\n" {
		return 0, fmt.Errorf("the holder said %q: %w", line, err)
	}
	// Not in step with its renewals, which come every third of its TTL.
	return r.succeeds(ctx, name, rand.N(smallestTTL*time.Second/3), cmd.Process.Kill)
}

// succeeds is how long it takes from the holder's end, which comes a pause after the second client is in the
// queue, until that one knows that it is elected.
func (r *roles) succeeds(ctx context.Context, name string, pause time.Duration, end func() error) (time.Duration,
	error,
) {
	next := concurrency.NewElection(r.second, name)
	var at time.Time
	elected := make(chan error, 1)
	go func() { // ends with ctx at the latest
		err := next.Campaign(ctx, "value")
		at = time.Now()
		elected <- err
	}()
	if err := r.queued(ctx, name, 2); err != nil {
		return 0, err
	}
	if err := wait(ctx, pause); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := end(); err != nil {
		return 0, err
	}
	if err := <-elected; err != nil {
		return 0, err
	}
	return at.Sub(began), next.Resign(ctx)
}

// queued waits until an election has n candidates.
func (r *roles) queued(ctx context.Context, name string, n int64) error {
	for {
		got, err := r.d.client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		if got.Count == n {
			return wait(ctx, 20*time.Millisecond) // it begins to watch
		}
		if err := wait(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// hold is the process that is killed: it holds a role until its input ends.
func hold(ctx context.Context, cfg clientv3.Config, role string, in io.Reader, out io.Writer) error {
	c, err := clientv3.New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(smallestTTL))
	if err != nil {
		return err
	}
	if err := concurrency.NewElection(s, role).Campaign(ctx, "value"); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "elected"); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
