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
	"slices"
	"syscall"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/proc"
	"northstar/client"
)

const (
	roleRoundTimeout = 30 * time.Second       // one round at most
	beforeKill       = 300 * time.Millisecond // up to this, so as not to be in step with renewals
)

// roleMeasures are what is measured of named roles, how often in a row in one turn,
// and the aims for p50 and p99 in ms.
var roleMeasures = []struct {
	key, name string
	row       int
	aims      []any
}{
	{"campaign", "campaign on a free role", 10, []any{1.8}},
	{"resign", "resign to the next elected", 5, []any{3.5}},
	{"killed", "holder killed to the next elected", 1, []any{5, "", 20}},
}

// roleSUT is one kind of cluster, and how long one round of a measure takes there.
type roleSUT struct {
	name    string
	cluster *proc.Cluster
	round   func(ctx context.Context, measure string) (time.Duration, error)
	took    map[string][]time.Duration
}

// roles measures elections of named roles, in turns, on NorthStar and on etcd.
func (b *bench) roles(ctx context.Context) error {
	ours, err := b.startRoles(ctx)
	if err != nil {
		return err
	}
	suts := []roleSUT{{"northstar", ours.cluster, ours.round, map[string][]time.Duration{}}}
	if !b.noCompare {
		e, err := b.startEtcd(ctx)
		if err != nil {
			return err
		}
		suts = append(suts, roleSUT{"etcd", e.cluster, e.took, map[string][]time.Duration{}})
	}
	if err := b.elect(ctx, suts); err != nil {
		return err
	}
	fmt.Printf("\nroles: 3 nodes, %d rounds in turns; ms\n", b.elections)
	printElections(suts, true)
	return nil
}

// elect measures elections in turns.
func (b *bench) elect(ctx context.Context, suts []roleSUT) error {
	for round := range b.elections {
		for _, m := range roleMeasures {
			for _, e := range suts {
				for range m.row {
					d, err := e.round(ctx, m.key)
					if err != nil {
						return fmt.Errorf("%s, %s, round %d: %w\n%s", e.name, m.name, round+1, err, e.cluster.Logs())
					}
					e.took[m.key] = append(e.took[m.key], d)
				}
			}
		}
		progress("elections", round+1, b.elections)
	}
	return nil
}

func printElections(suts []roleSUT, aims bool) {
	printRow("", "p50", "p90", "p99", "max")
	for _, m := range roleMeasures {
		for _, e := range suts {
			printRow(m.name+", "+e.name, quantiles(e.took[m.key], 0.5, 0.9, 0.99, 1)...)
		}
		if aims {
			printRow("  (aim)", m.aims...)
		}
	}
}

// nsRoles are two clients of a NorthStar cluster with a session each.
type nsRoles struct {
	cluster *proc.Cluster
	n       int

	clients  [2]*client.Client
	sessions [2]*client.Session
}

func (b *bench) startRoles(ctx context.Context) (r *nsRoles, err error) {
	r = &nsRoles{}
	if r.cluster, err = b.start(proc.NorthStar(b.northstar, 3)); err != nil {
		return nil, err
	}
	if _, err := r.cluster.Leader(ctx); err != nil {
		return nil, err
	}
	for i := range r.clients {
		c, err := client.New(client.Config{Endpoints: addresses(r.cluster)})
		if err != nil {
			return nil, err
		}
		b.add(func() error { c.Close(); return nil })
		r.clients[i] = c
		if r.sessions[i], err = c.NewSession(ctx, client.SessionConfig{}); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// round measures one thing: a campaign for a free role, or how long it takes from an end of a tenure until the next
// session in the queue knows that it is elected.
func (r *nsRoles) round(ctx context.Context, measure string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, roleRoundTimeout)
	defer cancel()
	r.n++
	role := fmt.Sprintf("role-%d", r.n)
	if measure == "killed" {
		return r.killed(ctx, role)
	}
	began := time.Now()
	if err := r.campaign(ctx, 0, role); err != nil {
		return 0, err
	}
	if measure == "campaign" {
		took := time.Since(began)
		return took, r.give(ctx, 0, role)
	}
	return r.succeeds(ctx, role, func() error { return r.give(ctx, 0, role) })
}

// campaign campaigns with one of the two sessions, as long as that takes.
func (r *nsRoles) campaign(ctx context.Context, i int, role string) error {
	_, err := r.clients[i].CampaignRole(ctx, role, apiv1.Campaign{
		SessionID: r.sessions[i].ID(), Value: "value",
		WaitMS: roleRoundTimeout.Milliseconds(),
	})
	return err
}

func (r *nsRoles) give(ctx context.Context, i int, role string) error {
	_, err := r.clients[i].ResignRole(ctx, role, r.sessions[i].ID())
	return err
}

// succeeds is how long it takes from an end of the holder's tenure until the second
// session, which waits in the queue, knows that it is elected.
func (r *nsRoles) succeeds(ctx context.Context, role string, end func() error) (time.Duration, error) {
	var at time.Time
	elected := make(chan error, 1)
	go func() { // ends with ctx at the latest
		err := r.campaign(ctx, 1, role)
		at = time.Now()
		elected <- err
	}()
	if err := r.queued(ctx, role); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := end(); err != nil {
		return 0, err
	}
	if err := <-elected; err != nil {
		return 0, err
	}
	return at.Sub(began), r.give(ctx, 1, role)
}

// queued waits until the second session is in the queue.
func (r *nsRoles) queued(ctx context.Context, role string) error {
	for {
		got, err := r.clients[1].GetRole(ctx, role)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(got.Candidates,
			func(c apiv1.RoleCandidate) bool { return c.SessionID == r.sessions[1].ID() }) {
			return nil
		}
		if err := wait(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// killed has another process hold the role, with a session that is attached, and kills that.
func (r *nsRoles) killed(ctx context.Context, role string) (time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, append([]string{holdCommand, role}, addresses(r.cluster)...)...)
	in, said, err := startPiped(cmd)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if line, err := said.ReadString('\n'); line != "elected\n" {
		return 0, errors.Join(fmt.Errorf("the holder said %q", line), err)
	}
	if err := wait(ctx, rand.N(beforeKill)); err != nil {
		return 0, err
	}
	return r.succeeds(ctx, role, cmd.Process.Kill)
}

// holdCommand makes this program the process that killed kills.
const holdCommand = "hold"

// hold holds a role with a session that is attached to a connection, until its input ends.
func hold(ctx context.Context, role string, endpoints []string) error {
	c, err := client.New(client.Config{Endpoints: endpoints})
	if err != nil {
		return err
	}
	defer c.Close()
	k, err := c.NewCandidate(client.CandidateConfig{Role: role, Session: client.SessionConfig{Attach: true}})
	if err != nil {
		return err
	}
	if _, err := k.Campaign(ctx); err != nil {
		return err
	}
	fmt.Println("elected")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, k.Close(ctx))
}

// startPiped starts a program that is spoken with, and that ends with this one.
func startPiped(cmd *exec.Cmd) (in io.WriteCloser, out *bufio.Reader, err error) {
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if in, err = cmd.StdinPipe(); err != nil {
		return nil, nil, err
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	return in, bufio.NewReader(said), cmd.Start()
}
