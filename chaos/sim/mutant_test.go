package sim

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/chaos/check"
	"northstar/chaos/testenv"
	"northstar/cluster"
	"northstar/consensus"
)

// A mutant is a node without one of its guards. Each must be caught within its
// budget of seeds, and the guarded node must pass the same conditions.
type mutant struct {
	name   string
	nodes  int
	budget int           // seeds
	setup  func(*Config) // the conditions, for the guarded node too
	on     variant       // what the guarded node has
	off    variant       // what the mutant has
	mutate func(*Config) // what else is different for it
	want   []string      // the invariants of which one must break
}

func (m mutant) config(seed uint64, guarded bool) Config {
	cfg := DefaultConfig(seed, m.nodes)
	cfg.ConvergeTimeout = 0
	m.setup(&cfg)
	v := m.on
	if !guarded {
		v = m.off
		if m.mutate != nil {
			m.mutate(&cfg)
		}
	}
	cfg.Build = v.build
	return cfg
}

var mutants = []mutant{
	{
		name: "heartbeat fast path", nodes: 5, budget: 80,
		setup: func(c *Config) {
			for at := time.Second; at < c.Length; at += 700 * time.Millisecond {
				c.Plan = append(c.Plan, Fault{Kind: Isolate, A: AnyLeader, At: at, For: 350 * time.Millisecond})
			}
		},
		on: variant{transport: func(_ Env, t consensus.Transport) consensus.Transport {
			return newLatePath(t, 1,
				false)
		}},
		off: variant{transport: func(_ Env, t consensus.Transport) consensus.Transport {
			return newLatePath(t, 1,
				true)
		}},
		want: diverged,
	},
	{
		name: "reads on acknowledgements of older sends", nodes: 3, budget: 20,
		setup: lateAnswers,
		off:   variant{acks: func(a consensus.Acks) consensus.Acks { return anyAcks{a} }},
		want:  []string{check.FreshReads, check.Linearizability},
	},
	{
		name: "a wiped disk votes", nodes: 3, budget: 20,
		setup: func(c *Config) {
			c.Length = 6 * time.Second
			c.Plan = []Fault{
				{Kind: Isolate, A: 0, At: 2 * time.Second, For: time.Second},
				{Kind: WipeRejoin, A: 2, At: 2900 * time.Millisecond, For: 100 * time.Millisecond},
				{Kind: Kill, A: 1, At: 2950 * time.Millisecond, For: 1500 * time.Millisecond},
			}
		},
		mutate: func(c *Config) { c.Disk.WipeKeepsFiles = true },
		want:   diverged,
	},
}

// diverged are the invariants of Raft of which one breaks when two leaders
// write.
var diverged = []string{
	check.OneLeader, check.LogMatching, check.LeaderCompleteness, check.StateMachineSafety,
	check.SameState,
}

// latePath is an unlucky network, and optionally the fast path for heartbeats.
// Some answers to a candidate come just after the first heartbeat of a leader of
// a higher term, most entries come late, and half of the requests of votes.
type latePath struct {
	consensus.Transport
	fast bool // hand heartbeats to the library beside its main loop, as its own network transport does
	seed uint64
	seq  atomic.Uint64

	handler atomic.Pointer[func(raft.RPC)]
	out     chan raft.RPC
	done    chan struct{}
	once    sync.Once

	mu    sync.Mutex
	term  uint64        // the highest of a heartbeat's
	heard chan struct{} // closed when it rises
}

func newLatePath(t consensus.Transport, seed uint64, fast bool) *latePath {
	l := &latePath{
		Transport: t, seed: seed, fast: fast, out: make(chan raft.RPC), done: make(chan struct{}),
		heard: make(chan struct{}),
	}
	go l.pump()
	return l
}

func (l *latePath) pump() {
	for {
		select {
		case rpc := <-l.Transport.Consumer():
			a, ok := rpc.Command.(*raft.AppendEntriesRequest)
			heartbeat := ok && a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && len(a.Entries) == 0 &&
				a.LeaderCommitIndex == 0
			if heartbeat {
				l.hear(a.Term)
			}
			if handler := l.handler.Load(); heartbeat && l.fast && handler != nil {
				go (*handler)(rpc)
				continue
			}
			select {
			case l.out <- rpc:
			case <-l.done:
				return
			}
		case <-l.done:
			return
		}
	}
}

func (l *latePath) hear(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if term > l.term {
		l.term = term
		close(l.heard)
		l.heard = make(chan struct{})
	}
}

// awaitHigher waits until a heartbeat of a term above the given one has come
// and been dealt with, or for the timeout of a candidate.
func (l *latePath) awaitHigher(term uint64) {
	timeout := time.NewTimer(timeoutMax - 10*time.Millisecond)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		higher, heard := l.term > term, l.heard
		l.mu.Unlock()
		if higher {
			time.Sleep(2 * time.Millisecond)
			return
		}
		select {
		case <-heard:
		case <-timeout.C:
			return
		}
	}
}

func (l *latePath) Consumer() <-chan raft.RPC            { return l.out }
func (l *latePath) SetHeartbeatHandler(h func(raft.RPC)) { l.handler.Store(&h) }

func (l *latePath) chance(p float64) bool {
	return float64(mix(l.seed^l.seq.Add(1)<<20)>>11)/(1<<53) < p
}

func (l *latePath) late(limit time.Duration) {
	time.Sleep(time.Duration(mix(l.seed^l.seq.Add(1)<<20) % uint64(limit)))
}

func (l *latePath) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse,
) error {
	if l.chance(0.5) {
		l.late(400 * time.Millisecond)
	}
	term := args.Term
	err := l.Transport.RequestVote(id, target, args, resp)
	if l.chance(0.3) {
		l.awaitHigher(term)
	}
	return err
}

func (l *latePath) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	if args.PrevLogEntry > 0 || len(args.Entries) > 0 {
		l.late(100 * time.Millisecond)
	}
	return l.Transport.AppendEntries(id, target, args, resp)
}

func (l *latePath) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Transport.(raft.WithClose).Close()
}

// lateAnswers lets a leader hear old answers for a while after it can no longer
// speak to anyone.
func lateAnswers(c *Config) {
	r := rand.New(rand.NewPCG(c.Seed, 2))
	c.Clients, c.Readers, c.Timeout = 8, 4, 200*time.Millisecond
	for at := time.Second; at < c.Length; at += 1500 * time.Millisecond {
		slow := 100*time.Millisecond + time.Duration(r.Int64N(int64(40*time.Millisecond)))
		c.Plan = append(c.Plan,
			Fault{Kind: SlowIn, A: AnyLeader, At: at, For: 1200 * time.Millisecond, Delay: slow},
			Fault{
				Kind: Mute, A: AnyLeader, At: at + time.Duration(r.Int64N(int64(500*time.Millisecond))),
				For: 600 * time.Millisecond,
			})
	}
}

func TestMutantsAreCaught(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			for _, seed := range seeds(t, m.budget) {
				if res, _ := Run(t, m.config(seed, false)); breaks(res, m.want) {
					t.Logf("caught by seed %d: %v", seed, res.Violations[0])
					return
				}
			}
			t.Errorf("not caught by %d seeds", m.budget)
		})
	}
}

func TestGuardsHold(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			for _, seed := range seeds(t, testenv.Repeats(3)) {
				if _, report := Run(t, m.config(seed, true)); report != "" {
					t.Error(report)
				}
			}
		})
	}
}

func breaks(r Result, want []string) bool {
	return slices.ContainsFunc(r.Violations, func(v check.Violation) bool { return slices.Contains(want, v.Invariant) })
}

// anyAcks takes every acknowledgement of the last election timeout for one of
// a send since the question, as VerifyLeader takes those that come after it.
type anyAcks struct{ consensus.Acks }

func (a anyAcks) QuorumSince(term uint64, self cluster.NodeID, voters []cluster.NodeID, start time.Time) bool {
	return a.Acks.QuorumSince(term, self, voters, start.Add(-time.Second))
}
