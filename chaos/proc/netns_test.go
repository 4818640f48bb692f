package proc

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// newNetwork creates a network that ends with the test, and skips the test if that is not possible.
func newNetwork(t *testing.T, c *Cluster) *Network {
	t.Helper()
	w, err := NewNetwork()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		c.KillAll()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := w.Attach(c); err != nil {
		t.Fatal(err)
	}
	return w
}

// patientMax is timeout-max of patient: timeouts that rarely fire on a busy machine, and that a test can still wait
// for.
const patientMax = 4 * time.Second

var patient = []string{
	"--election-timeout-min", (patientMax / 2).String(), "--election-timeout-max",
	patientMax.String(),
}

// networked starts a cluster in a network of its own.
func networked(t *testing.T, size int) (*Cluster, *Network) {
	t.Helper()
	c := newCluster(t, size, append([]string{"--insecure"}, patient...)...)
	w := newNetwork(t, c)
	start(t, c)
	steady(t, c)
	return c, w
}

// canWrite reports whether a write through the node succeeds in time.
func canWrite(ctx context.Context, n *Node, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	a, err := put(ctx, n, "k", "v")
	return err == nil && a.Status == http.StatusOK
}

// writesAgain waits until the cluster takes a write through one of the nodes.
func writesAgain(t *testing.T, through ...*Node) {
	t.Helper()
	at := time.Now()
	eventually(t, soon, func() error {
		for _, n := range through {
			if canWrite(t.Context(), n, 3*patientMax) {
				return nil
			}
		}
		return fmt.Errorf("no write for %v", time.Since(at))
	})
}

// termOf returns the newest term of any of the nodes.
func termOf(t *testing.T, nodes ...*Node) (term uint64) {
	t.Helper()
	for _, n := range nodes {
		term = max(term, mustStatus(t, n).Term)
	}
	return term
}

// stays watches for a while, and fails the test if the nodes' newest term grows by more than the bound.
func stays(t *testing.T, watch time.Duration, most uint64, nodes ...*Node) {
	t.Helper()
	before := termOf(t, nodes...)
	for until := time.Now().Add(watch); time.Now().Before(until); {
		if now := termOf(t, nodes...); now > before+most {
			t.Fatalf("the term went from %d to %d: more than %d elections", before, now, most)
		}
		pause(50 * time.Millisecond)
	}
}

// others returns a cluster's nodes except for some.
func others(c *Cluster, without ...*Node) (rest []*Node) {
next:
	for _, n := range c.Nodes {
		for _, w := range without {
			if n == w {
				continue next
			}
		}
		rest = append(rest, n)
	}
	return rest
}

// A leader without any connection is replaced, and returns as a follower without another election.
func TestLeaderCutOff(t *testing.T) {
	t.Parallel()
	c, w := networked(t, 3)
	old := leader(t, c)
	rest := others(c, old)
	if err := w.Isolate(old); err != nil {
		t.Fatal(err)
	}
	writesAgain(t, rest...)
	stays(t, 3*patientMax, 0, rest...)
	if err := w.Heal(); err != nil {
		t.Fatal(err)
	}
	term := termOf(t, rest...)
	if n := leader(t, c); n == old {
		t.Errorf("the old leader %s leads again", old.ID)
	}
	if now := termOf(t, c.Nodes...); now != term {
		t.Errorf("its return moved the term from %d to %d", term, now)
	}
}

// The leader and one follower are disconnected from each other, and both reach the third node. There is always a
// leader, and the two do not compete.
func TestBridgePartition(t *testing.T) {
	for _, oneWay := range []bool{false, true} {
		t.Run(map[bool]string{false: "both ways", true: "one way"}[oneWay], func(t *testing.T) {
			t.Parallel()
			c, w := networked(t, 3)
			lead := leader(t, c)
			rest := others(c, lead)
			cut, bridge := rest[0], rest[1]
			err := w.Cut(lead, cut)
			if !oneWay {
				err = w.CutBoth(lead, cut)
			}
			if err != nil {
				t.Fatal(err)
			}
			writesAgain(t, lead, bridge)
			stays(t, 5*patientMax, 2, c.Nodes...)
			writesAgain(t, lead, bridge)
			if err := w.Heal(); err != nil {
				t.Fatal(err)
			}
			leader(t, c)
		})
	}
}

// Of five nodes, one connects two halves: there is a leader, and it stays.
func TestBridgeOfFive(t *testing.T) {
	t.Parallel()
	c, w := networked(t, 5)
	lead := leader(t, c)
	rest := others(c, lead)
	// lead and rest[0] are on one side, rest[1] and rest[2] on the other, rest[3] reaches all.
	for _, n := range []*Node{lead, rest[0]} {
		if err := w.CutBoth(n, rest[1], rest[2]); err != nil {
			t.Fatal(err)
		}
	}
	writesAgain(t, c.Nodes...)
	stays(t, 5*patientMax, 2, c.Nodes...)
	writesAgain(t, c.Nodes...)
}

// Two followers that are disconnected from each other cause no election.
func TestFollowersApart(t *testing.T) {
	t.Parallel()
	c, w := networked(t, 3)
	rest := others(c, leader(t, c))
	if err := w.CutBoth(rest[0], rest[1]); err != nil {
		t.Fatal(err)
	}
	stays(t, 3*patientMax, 0, c.Nodes...)
	if err := w.Heal(); err != nil {
		t.Fatal(err)
	}
	stays(t, 2*patientMax, 0, c.Nodes...)
}

// A preferred node that returns far behind does not lead before it has caught up. Its take-over costs at most as much
// as a planned transfer.
func TestPreferredNodeCatchesUpFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, append([]string{"--failover-takeover-delay", "500ms"}, patient...)...)
	priorities(c, map[string]string{"n3": "200"})
	start(t, c)
	best := c.Nodes[2]
	eventually(t, soon, func() error {
		if n := leader(t, c); n != best {
			return fmt.Errorf("%s leads", n.ID)
		}
		return nil
	})
	steady(t, c)
	best.Kill()
	rest := others(c, best)
	value := strings.Repeat("v", 64<<10)
	for i := range 400 { // far more than one message holds
		mustPut(t, c, fmt.Sprintf("k%d", i), value)
	}
	w := newPulse(t, rest)
	term := termOf(t, rest...)
	if err := c.StartNode(best); err != nil {
		t.Fatal(err)
	}
	behind := true
	eventually(t, 2*soon, func() error {
		st, err := nodeStatus(t.Context(), best)
		if err != nil {
			return err
		}
		lead, err := nodeStatus(t.Context(), rest[0])
		if err != nil {
			return err
		}
		if behind = behind && st.AppliedIndex+64 < lead.AppliedIndex; behind && st.LeaderID == best.ID {
			t.Fatalf("%s leads with %d of %d entries applied", best.ID, st.AppliedIndex, lead.AppliedIndex)
		}
		if st.LeaderID != best.ID {
			return fmt.Errorf("%s leads", st.LeaderID)
		}
		return nil
	})
	e := electionAfter(t, best, term)
	if e.Trigger != "priority" || e.Term > term+2 {
		t.Errorf("record: %+v, want the take-over in term %d, or the next", e, term+1)
	}
	// A failed take-over would cost an election timeout.
	if gap := time.Duration(e.LeaderlessMS) * time.Millisecond; gap > patientMax/2 {
		t.Errorf("no leader for %v in the take-over", gap)
	}
	t.Logf("no leader for %d ms, no write for %v at most", e.LeaderlessMS, w.end())
}

// pulse writes continuously, and measures the longest time without success.
type pulse struct {
	stop    context.CancelFunc
	running sync.WaitGroup
	longest time.Duration
}

func newPulse(t *testing.T, through []*Node) *pulse {
	ctx, stop := context.WithCancel(t.Context())
	p := &pulse{stop: stop}
	t.Cleanup(func() { p.end() })
	p.running.Go(func() {
		last := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			if !canWrite(ctx, through[i%len(through)], time.Second) {
				continue
			}
			now := time.Now()
			p.longest = max(p.longest, now.Sub(last))
			last = now
		}
	})
	return p
}

// end stops it and returns the longest time between two writes.
func (p *pulse) end() time.Duration {
	p.stop()
	p.running.Wait()
	return p.longest
}
