package sim

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"northstar/chaos/testenv"
	"northstar/node"
	"northstar/transport"
)

// overheard calls hear for each message that a process sends.
type overheard struct {
	transport.Faults
	hear func(transport.Message)
}

func (o overheard) Outgoing(m transport.Message) transport.Fault {
	o.hear(m)
	return o.Faults.Outgoing(m)
}

// firstWords notes when each term's leader first spoke.
type firstWords struct {
	start time.Time // of the run
	mu    sync.Mutex
	said  map[uint64]time.Time
}

// listen has the nodes of a run heard, and changes their configuration.
func listen(cfg *Config, change func(*node.Config)) *firstWords {
	words := &firstWords{said: map[uint64]time.Time{}}
	cfg.Build = func(env Env) (Node, error) {
		if words.start.IsZero() {
			words.start = time.Now()
		}
		env.Faults = overheard{env.Faults, words.hear}
		return buildNode(env, change)
	}
	return words
}

func (f *firstWords) hear(m transport.Message) {
	switch m.Kind {
	case "append", "heartbeat", "snapshot":
		f.mu.Lock()
		if f.said[m.Term].IsZero() {
			f.said[m.Term] = time.Now()
		}
		f.mu.Unlock()
	}
}

// after is how long after that moment another leader first spoke.
func (f *firstWords) after(at time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := time.Duration(-1)
	for _, t := range f.said {
		if d := t.Sub(at); d > 0 && (next < 0 || d < next) {
			next = d
		}
	}
	return next
}

// Leaders that are killed, or cut off, are replaced by agreement of the
// survivors, long before any timer would; without agreement they are not.
func TestSimFailoverIsFast(t *testing.T) {
	tests := []struct {
		kind   FaultKind
		share  int           // percent that must be within limit
		limit  time.Duration // with the fast path
		slower time.Duration // than this, for half, without it: medians were 267 to 320 ms
	}{
		{Kill, 95, 25 * time.Millisecond, 150 * time.Millisecond},
		{Isolate, 95, 180 * time.Millisecond, 200 * time.Millisecond},
		{PowerLoss, 95, 180 * time.Millisecond, 200 * time.Millisecond},
	}
	for _, nodes := range []int{3, 5} {
		for _, tt := range tests {
			for _, fast := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s leader of %d, fast %v", tt.kind, nodes, fast), func(t *testing.T) {
					gaps := failovers(t, tt.kind, nodes, fast)
					t.Logf("p50 %v, p90 %v, max %v", gaps[len(gaps)/2], gaps[len(gaps)*9/10], gaps[len(gaps)-1])
					if got := gaps[len(gaps)*tt.share/100]; fast && got > tt.limit {
						t.Errorf("%d of 100 within %v, want %v", tt.share, got, tt.limit)
					}
					if !fast && gaps[len(gaps)/2] < tt.slower {
						t.Errorf("half within %v without the fast path", gaps[len(gaps)/2])
					}
				})
			}
		}
	}
}

// failovers loses one leader after the other and returns the times without one,
// in order.
func failovers(t *testing.T, kind FaultKind, nodes int, fast bool) []time.Duration {
	var gaps []time.Duration
	seeds := uint64(2) // the limits allow one of so many gaps to be longer
	if !fast {
		seeds = 1 // only the median counts
	}
	for seed := range seeds {
		cfg := DefaultConfig(seed, nodes)
		cfg.Length, cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners = 32*time.Second, 1, 0, 0, 0
		for at := 2 * time.Second; at < 30*time.Second; at += 2 * time.Second {
			cfg.Plan = append(cfg.Plan, Fault{Kind: kind, A: AnyLeader, At: at, For: time.Second})
		}
		words := listen(&cfg, func(c *node.Config) { c.Failover.Fast = fast })
		if _, report := Run(t, cfg); report != "" {
			t.Fatal(report)
		}
		for _, f := range cfg.Plan {
			gap := words.after(words.start.Add(f.At))
			if gap < 0 {
				t.Fatalf("no leader after %v", f)
			}
			gaps = append(gaps, gap)
		}
	}
	slices.Sort(gaps)
	return gaps
}

// From empty data directories there is a leader in less than a second.
func TestSimFirstElectionIsFast(t *testing.T) {
	for _, nodes := range []int{3, 5} {
		var took []time.Duration
		for seed := range uint64(testenv.Repeats(20)) {
			cfg := DefaultConfig(seed, nodes)
			cfg.Length, cfg.Clients, cfg.Plan = 2*time.Second, 1, []Fault{}
			words := listen(&cfg, func(*node.Config) {})
			if _, report := Run(t, cfg); report != "" {
				t.Fatal(report)
			}
			took = append(took, words.after(words.start))
		}
		slices.Sort(took)
		t.Logf("%d nodes: p50 %v, max %v", nodes, took[len(took)/2], took[len(took)-1])
		if took[0] < 0 || took[len(took)-1] >= time.Second {
			t.Errorf("%d nodes: first leaders after %v, want less than 1 s", nodes, took)
		}
	}
}

// Followers that die, hang or are slow, connections with the leader that one
// follower alone loses, slow probes and lies in them cost no election.
func TestSimNoNeedlessElection(t *testing.T) {
	faults := []Fault{
		{Kind: Kill, A: AnyFollower},
		{Kind: PowerLoss, A: AnyFollower},
		{Kind: SlowDisk, A: AnyFollower, Delay: 100 * time.Millisecond},
		{Kind: StallDisk, A: AnyFollower},
		{Kind: SlowIn, A: AnyFollower, Delay: 400 * time.Millisecond},
		{Kind: Slow, A: AnyFollower, B: AnyLeader, Delay: 400 * time.Millisecond},
		{Kind: Reject, A: AnyFollower, B: AnyLeader},
		{Kind: Reject, A: AnyLeader, B: AnyFollower},
		{Kind: Delay, Chance: 0.5, Delay: 20 * time.Millisecond},
		{Kind: Lie, Chance: 0.5},
		{Kind: Pause, A: AnyFollower},
	}
	for _, nodes := range []int{3, 5} {
		for seed := range uint64(testenv.Repeats(3)) {
			cfg := DefaultConfig(seed, nodes)
			cfg.Length, cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners = 40*time.Second, 1, 0, 0, 0
			for i, at := 0, 2*time.Second; at < 38*time.Second; i, at = i+1, at+time.Second {
				f := faults[i%len(faults)]
				f.At, f.For = at, 900*time.Millisecond
				cfg.Plan = append(cfg.Plan, f)
			}
			res, report := Run(t, cfg)
			if report != "" {
				t.Error(report)
			}
			if res.Elections != 1 {
				t.Errorf("%d nodes, seed %d: %d elections", nodes, seed, res.Elections)
			}
		}
	}
}

// Of three nodes, the drained one has the newest log when the leader is lost. The
// one that may lead lacks some entries. The drained node leads until the other has
// caught up, without a call of an operator.
func TestSimDrainedVoterHasTheNewestLog(t *testing.T) {
	for seed := range uint64(testenv.Repeats(3)) {
		cfg := DefaultConfig(seed, 3)
		cfg.Length, cfg.Clients, cfg.AnyNodeRatio = 25*time.Second, 3, 1
		cfg.Plan = []Fault{
			{Kind: Drain, A: 1, At: 9 * time.Second, For: 20 * time.Second}, // n1 leads by its priority
			{Kind: Kill, A: 2, At: 11 * time.Second, For: 2 * time.Second},
			{Kind: Kill, A: 0, At: 12900 * time.Millisecond, For: 8 * time.Second},
		}
		cfg.MaxGap = 3 * time.Second
		words := listen(&cfg, func(c *node.Config) {
			if c.ID == "n1" {
				c.Priority = 200
			}
		})
		if _, report := Run(t, cfg); report != "" {
			t.Fatal(report)
		}
		lost := words.start.Add(cfg.Plan[2].At)
		first := words.after(lost)
		then := words.after(lost.Add(first))
		t.Logf("a leader %v after the loss, the next %v later", first, then)
		if then < 0 || then > 2*time.Second {
			t.Errorf("seed %d: the drained node did not hand over soon: %v", seed, then)
		}
	}
}
