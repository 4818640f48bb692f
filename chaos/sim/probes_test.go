package sim

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"northstar/chaos/testenv"
	"northstar/cluster"
	"northstar/node"
	"northstar/transport"
)

// muffled loses the messages of monitor connections: of all of them, or of the one
// between two nodes. Raft's messages pass.
type muffled struct {
	start time.Time // of the run
	from  time.Duration
	nodes int
	pair  []int // nodes, by their places in the ring behind the leader; nil: all

	mu     sync.Mutex
	leader int // index of the node that led the newest term
	term   uint64
	hits   int
}

// muffle has the nodes of a run not heard on those connections.
func muffle(cfg *Config, from time.Duration, pair []int) *muffled {
	m := &muffled{from: from, nodes: cfg.Nodes, pair: pair}
	build := cfg.Build
	cfg.Build = func(env Env) (Node, error) {
		if m.start.IsZero() {
			m.start = time.Now()
		}
		env.Faults = muffledProcess{env.Faults, m}
		return build(env)
	}
	return m
}

// loses reports whether nothing is heard between two nodes. Called with the lock held.
func (m *muffled) loses(a, b cluster.NodeID) bool {
	place := func(id cluster.NodeID) int { return (int(id[1]-'1') - m.leader + m.nodes) % m.nodes }
	return m.pair == nil || slices.Contains(m.pair, place(a)) && slices.Contains(m.pair, place(b))
}

// muffledProcess is a process whose probes are lost.
type muffledProcess struct {
	transport.Faults
	*muffled
}

// Outgoing loses a probe, and sees who leads.
func (m muffledProcess) Outgoing(msg transport.Message) transport.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch msg.Kind {
	case "append", "heartbeat", "snapshot":
		if msg.Term > m.term {
			m.term, m.leader = msg.Term, int(msg.From[1]-'1')
		}
	case "probe":
		if time.Since(m.start) >= m.from && m.loses(msg.From, msg.To) {
			m.hits++
			return transport.Fault{Drop: true}
		}
	}
	return m.Faults.Outgoing(msg)
}

// All messages of the monitor connections are lost: of all connections, between the
// leader and one follower, or between two followers. Raft's messages arrive. For a
// minute no other node is elected, and writes go on. Where all connections lose their
// messages, a follower that receives nothing for a while changes nothing either. Leaders
// that crash are replaced by Raft's own timers.
func TestSimLostProbesCostNothing(t *testing.T) {
	const from, apart = 2 * time.Second, 4 * time.Second
	lasts := time.Duration(testenv.Repeats(60)) * time.Second
	tests := []struct {
		name string
		pair []int
		plan []Fault // meanwhile
		dies bool    // the leader, in the end
	}{
		{name: "all", dies: true},
		{name: "all, and a follower is deaf now and then", plan: cutInbound(from+apart, from+lasts, apart)},
		{name: "leader and follower", pair: []int{0, 1}},
		{name: "two followers", pair: []int{1, 2}},
	}
	for _, nodes := range []int{3, 5} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%d nodes, %s", nodes, tt.name), func(t *testing.T) {
				cfg := DefaultConfig(uint64(nodes), nodes)
				cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners = 1, 0, 0, 0
				cfg.Length, cfg.MaxGap = from+lasts, time.Second
				cfg.Plan = append([]Fault{}, tt.plan...)
				if tt.dies {
					for range 3 {
						cfg.Plan = append(cfg.Plan, Fault{Kind: Kill, A: AnyLeader, At: cfg.Length, For: time.Second})
						cfg.Length += apart
					}
				}
				words := listen(&cfg, func(*node.Config) {})
				probes := muffle(&cfg, from, tt.pair)
				if _, report := Run(t, cfg); report != "" {
					t.Fatal(report)
				}
				if n := words.between(0, from+lasts); n != 1 || probes.hits == 0 {
					t.Errorf("%d leaders, want the first one only; %d messages lost", n, probes.hits)
				}
				for _, f := range cfg.Plan {
					gap := words.after(words.start.Add(f.At))
					if f.Kind == Kill && (gap < timeoutMin/2 || gap > time.Second) {
						t.Errorf("a leader %v after %v, want one by Raft's timers within 1 s", gap, f)
					}
				}
			})
		}
	}
}

// cutInbound returns faults that repeatedly cut a follower's incoming messages for longer than
// its election timeout.
func cutInbound(from, to, every time.Duration) (plan []Fault) {
	for at := from; at < to; at += every {
		plan = append(plan, Fault{Kind: Deafen, A: AnyFollower, At: at, For: 500 * time.Millisecond})
	}
	return plan
}
