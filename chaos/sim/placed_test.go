package sim

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/chaos/testenv"
	"northstar/cluster"
	"northstar/node"
	"northstar/transport"
)

// position is that of a node's last log entry.
type position struct{ term, index uint64 }

func (p position) compare(o position) int {
	return cmp.Or(cmp.Compare(p.term, o.term), cmp.Compare(p.index, o.index))
}

// victory is a leader's first message, and the ends of the logs on all disks at that
// time, without entries of the leader's own term.
type victory struct {
	leader     cluster.NodeID
	at         time.Time
	timeoutNow time.Time // the last TimeoutNow before that
	wrote      time.Time // its first entries were sent
	logs       map[cluster.NodeID]position
}

// victories notes each term's.
type victories struct {
	mu         sync.Mutex
	start      time.Time
	timeoutNow time.Time                 // the last TimeoutNow
	stores     map[cluster.NodeID]*Store // of the processes that run now
	terms      map[uint64]victory
}

// placed has the nodes of a run be of different priority, the first of the
// highest, and notes who wins.
func placed(cfg *Config, change func(*node.Config)) *victories {
	v := &victories{stores: map[cluster.NodeID]*Store{}, terms: map[uint64]victory{}}
	cfg.Build = func(env Env) (Node, error) {
		v.mu.Lock()
		if v.start.IsZero() {
			v.start = time.Now()
		}
		v.stores[env.ID] = env.Store
		v.mu.Unlock()
		env.Faults = overheard{env.Faults, v.hear}
		return buildNode(env, func(c *node.Config) {
			c.Priority, c.Failover.TakeoverDelay = priorityOf(c.ID), time.Hour
			change(c)
		})
	}
	return v
}

func priorityOf(id cluster.NodeID) int { return 200 - int(id[1]-'0') }

// hear sees who speaks as leader.
func (v *victories) hear(m transport.Message) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch m.Kind {
	case "timeout_now":
		v.timeoutNow = time.Now()
	case "append", "heartbeat", "snapshot":
		won, known := v.terms[m.Term]
		if !known {
			won = victory{leader: m.From, at: time.Now(), timeoutNow: v.timeoutNow, logs: map[cluster.NodeID]position{}}
			for id, s := range v.stores {
				won.logs[id] = lastBefore(s, m.Term)
			}
		}
		if m.Kind == "append" && won.wrote.IsZero() {
			won.wrote = time.Now()
		}
		v.terms[m.Term] = won
	}
}

// lastBefore is the last entry on a disk of a term before that one.
func lastBefore(s *Store, term uint64) position {
	log := s.Log()
	last, _ := log.LastIndex()
	var e raft.Log
	for ; last > 0 && log.GetLog(last, &e) == nil; last-- {
		if e.Term < term {
			return position{e.Term, e.Index}
		}
	}
	return position{}
}

// ordered returns the victories as they came.
func (v *victories) ordered() []victory {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []victory
	for _, won := range v.terms {
		all = append(all, won)
	}
	slices.SortFunc(all, func(a, b victory) int { return a.at.Compare(b.at) })
	return all
}

// around returns the leader at a moment and the first one after it.
func around(all []victory, at time.Time) (before, after victory, ok bool) {
	next := slices.IndexFunc(all, func(w victory) bool { return w.at.After(at) })
	if next < 1 {
		return before, after, false
	}
	return all[next-1], all[next], true
}

// best is who should win when a leader has failed: of the others with the newest
// log the one of the highest priority.
func (w victory) best(failed cluster.NodeID) (id cluster.NodeID) {
	for other := range w.logs {
		if other == failed {
			continue
		}
		if id == "" || cmp.Or(w.logs[other].compare(w.logs[id]), cmp.Compare(priorityOf(other), priorityOf(id))) > 0 {
			id = other
		}
	}
	return id
}

// Of five nodes with a priority each, the best placed wins when the leader dies or
// falls silent: the highest priority of those with the newest log.
func TestSimBestPlacedWins(t *testing.T) {
	const want = 98 // percent
	seeds := testenv.Repeats(2)
	each := int(number(t, "NORTHSTAR_SIM_ROUNDS", 12))
	for _, kind := range []FaultKind{Kill, PowerLoss, Isolate, Deafen, Mute, Pause, StallDisk} {
		t.Run(string(kind), func(t *testing.T) {
			best, of := 0, 0
			// Few elections say nothing about one of them that another node won: more follow then.
			for seed := 0; seed < seeds || best*100 < want*of && seed < 10*seeds; seed++ {
				best, of = best+bestPlaced(t, kind, uint64(seed), each), of+each
			}
			t.Logf("the best placed won %d of %d", best, of)
			if best*100 < want*of {
				t.Errorf("the best placed won %d of %d, want %d of 100", best, of, want)
			}
		})
	}
}

// bestPlaced loses one leader after the other, so many times, and counts after how
// many of them the best placed won.
func bestPlaced(t *testing.T, kind FaultKind, seed uint64, times int) (best int) {
	const apart, lasts = 3 * time.Second, 700 * time.Millisecond // a leader is back for long before the next fails
	cfg := DefaultConfig(seed, 5)
	cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners = 1, 0, 0, 0
	for i := range times {
		cfg.Plan = append(cfg.Plan, Fault{
			Kind: kind, A: AnyLeader, At: 2*time.Second + time.Duration(i)*apart,
			For: lasts,
		})
	}
	cfg.Length = cfg.Plan[times-1].At + time.Second
	v := placed(&cfg, func(*node.Config) {})
	if _, report := Run(t, cfg); report != "" {
		t.Fatal(report)
	}
	all := v.ordered()
	for _, f := range cfg.Plan {
		before, after, ok := around(all, v.start.Add(f.At))
		switch {
		case !ok:
			t.Fatalf("no leader after %v", f)
		case after.leader == after.best(before.leader):
			best++
		default:
			t.Logf("seed %d, %v: %s leads after %s, and not %s: %v", seed, f, after.leader, before.leader,
				after.best(before.leader), after.logs)
		}
	}
	return best
}

// A leader that hears no other, or whose disk hangs, is replaced before its lease ends or its disk counts as stalled.
func TestSimYieldingLeader(t *testing.T) {
	const times, apart, lasts = 36, 3 * time.Second, 700 * time.Millisecond // of 12, the median is up to 141 ms
	for _, kind := range []FaultKind{Deafen, StallDisk} {
		t.Run(string(kind), func(t *testing.T) {
			cfg := DefaultConfig(1, 3)
			cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners = 1, 0, 0, 0
			for i := range time.Duration(times) {
				cfg.Plan = append(cfg.Plan, Fault{Kind: kind, A: AnyLeader, At: 2*time.Second + i*apart, For: lasts})
			}
			cfg.Length = cfg.Plan[times-1].At + time.Second
			v := placed(&cfg, func(*node.Config) {})
			if _, report := Run(t, cfg); report != "" {
				t.Fatal(report)
			}
			var took []time.Duration
			for _, f := range cfg.Plan {
				at := v.start.Add(f.At)
				_, after, ok := around(v.ordered(), at)
				if !ok {
					t.Fatalf("no leader after %v", f)
				}
				took = append(took, after.at.Sub(at))
			}
			slices.Sort(took)
			t.Log(took)
			if median := took[times/2]; median >= 140*time.Millisecond {
				t.Errorf("another node leads after %v in the median", median)
			}
		})
	}
}

// Two halves of the cluster cannot reach each other, or only in one direction. The nodes
// between them reach both. A leader serves within a second, and no other node is
// elected until the links are back.
func TestSimBridge(t *testing.T) {
	const lasts, pause = 3 * time.Second, 2 * time.Second
	ways := map[string][2]bool{"both ways": {true, true}, "one way": {true, false}, "the other way": {false, true}}
	for _, tt := range []struct {
		nodes   int
		bridges []pairs
	}{
		{3, []pairs{{{0, 1}}, {{0, 2}}, {{1, 2}}}},
		{5, []pairs{{{0, 3}, {0, 4}, {1, 3}, {1, 4}}, {{0, 1}}, {{1, 2}, {1, 3}, {4, 2}, {4, 3}}}},
	} {
		for way, cut := range ways {
			t.Run(fmt.Sprintf("%d nodes, %s", tt.nodes, way), func(t *testing.T) {
				for seed := range uint64(testenv.Repeats(2)) {
					cfg := DefaultConfig(seed, tt.nodes)
					cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners = 2, 0, 0, 0
					cfg.MaxGap = time.Second
					var from []time.Duration
					at := 2 * time.Second
					for _, bridge := range tt.bridges {
						from = append(from, at)
						cfg.Plan = append(cfg.Plan, bridge.faults(at, lasts, cut)...)
						at += lasts + pause
					}
					cfg.Length = at
					words := listen(&cfg, func(c *node.Config) { c.Failover.TakeoverDelay = time.Hour })
					if _, report := Run(t, cfg); report != "" {
						t.Error(report)
					}
					for i, cutAt := range from {
						if n := words.between(cutAt+time.Second, cutAt+lasts); n > 0 {
							t.Errorf("seed %d, %v cut at %v: %d elections once a leader was there", seed, tt.bridges[i],
								cutAt, n)
						}
						if n := words.between(cutAt, cutAt+time.Second); n > 1 {
							t.Errorf("seed %d, %v cut at %v: %d elections in its first second", seed, tt.bridges[i],
								cutAt, n)
						}
					}
				}
			})
		}
	}
}

// pairs are of nodes whose link is cut.
type pairs [][2]int

func (c pairs) faults(at, lasts time.Duration, way [2]bool) (all []Fault) {
	for _, pair := range c {
		if way[0] {
			all = append(all, Fault{Kind: CutOne, A: pair[0], B: pair[1], At: at, For: lasts})
		}
		if way[1] {
			all = append(all, Fault{Kind: CutOne, A: pair[1], B: pair[0], At: at, For: lasts})
		}
	}
	return all
}

// between counts the terms whose leader first spoke from one moment to another.
func (f *firstWords) between(from, to time.Duration) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, at := range f.said {
		if d := at.Sub(f.start); d > from && d < to {
			n++
		}
	}
	return n
}
