package proc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/check"
	"northstar/client"
)

// contest records what happens to one role in TestCandidates, as seen from outside the cluster.
type contest struct {
	t       *testing.T
	cluster *Cluster
	role    string

	mu      sync.Mutex
	tenures map[uint64]*check.Tenure // by token
	writes  []check.FencedWrite
	early   []candidateReport
	newest  []uint64 // tokens, as an observer received them
	faults  []string
	taken   atomic.Int64 // number of revocations by an operator
}

// runner is one candidate's process, and its successors after it was killed.
type runner struct {
	contest *contest
	id      int
	task    candidateTask
	cmd     *exec.Cmd
	in      io.Closer
	heard   sync.WaitGroup
	relays  []*relay // its network, by node
}

// connect makes a network for one candidate.
func (r *runner) connect() {
	r.task.Via = map[string]string{}
	for _, addr := range r.task.Endpoints {
		l := newRelay(r.contest.t, addr)
		r.relays = append(r.relays, l)
		r.task.Via[addr] = l.listener.Addr().String()
	}
}

func (r *runner) start() error {
	task, err := json.Marshal(r.task)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r.cmd = exec.Command(self)
	r.cmd.Env = append(os.Environ(), candidateEnv+"="+string(task))
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := startTied(r.cmd); err != nil {
		return err
	}
	r.heard.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var s candidateReport
			if json.Unmarshal(lines.Bytes(), &s) == nil { // the last line of a killed process may be incomplete
				r.contest.note(r.id, s)
			}
		}
	})
	return nil
}

// kill ends the process. It holds nothing from then on, regardless of its deadline.
func (r *runner) kill() {
	_ = r.cmd.Process.Kill()
	dead := bootTime()
	r.heard.Wait()
	_ = r.cmd.Wait()
	r.contest.died(r.id, dead)
}

func (c *contest) note(id int, s candidateReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch t := c.tenures[s.Token]; s.Kind {
	case kindWon:
		if t != nil && t.Session == s.Session {
			return // the same tenure, confirmed again
		}
		if t != nil {
			c.t.Errorf("two sessions got one token: %v; %+v", t, s)
		}
		c.tenures[s.Token] = &check.Tenure{
			Client: id, Session: s.Session, Token: s.Token, RequestedAt: s.Asked,
			GrantedAt: s.At,
		}
	case kindUntil:
		t.Until = max(t.Until, s.Until)
	case kindReleased:
		t.Until = min(t.Until, s.At)
	case kindEarly:
		c.early = append(c.early, s)
	case kindWrote:
		c.writes = append(c.writes, check.FencedWrite{Client: id, Token: s.Token, Begin: s.At, End: s.Until})
	}
}

func (c *contest) died(id int, at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tenures {
		if t.Client == id {
			t.Until = min(t.Until, at)
		}
	}
}

// observe records new tokens until ctx ends.
func (c *contest) observe(ctx context.Context, cl *client.Client) {
	for h, err := range cl.Observe(ctx, c.role) {
		if err != nil {
			return
		}
		if h.Held() {
			c.mu.Lock()
			c.newest = append(c.newest, h.Token)
			c.mu.Unlock()
		}
	}
}

// recent returns one of the last tokens, most of which are stale.
func (c *contest) recent() (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.newest)
	if n == 0 {
		return 0, false
	}
	return c.newest[n-1-rand.IntN(min(n, 3))], true
}

// writeStale writes with recent tokens of any tenure until ctx ends.
func (c *contest) writeStale(ctx context.Context, cl *client.Client) {
	for ctx.Err() == nil {
		token, ok := c.recent()
		if !ok {
			pause(10 * time.Millisecond)
			continue
		}
		begin := bootTime()
		if fencedWrite(ctx, cl, c.role, token) == nil {
			c.note(-1, candidateReport{Kind: kindWrote, Token: token, At: begin, Until: bootTime()})
		}
		pause(rand.N(10 * time.Millisecond))
	}
}

// contestTime returns how long TestCandidates runs: a short time, or NORTHSTAR_CONTEST.
func contestTime(t *testing.T) time.Duration {
	if s := os.Getenv("NORTHSTAR_CONTEST"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("NORTHSTAR_CONTEST: %v", err)
		}
		return d
	}
	return 6 * time.Second
}

// TestCandidates runs five candidates for one role, each a process with the Go client. Candidates are killed, stopped
// and disconnected at random, nodes are killed and stopped, and an operator revokes the role.
//
// Tokens grow, and no two candidates ever believe at the same time that they hold the role. No write succeeds with a
// stale token, and no session ends before its own deadline.
func TestCandidates(t *testing.T) {
	const ttl = time.Second
	c := newCluster(t, 3, "--failover-takeover-delay", "1h")
	start(t, c)
	acquainted(t, c)
	x := &contest{t: t, cluster: c, role: "r", tenures: map[uint64]*check.Tenure{}}
	cl := clientOf(t, c)
	ctx, stop := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer func() { stop(); beside.Wait() }()
	runners := make([]*runner, 5)
	for i := range runners {
		runners[i] = &runner{contest: x, id: i, task: candidateTask{
			Name: fmt.Sprintf("candidate-%d", i), Endpoints: httpAddrs(c), Role: x.role, TTL: ttl,
			HoldMost: 2 * ttl / 3,
		}}
		if i >= 3 {
			runners[i].task.Grace = ttl / 2
		}
		runners[i].connect()
		if err := runners[i].start(); err != nil {
			t.Fatal(err)
		}
		defer func() { runners[i].kill() }()
	}
	beside.Go(func() { x.observe(ctx, cl) })
	for range 2 {
		beside.Go(func() { x.writeStale(ctx, cl) })
	}
	beside.Go(func() { x.operate(ctx, cl, ttl) })
	cutting, mend := context.WithCancel(ctx)
	defer mend()
	var network sync.WaitGroup
	network.Go(func() { x.cutOff(cutting, runners, ttl) })
	x.disturb(runners, ttl, contestTime(t))
	mend()
	network.Wait()
	for _, r := range runners {
		r.kill()
		if err := r.start(); err != nil { // once more, now without faults
			t.Fatal(err)
		}
	}
	before := x.elections(cl)
	eventually(t, soon, func() error {
		if n := x.elections(cl); n < before+5 {
			return fmt.Errorf("%d elections since the faults ended", n-before)
		}
		return nil
	})
	stop()
	beside.Wait()
	for _, r := range runners {
		r.kill()
	}
	x.check(cl)
}

// elections returns the number of role elections so far.
func (c *contest) elections(cl *client.Client) uint64 {
	h, err := cl.RoleHistory(c.t.Context(), c.role)
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		c.t.Fatal(err)
	}
	return h.Elections
}

// disturb injects faults into candidates and nodes, one after the other.
func (c *contest) disturb(runners []*runner, ttl, during time.Duration) {
	t := c.t
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(during); time.Now().Before(end); pause(rand.N(ttl / 2)) {
		r, n := runners[rand.IntN(len(runners))], c.cluster.Nodes[rand.IntN(len(c.cluster.Nodes))]
		fault := rand.IntN(6)
		switch fault {
		case 0:
			c.log("kill candidate %d", r.id)
			r.kill()
			must(r.start())
		case 1, 2:
			c.log("stop candidate %d", r.id)
			must(r.cmd.Process.Signal(syscall.SIGSTOP))
			pause(ttl/4 + rand.N(2*ttl))
			must(r.cmd.Process.Signal(syscall.SIGCONT))
			c.log("wake candidate %d", r.id)
		case 3:
			n = leader(t, c.cluster)
			c.log("kill %s, the leader", n.ID)
			n.Kill()
			pause(rand.N(ttl))
			must(c.cluster.StartNode(n))
		case 4:
			n = leader(t, c.cluster)
			fallthrough
		case 5:
			c.log("stop %s, the leader: %v", n.ID, fault == 4)
			must(n.Pause())
			pause(rand.N(ttl))
			must(n.Signal(syscall.SIGCONT))
			c.log("wake %s", n.ID)
		}
		c.log("%s leads", leader(t, c.cluster).ID)
	}
}

// log records a fault; a failed test prints the faults.
func (c *contest) log(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf("%v: ", bootTime())+fmt.Sprintf(format, args...))
}

// explain prints the faults and the cluster's record of the role.
func (c *contest) explain(cl *client.Client) {
	for _, f := range c.faults {
		c.t.Log(f)
	}
	booted := time.Now().Add(-bootTime())
	h, err := cl.RoleHistory(c.t.Context(), c.role)
	c.t.Logf("the role's history, %d of %d tenures, %v", len(h.Items), h.Elections, err)
	for _, x := range h.Items {
		ended := "lasts"
		if x.EndedAt != nil {
			ended = fmt.Sprintf("%s at %v", x.Cause, x.EndedAt.Sub(booted))
		}
		c.t.Logf("token %d: %s, session %s, from %v, %s", x.Token, x.Holder, x.SessionID, x.AcquiredAt.Sub(booted),
			ended)
	}
}

// check checks all observations.
func (c *contest) check(cl *client.Client) {
	t := c.t
	defer func() {
		if t.Failed() {
			c.explain(cl)
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	var tenures []check.Tenure
	for _, x := range c.tenures {
		tenures = append(tenures, *x)
	}
	t.Logf("%d tenures, %d of them observed, %d ended by an operator, %d fenced writes", len(tenures), len(c.newest),
		c.taken.Load(), len(c.writes))
	for _, v := range check.CheckMutualExclusion(tenures, c.writes) {
		t.Error(v)
	}
	for i, token := range c.newest {
		if i > 0 && token <= c.newest[i-1] {
			t.Errorf("token %d was given out after %d", token, c.newest[i-1])
		}
	}
	for _, s := range c.early {
		t.Errorf("%s: session %s had ended at %v, with its own deadline at %v", check.SessionsLive, s.Session, s.At,
			s.Until)
	}
	if len(tenures) < 5 || len(c.writes) < 5 || c.taken.Load() == 0 {
		t.Errorf("only %d tenures, %d ended by an operator, and %d writes", len(tenures), c.taken.Load(), len(c.writes))
	}
}
