package clientgo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"northstar/chaos/proc"
	"northstar/client"
)

const (
	role        = "controller"
	retryPeriod = 100 * time.Millisecond
	// The deadline of an overloaded machine's leader that must not stop, and that of the others.
	longDeadline  = 4 * time.Second
	shortDeadline = 1500 * time.Millisecond
)

// loop is one LeaderElector that runs.
type loop struct {
	lock    *Lock
	leading chan *client.Leadership // the tenure of each start
	stopped chan time.Duration      // how long the tenure still lasted then
	seen    chan string             // leaders, in order
	cancel  context.CancelFunc
	ended   chan struct{}
}

func newLock(cl *client.Client, identity string, deadline time.Duration) (*Lock, error) {
	return New(configFor(cl, identity, deadline))
}

func configFor(cl *client.Client, identity string, deadline time.Duration) Config {
	return Config{Client: cl, Role: role, Identity: identity, RenewDeadline: deadline, RetryPeriod: retryPeriod}
}

// elect runs client-go's own loop, once.
func elect(t *testing.T, cl *client.Client, identity string, deadline time.Duration, release bool) *loop {
	t.Helper()
	lock, err := newLock(cl, identity, deadline)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := &loop{
		lock: lock, leading: make(chan *client.Leadership, 10), stopped: make(chan time.Duration, 10),
		seen: make(chan string, 100), cancel: cancel, ended: make(chan struct{}),
	}
	config := configOf(lock, deadline)
	config.ReleaseOnCancel = release
	var tenure atomic.Pointer[client.Leadership]
	config.Callbacks = leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) {
			if now := lock.Leadership(); now != nil {
				tenure.Store(now)
				l.leading <- now
			}
		},
		OnStoppedLeading: func() {
			if last := tenure.Load(); last != nil {
				l.stopped <- last.ValidFor()
			}
		},
		OnNewLeader: func(identity string) { l.seen <- identity },
	}
	elector, err := leaderelection.NewLeaderElector(config)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(l.ended)
		elector.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-l.ended
	})
	return l
}

func configOf(lock resourcelock.Interface, deadline time.Duration) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: deadline + time.Second, RenewDeadline: deadline, RetryPeriod: retryPeriod,
	}
}

// asHolder makes this program a leader that prints what it does.
const asHolder = "NORTHSTAR_ADAPTER_HOLDER"

// counted prints each successful renewal of a loop.
type counted struct{ *Lock }

func (c counted) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := c.Lock.Update(ctx, r)
	if err == nil {
		fmt.Println("renewed", c.Leadership().Token)
	}
	return err
}

func hold(endpoints string) {
	cl, err := client.New(client.Config{Endpoints: strings.Split(endpoints, ",")})
	if err != nil {
		fmt.Println(err)
		return
	}
	cfg := configFor(cl, "holder", longDeadline)
	cfg.Attach = true
	lock, err := New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	config := configOf(counted{lock}, longDeadline)
	config.Callbacks = leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { fmt.Println("leading") },
		OnStoppedLeading: func() { fmt.Println("stopped") },
	}
	leaderelection.RunOrDie(context.Background(), config)
}

// holder is a process that leads.
type holder struct {
	cmd   *exec.Cmd
	lines chan string
}

func startHolder(t *testing.T, c *proc.Cluster) *holder {
	t.Helper()
	h := &holder{cmd: exec.CommandContext(t.Context(), os.Args[0]), lines: make(chan string, 10000)}
	h.cmd.Env = append(os.Environ(), asHolder+"="+strings.Join(endpoints(c), ","))
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	h.cmd.Stderr = &stderr
	out, err := h.cmd.StdoutPipe()
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.kill()
		if t.Failed() {
			t.Logf("the holder's log:\n%s", stderr.String())
		}
	})
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	return h
}

func (h *holder) kill() {
	if h.cmd.ProcessState == nil {
		_ = h.cmd.Process.Kill() // it may have ended
		_ = h.cmd.Wait()
	}
}

// awaitRenewals waits for n renewals with one token, and returns the token.
func (h *holder) awaitRenewals(t *testing.T, n int) string {
	t.Helper()
	var token string
	for n > 0 {
		line := receive(t, h.lines, "a renewal by the holder")
		got, renewed := strings.CutPrefix(line, "renewed ")
		switch {
		case line == "leading":
		case !renewed, token != "" && got != token:
			t.Fatalf("the holder of token %s says: %s", token, line)
		default:
			token = got
			n--
		}
	}
	return token
}

// TestElection: a crash of the cluster's leader changes nothing for a leader of the role. When that crashes, and is
// attached, the next candidate leads without waiting for the TTL. A leader that releases the role is replaced
// immediately, too.
func TestElection(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	h := startHolder(t, c)
	token := h.awaitRenewals(t, 3)
	cl := newClient(t, c)
	second := elect(t, cl, "second", longDeadline, true)
	if first := receive(t, second.seen, "the leader, by a candidate"); first != "holder" {
		t.Errorf("the candidate sees %q lead", first)
	}
	for range 2 {
		n := leader(t, c)
		n.Kill()
		// Renewals for longer than the TTL: the session was renewed, too.
		if now := h.awaitRenewals(t, int(second.lock.ttl/retryPeriod)); now != token {
			t.Errorf("the token was %s and is %s", token, now)
		}
		if err := c.StartNode(n); err != nil {
			t.Fatal(err)
		}
		leader(t, c)
	}
	began := time.Now()
	h.kill()
	tenure := receive(t, second.leading, "the second leader")
	t.Logf("the next candidate leads %v after the crash of the holder", time.Since(began).Round(100*time.Microsecond))
	if cause := lastCause(t, cl); cause != "disconnected" {
		t.Errorf("the first tenure has ended because of %q", cause)
	}
	if fmt.Sprint(tenure.Token) == token || tenure.Token == 0 {
		t.Errorf("token %d after %s", tenure.Token, token)
	}

	third := elect(t, newClient(t, c), "third", longDeadline, true)
	if seen := receive(t, third.seen, "the leader, by a candidate"); seen != "second" {
		t.Errorf("the candidate sees %q lead", seen)
	}
	began = time.Now()
	second.cancel()
	next := receive(t, third.leading, "the third leader")
	t.Logf("the next candidate leads %v after the release", time.Since(began).Round(100*time.Microsecond))
	if cause := tenure.Cause(); !errors.Is(cause, client.ErrResigned) { // otherwise RecordEvent has ended the session
		t.Errorf("the second tenure has ended because of %v", cause)
	}
	if next.Token <= tenure.Token {
		t.Errorf("token %d after %d", next.Token, tenure.Token)
	}
	if tenure.ValidFor() > 0 {
		t.Error("the tenure lasts beyond its release")
	}
}

// lastCause returns why the tenure before the present one has ended.
func lastCause(t *testing.T, cl *client.Client) string {
	t.Helper()
	h, err := cl.RoleHistory(t.Context(), role)
	if err != nil || len(h.Items) < 2 {
		t.Fatal(h, err)
	}
	return h.Items[1].Cause
}

// TestStopsInTime: a leader that cannot renew stops before its tenure ends, and so before another one leads. With
// ReleaseOnCancel, client-go releases the role before it stops.
func TestStopsInTime(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]bool{"release": true, "no release": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			l := elect(t, newClient(t, c), "a", shortDeadline, release)
			receive(t, l.leading, "the leader")
			signal(t, c, syscall.SIGSTOP)
			if left := receive(t, l.stopped, "the end of the loop"); left == 0 {
				t.Error("the tenure ended before the loop")
			}
			signal(t, c, syscall.SIGCONT)
			next := elect(t, newClient(t, c), "b", shortDeadline, release)
			receive(t, next.leading, "the next leader: the session of the first ends")
		})
	}
}

// TestReleaseNeedsRenewals: after a failed renewal the loop releases the role before it stops the work. So the role is
// kept, also if the cluster answers again. It is released once renewals succeed again.
func TestReleaseNeedsRenewals(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for !keepsAndReleases(ctx, t, c) {
		t.Log("the machine was too busy to renew the session in time")
	}
}

// keepsAndReleases is one attempt of TestReleaseNeedsRenewals. It reports whether the tenure lasted until its release.
func keepsAndReleases(ctx context.Context, t *testing.T, c *proc.Cluster) bool {
	t.Helper()
	lock, r := leads(ctx, t, c, longDeadline)
	tenure := lock.Leadership()
	renewUntil := func(succeeds bool) {
		for tick := time.NewTicker(retryPeriod); (lock.Update(ctx, *r) == nil) != succeeds; <-tick.C {
			if ctx.Err() != nil {
				t.Fatalf("renewals do not get to success = %v: %v", succeeds, tenure.Cause())
			}
			if tenure.Cause() != nil {
				return
			}
		}
	}
	signal(t, c, syscall.SIGSTOP)
	renewUntil(false)
	signal(t, c, syscall.SIGCONT)
	if err := lock.Update(ctx, resourcelock.LeaderElectionRecord{}); !errors.Is(err, errNotReleased) {
		t.Errorf("a release after a failed renewal: %v", err)
	}
	renewUntil(true)
	if tenure.Cause() != nil {
		return false
	}
	err := lock.Update(ctx, resourcelock.LeaderElectionRecord{})
	if errors.Is(err, errNotReleased) && errors.Is(tenure.Cause(), client.ErrLeaseLapsed) {
		return false
	}
	if err != nil || tenure.Cause() == nil {
		t.Errorf("a release after renewals: %v, and the tenure has ended with %v", err, tenure.Cause())
	}
	return true
}

// signal sends a signal to all nodes.
func signal(t *testing.T, c *proc.Cluster, sig syscall.Signal) {
	t.Helper()
	for _, n := range c.Nodes {
		if err := n.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostTenure: the loop learns that its tenure is lost without a wait for a cluster that does not respond.
func TestLostTenure(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	lock, _ := leads(ctx, t, c, shortDeadline)
	signal(t, c, syscall.SIGSTOP)
	receive(t, lock.Leadership().Done(), "the end of the tenure")
	_, _, err := lock.Get(ctx)
	signal(t, c, syscall.SIGCONT)
	if !errors.Is(err, client.ErrLeaseLapsed) || ctx.Err() != nil {
		t.Error(err)
	}
}

// leads returns the lock of a loop that leads, and its record.
func leads(
	ctx context.Context, t *testing.T, c *proc.Cluster, deadline time.Duration,
) (*Lock, *resourcelock.LeaderElectionRecord) {
	t.Helper()
	lock, err := newLock(newClient(t, c), "a", deadline)
	if err != nil {
		t.Fatal(err)
	}
	for tick := time.NewTicker(retryPeriod); ; <-tick.C {
		r, _, err := lock.Get(ctx)
		if err == nil {
			err = lock.Update(ctx, *r)
		}
		switch {
		case err == nil:
			return lock, r
		case ctx.Err() != nil:
			t.Fatal(err)
		}
	}
}

// TestResetConnections: a firewall resets every connection of a leader, which makes new ones. No other candidate leads
// before the leader's loop has stopped.
func TestResetConnections(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	var mu sync.Mutex
	var conns []*net.TCPConn
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, conn.(*net.TCPConn))
		}
		return conn, err
	}
	cl, err := client.New(client.Config{Endpoints: endpoints(c), Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	first := elect(t, cl, "first", longDeadline, true)
	receive(t, first.leading, "the first leader")
	second := elect(t, newClient(t, c), "second", longDeadline, true)
	receive(t, second.seen, "the leader, by a candidate")
	mu.Lock()
	for _, conn := range conns {
		_ = conn.SetLinger(0) // Close then resets the connection, and may have been called before
		_ = conn.Close()
	}
	mu.Unlock()
	select {
	case <-second.leading:
		select {
		case <-first.stopped: // a busy machine renewed too late
		default:
			t.Fatal("the second candidate leads before the loop of the first has stopped")
		}
	case <-time.After(first.lock.ttl): // the session was renewed on a new connection
		first.cancel()
		receive(t, second.leading, "the second leader")
	}
}

// TestStopWithoutRelease: the role stays taken for the TTL, as a Lease does, so that the work can stop. Then the next
// candidate leads, also if the process lives on.
func TestStopWithoutRelease(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	first := elect(t, newClient(t, c), "first", shortDeadline, false)
	receive(t, first.leading, "the first leader")
	second := elect(t, newClient(t, c), "second", shortDeadline, false)
	receive(t, second.seen, "the leader, by a candidate")
	first.cancel()
	<-first.ended
	stopped := time.Now()
	receive(t, second.leading, "the second leader")
	if took := time.Since(stopped); took < first.lock.ttl*9/10 {
		t.Errorf("the next candidate leads after %v, the TTL is %v", took, first.lock.ttl)
	}
}

// TestRevoked: an operator revokes the role. The loop does not lead again before it has stopped, and the next
// candidate waits for that.
func TestRevoked(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	cl := newClient(t, c)
	first := elect(t, cl, "first", shortDeadline, true)
	tenure := receive(t, first.leading, "the first leader")
	second := elect(t, newClient(t, c), "second", shortDeadline, true)
	receive(t, second.seen, "the leader, by a candidate")
	revoke(t, c)
	next := receive(t, second.leading, "the second leader")
	select {
	case <-first.stopped:
	default:
		t.Error("the next candidate leads before the loop has stopped")
	}
	if next.Token <= tenure.Token {
		t.Errorf("token %d after %d", next.Token, tenure.Token)
	}
}

func revoke(t *testing.T, c *proc.Cluster) {
	t.Helper()
	url := "http://" + c.Nodes[0].HTTP + "/admin/roles/" + role
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("revoke: %s", resp.Status)
	}
}

// TestOneIdentityTwice: a candidate with the identity of the leader does not take the leader's role for its own.
func TestOneIdentityTwice(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	first := elect(t, newClient(t, c), "same", shortDeadline, true)
	receive(t, first.leading, "the leader")
	second := elect(t, newClient(t, c), "same", shortDeadline, true)
	if seen := receive(t, second.seen, "the leader, by a candidate"); !strings.HasPrefix(seen, "same (session ") {
		t.Errorf("the candidate sees %q lead", seen)
	}
	first.cancel()
	receive(t, second.leading, "the second leader")
}

// TestAbandoned: a loop that gives up between its election and its first renewal leaves the role to others.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	lock, err := newLock(newClient(t, c), "a", shortDeadline)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	r, _, err := lock.Get(ctx)
	if err != nil || r.HolderIdentity != "a" {
		t.Fatalf("%+v, %v", r, err)
	}
	cancel()
	if err := lock.Update(ctx, *r); err == nil {
		t.Error("a renewal after the end of the attempt succeeds")
	}
	next := elect(t, newClient(t, c), "b", shortDeadline, true)
	receive(t, next.leading, "the next leader")
}

func TestConfig(t *testing.T) {
	t.Parallel()
	cl, err := client.New(client.Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	good := Config{Client: cl, Role: "r", Identity: "i", RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
	l, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	if l.ttl != 28*time.Second {
		t.Errorf("TTL %v", l.ttl)
	}
	for name, change := range map[string]func(*Config){
		"no client": func(c *Config) { c.Client = nil }, "no role": func(c *Config) { c.Role = "" },
		"no identity": func(c *Config) { c.Identity = "" }, "no deadline": func(c *Config) { c.RenewDeadline = 0 },
		"no period": func(c *Config) { c.RetryPeriod = 0 },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
