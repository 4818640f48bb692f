package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
	"northstar/client"
)

const (
	roleRoundTimeout = 30 * time.Second       // one round at most
	beforeKill       = 300 * time.Millisecond // up to this, so as not to be in step with renewals
)

// roleMeasures are what is measured of named roles, how often in a row in one turn,
// and the aims for p50 and p99 in ms; 0: none.
var roleMeasures = []struct {
	key, name string
	row       int
	p50, p99  float64
}{
	{"campaign", "campaign on a free role", 10, 1.8, 0},
	{"resign", "resign to the next elected", 5, 3.5, 0},
	{"killed", "holder killed to the next elected", 1, 5, 20},
}

// roleSUT is one kind of cluster, and how long one round of a measure takes there.
type roleSUT struct {
	name  string
	round func(ctx context.Context, measure string) (time.Duration, error)
	logs  func() string
	close func()
	took  map[string][]time.Duration
}

// roles measures elections of named roles, in turns, on NorthStar and on etcd.
func (b *bench) roles(ctx context.Context) error {
	fmt.Println(describeHost())
	suts, err := b.startRoleSUTs(ctx)
	defer func() {
		for _, e := range suts {
			e.close()
		}
	}()
	if err != nil {
		return err
	}
	began := time.Now()
	for round := range b.elections {
		for _, m := range roleMeasures {
			for _, e := range suts {
				for range m.row {
					d, err := e.round(ctx, m.key)
					if err != nil {
						return fmt.Errorf("%s, %s, round %d: %w\n%s", e.name, m.name, round+1, err, e.logs())
					}
					e.took[m.key] = append(e.took[m.key], d)
				}
			}
		}
		if (round+1)%10 == 0 {
			fmt.Fprintf(os.Stderr, "roles: %d of %d rounds, %s\n", round+1, b.elections,
				time.Since(began).Round(time.Second))
		}
	}
	fmt.Printf("\nroles: 3 nodes, %d rounds in turns; ms\n", b.elections)
	fmt.Printf("  %-36s %-10s %9s %9s %9s %9s\n", "", "", "p50", "p90", "p99", "max")
	for _, m := range roleMeasures {
		for _, e := range suts {
			took := e.took[m.key]
			slices.Sort(took)
			q := func(f float64) string { return ms(load.Quantile(took, f)) }
			fmt.Printf("  %-36s %-10s %9s %9s %9s %9s\n", m.name, e.name, q(0.5), q(0.9), q(0.99), q(1))
		}
		fmt.Printf("  %-36s %-10s %9s %9s %9s\n", "", "(aim)", formatGoal(m.p50), "", formatGoal(m.p99))
	}
	return nil
}

func formatGoal(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}

// startRoleSUTs starts the clusters.
func (b *bench) startRoleSUTs(ctx context.Context) (all []*roleSUT, err error) {
	ns, err := proc.NorthStar(b.northstar, 3)
	if err != nil {
		return nil, err
	}
	ours := &nsRoles{holder: b.roleholder, cluster: ns}
	all = append(all, &roleSUT{
		name: "northstar", round: ours.round, logs: ns.Logs, close: ours.close,
		took: map[string][]time.Duration{},
	})
	if err := ns.Start(); err != nil {
		return all, err
	}
	if _, err := ns.Leader(ctx); err != nil {
		return all, err
	}
	if err := ours.open(ctx); err != nil || b.noCompare {
		return all, err
	}
	e, err := b.startEtcd(ctx)
	if err != nil {
		return all, err
	}
	return append(all, &roleSUT{
		name: "etcd", round: e.took, logs: e.cluster.Logs, close: e.close,
		took: map[string][]time.Duration{},
	}), nil
}

// nsRoles are two clients of a NorthStar cluster with a session each.
type nsRoles struct {
	holder  string // the program that is killed
	cluster *proc.Cluster
	n       int

	clients  [2]*client.Client
	sessions [2]*client.Session
}

func (r *nsRoles) open(ctx context.Context) (err error) {
	for i := range r.clients {
		if r.clients[i], err = client.New(client.Config{Endpoints: addresses(r.cluster)}); err != nil {
			return err
		}
		if r.sessions[i], err = r.clients[i].NewSession(ctx, client.SessionConfig{}); err != nil {
			return err
		}
	}
	return nil
}

func (r *nsRoles) close() {
	for _, c := range r.clients {
		if c != nil {
			c.Close()
		}
	}
	r.cluster.Close()
}

func (r *nsRoles) round(ctx context.Context, measure string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, roleRoundTimeout)
	defer cancel()
	r.n++
	role := fmt.Sprintf("role-%d", r.n)
	switch measure {
	case "campaign":
		return r.campaign(ctx, role)
	case "resign":
		return r.resign(ctx, role)
	}
	return r.killed(ctx, role)
}

// stand campaigns with one of the two sessions, as long as that takes.
func (r *nsRoles) stand(ctx context.Context, i int, role string) error {
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

func (r *nsRoles) campaign(ctx context.Context, role string) (time.Duration, error) {
	began := time.Now()
	if err := r.stand(ctx, 0, role); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, r.give(ctx, 0, role)
}

func (r *nsRoles) resign(ctx context.Context, role string) (time.Duration, error) {
	if err := r.stand(ctx, 0, role); err != nil {
		return 0, err
	}
	return r.succeeds(ctx, role, func() error { return r.give(ctx, 0, role) })
}

// succeeds is how long it takes from an end of the holder's tenure until the second
// session, which waits in the queue, knows that it is elected.
func (r *nsRoles) succeeds(ctx context.Context, role string, end func() error) (time.Duration, error) {
	type outcome struct {
		at  time.Time
		err error
	}
	elected := make(chan outcome, 1)
	go func() { // ends with ctx at the latest
		err := r.stand(ctx, 1, role)
		elected <- outcome{time.Now(), err}
	}()
	if err := r.queued(ctx, role); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := end(); err != nil {
		return 0, err
	}
	o := <-elected
	if o.err != nil {
		return 0, o.err
	}
	return o.at.Sub(began), r.give(ctx, 1, role)
}

// queued waits until the second session stands in the queue.
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

// killed has another process hold the role, with a session that is attached, and
// kills that.
func (r *nsRoles) killed(ctx context.Context, role string) (time.Duration, error) {
	cmd := exec.Command(r.holder, "-endpoints", strings.Join(addresses(r.cluster), ","), "-role", role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
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
	if line, err := bufio.NewReader(said).ReadString('\n'); line != "elected\n" {
		return 0, errors.Join(fmt.Errorf("the holder said %q", line), err)
	}
	if err := wait(ctx, rand.N(beforeKill)); err != nil {
		return 0, err
	}
	return r.succeeds(ctx, role, cmd.Process.Kill)
}
