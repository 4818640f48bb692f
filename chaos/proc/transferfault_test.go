package proc

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/api/apiv1"
)

// moment is about how long a transfer takes. A fault within it may come before the target receives TimeoutNow, during
// its election, or after it.
const moment = 8 * time.Millisecond

// recorded waits until a node has a record of who won the term or a later one, and returns the elections that it knows.
func recorded(t *testing.T, n *Node, term uint64) []apiv1.Election {
	t.Helper()
	var all []apiv1.Election
	eventually(t, soon, func() (err error) {
		all, err = elections(t.Context(), n)
		if err == nil && (len(all) == 0 || all[0].Term < term) {
			err = fmt.Errorf("%s has no record of term %d: %+v", n.ID, term, all)
		}
		return err
	})
	return all
}

// trueAnswer compares the response to a transfer that began in a term with the cluster's election records: it arrived,
// or another node leads instead. A write precedes it, so that the current leader is recorded.
func trueAnswer(t *testing.T, m moved, old, target, witness *Node, term uint64) {
	t.Helper()
	switch {
	case m.Status == http.StatusOK:
		if m.NewLeaderID != target.ID || m.Term <= term {
			t.Errorf("%s was named in term %d: %+v", target.ID, term, m)
		}
		// A leader that failed immediately may have left no record: then no other node has one either.
		if all := recorded(t, witness, term); slices.ContainsFunc(all,
			func(e apiv1.Election) bool { return e.Term == m.Term && e.CandidateID != target.ID }) {
			t.Errorf("another has won term %d: %+v", m.Term, all)
		}
	case m.Code != 4003:
		if strict() { // a busy machine may hold an election in between
			t.Errorf("answer: %+v", m)
		}
	case m.Status == http.StatusConflict && m.LeaderID != old.ID && strict(): // the same
		t.Errorf("it failed before %s was told, and %q leads, not %s: %+v", target.ID, m.LeaderID, old.ID, m)
	case m.LeaderID == "":
		switch {
		case strict():
			t.Errorf("it names no leader: %+v", m)
		case !strings.Contains(m.Detail, "no leader is known"):
			recorded(t, witness, term+1) // on a busy machine, the leader lost its lead just before the answer
		}
	default:
		if all := recorded(t, witness, term); !slices.ContainsFunc(all,
			func(e apiv1.Election) bool { return e.CandidateID == m.LeaderID && e.Term >= term }) {
			t.Errorf("%s has led no term since %d: %+v, %+v", m.LeaderID, term, m, all)
		}
	}
}

// strict reports that the machine has no other load.
func strict() bool { return os.Getenv("NORTHSTAR_TRANSFER_FAULTS") != "" }

// targetFails transfers leadership repeatedly to a node that fails meanwhile. Writes through the others continue:
// within a second on a machine without other load.
func targetFails(t *testing.T, c *Cluster, during func(target *Node) error, after func(target *Node) error) {
	t.Helper()
	answers := map[int]int{}
	var gaps []time.Duration
	for round := range rounds(t, "NORTHSTAR_TRANSFER_FAULTS", 2) {
		old := steadyUnderWrites(t, c)
		rest := others(c, old)
		target, third := rest[0], rest[1]
		if rand.IntN(2) == 0 {
			target, third = third, target
		}
		term := mustStatus(t, old).Term
		asked := []*Node{old, third}[rand.IntN(2)]
		writes := newPulse(t, []*Node{old, third})
		answer := make(chan moved, 1)
		first := round%2 == 0 // before the leader can have noticed, and so before the target receives TimeoutNow
		if first {
			if err := during(target); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			answer <- move(t, asked, "/admin/transfer", fmt.Sprintf(`{"target_leader_id":%q,"timeout_ms":10000,"reason":"drill"}`, target.ID))
		}()
		if !first {
			pause(rand.N(moment))
			if err := during(target); err != nil {
				t.Fatal(err)
			}
		}
		m := <-answer
		answers[m.Status]++
		mustPut(t, &Cluster{Nodes: []*Node{old, third}}, "k", "after it")
		trueAnswer(t, m, old, target, third, term)
		gaps = append(gaps, writes.end())
		if err := after(target); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(gaps)
	t.Logf("answers by status: %v; the longest time without a write: p50 %v, max %v", answers, gaps[len(gaps)/2],
		gaps[len(gaps)-1])
	if strict() && gaps[len(gaps)-1] > time.Second {
		t.Errorf("no write for %v", gaps[len(gaps)-1])
	}
}

// The target of a transfer is killed, stopped, or disconnected during the transfer. Soon there is a leader, writes
// continue, and the response names the leader. NORTHSTAR_TRANSFER_FAULTS=20 runs 20 of each, with a limit of a second.
func TestTransferTargetFails(t *testing.T) {
	t.Parallel()
	t.Run("killed", func(t *testing.T) {
		c := newCluster(t, 3, "--failover-takeover-delay", "1h")
		start(t, c)
		targetFails(t, c, func(n *Node) error { n.Kill(); return nil }, c.StartNode)
	})
	t.Run("paused", func(t *testing.T) {
		c := newCluster(t, 3, "--failover-takeover-delay", "1h")
		start(t, c)
		targetFails(t, c, (*Node).Pause, func(n *Node) error { return n.Signal(syscall.SIGCONT) })
	})
	t.Run("cut off", func(t *testing.T) {
		c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--insecure")
		w := newNetwork(t, c)
		start(t, c)
		targetFails(t, c, w.Isolate, func(*Node) error { return w.Heal() })
	})
}

// A target lags far behind. The old leader takes writes until the target has caught up, and the target leads then.
func TestTransferTargetLags(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, append([]string{"--failover-takeover-delay", "1h"}, patient...)...)
	start(t, c)
	old := acquainted(t, c)
	rest := others(c, old)
	target, third := rest[0], rest[1]
	target.Kill()
	value := strings.Repeat("v", 64<<10)
	for i := range 300 { // far more than one message holds
		mustPut(t, c, fmt.Sprintf("k%d", i), value)
	}
	term := mustStatus(t, old).Term
	writes := newPulse(t, []*Node{old, third})
	if err := c.StartNode(target); err != nil {
		t.Fatal(err)
	}
	var m moved
	eventually(t, soon, func() error { // refused until it is in contact
		m = move(t, third, "/admin/transfer", fmt.Sprintf(`{"target_leader_id":%q,"reason":"drill"}`, target.ID))
		if m.Status == http.StatusConflict {
			trueAnswer(t, m, old, target, third, term)
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	if trueAnswer(t, m, old, target, third, term); m.Status != http.StatusOK {
		t.Errorf("answer: %+v", m)
	}
	after := mustStatus(t, target)
	t.Logf("no write for %v at most; %+v", writes.end(), m)
	if e := electionAfter(t, target, term); e.Term > term+2 || e.Trigger != "transfer" || after.LeaderID != target.ID {
		t.Errorf("%s leads after it; record: %+v, want a transfer in term %d, or the next", after.LeaderID, e, term+1)
	}
	for _, k := range []string{"k0", "k299"} {
		if a := mustGet(t, c, k); string(a.Body) != value {
			t.Errorf("%s holds %d bytes", k, len(a.Body))
		}
	}
}
