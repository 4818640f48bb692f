package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"northstar/chaos/traffic"
	"northstar/node"
)

// DefaultScenario has every kind of fault at the same time.
const DefaultScenario = "mixed"

// scenarios are the configurations of runs by name. Runs of one scenario differ by their seeds.
var scenarios = map[string]func(seed uint64, nodes int) Config{
	DefaultScenario: DefaultConfig,
	"disk-wipe": func(seed uint64, nodes int) Config { // a node restarts with an empty disk
		cfg := DefaultConfig(seed, nodes)
		cfg.Weights[WipeRejoin] = 3
		return cfg
	},
	"admin-ops": func(seed uint64, nodes int) Config { // an operator moves leadership and changes members
		cfg := DefaultConfig(seed, nodes)
		cfg.Weights = AdminFaults()
		return cfg
	},
	"admin-audit": func(seed uint64, nodes int) Config { // admin calls are compared with the audit log
		cfg := DefaultConfig(seed, nodes)
		cfg.Operators = 3
		return cfg
	},
	"quorum-loss":           quorumLossScenario,
	"snapshot-catchup":      snapshotCatchup,
	"high-fault-rate":       highFaultRate,
	"short":                 short,
	"leader-lease":          leaderLease,
	"no-failover":           noFailover,
	"unelectable-preferred": unelectablePreferred,
	"leader-disk-hang":      leaderDiskHang,
	"unreliable-detector":   unreliableDetector,
	"single-fault-slo":      singleFaultSLO,
	"rejoin-sole-voter":     rejoinSoleVoter,
	"attached-sessions":     attachedSessions,
	"lease-elections":       leaseElections,
	"lease-change":          leaseChange,
	"restore":               restoreFaults,
	"votepower":             votePower,
	"etcd":                  etcdClients,
	"etcd-recipes":          etcdRecipes,
	"silence":               silence,
}

// Sizes are the numbers of nodes that runs have.
var Sizes = []int{3, 5}

// Scenarios are the names of the scenarios.
func Scenarios() []string { return slices.Sorted(maps.Keys(scenarios)) }

// NewConfig returns the configuration of a run of a scenario; "" is DefaultScenario.
func NewConfig(kind string, seed uint64, nodes int) (Config, error) {
	if kind == "" {
		kind = DefaultScenario
	}
	build := scenarios[kind]
	if build == nil {
		return Config{}, fmt.Errorf("scenario %q is none of %v", kind, Scenarios())
	}
	return build(seed, nodes), nil
}

// highFaultRate has four times the default rate of faults and fewer clients. Of four
// seeds, one has an operator, one has leases, and one wipes a disk.
func highFaultRate(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	switch seed % 4 {
	case 0:
		cfg.Weights = AdminFaults()
	case 1:
		withLeases(&cfg)
	case 2:
		cfg.Weights[WipeRejoin] = 1
	}
	cfg.Weights = cfg.Weights.Add(FaultWeights{Bridge: 4, Flap: 4})
	cfg.FaultInterval, cfg.FaultDuration = traffic.Between(
		2*time.Millisecond, 120*time.Millisecond,
	), traffic.Between(5*time.Millisecond, 500*time.Millisecond)
	cfg.Clients, cfg.Campaigners, cfg.ThinkTime = 1, 1, traffic.Between(0, 150*time.Millisecond)
	return cfg
}

// short lasts 3 s: it makes many runs in little time.
func short(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length = 3 * time.Second
	cfg.FaultInterval = traffic.Between(5*time.Millisecond, 300*time.Millisecond)
	cfg.Weights = cfg.Weights.Add(FaultWeights{Bridge: 4, Flap: 4})
	return cfg
}

// leaderLease has nodes that answer reads by a lease. No lease may outlive its leader's term.
func leaderLease(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	withLeases(&cfg)
	cfg.Readers, cfg.HTTPClients, cfg.Campaigners, cfg.EvictInterval = 3, 0, 0, traffic.Range{}
	return cfg
}

// withLeases turns on leader leases and adds faults that take leadership away.
func withLeases(cfg *Config) {
	cfg.Weights[HandOver], cfg.Weights[Demote] = 20, 4
	cfg.Build = configured(func(c *node.Config) { c.Election.Lease = true })
	cfg.Leases = true
}

// noFailover has faults after which the leader must stay. Writes must go on, and a role
// whose holder is gone must be taken over in time.
func noFailover(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	r := rand.New(rand.NewPCG(seed, 0x63616c6d))
	for at := startupTime; at < cfg.Length; at += time.Duration(100+r.IntN(400)) * time.Millisecond {
		f := Fault{
			Kind: SlowDisk, A: AnyFollower, At: at, For: 300 * time.Millisecond,
			Delay: time.Duration(10+r.IntN(80)) * time.Millisecond,
		}
		switch r.IntN(4) {
		case 0:
			f = Fault{Kind: Repeat, At: at, For: 300 * time.Millisecond, Chance: 0.3}
		case 1:
			f = Fault{Kind: Lie, At: at, For: 300 * time.Millisecond, Chance: 0.05}
		}
		cfg.Plan = append(cfg.Plan, f)
	}
	cfg.NoElections, cfg.MaxGap, cfg.Campaigners, cfg.CampaignWait = true, time.Second, 5, 5*time.Second
	return cfg
}

// startupTime is how long a new cluster may take to elect a leader.
const startupTime = traffic.StartupTime

// unelectablePreferred has a node of the highest priority that can never win, because its
// vote requests are dropped. The others must not wait for it for long. A gap is excused
// while that node alone has the most up-to-date log (excludeUnelectableTime).
func unelectablePreferred(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Plan = []Fault{{Kind: DropVotes, A: 0, At: time.Second, For: cfg.Length}}
	for at := 4 * time.Second; at < cfg.Length; at += 5 * time.Second {
		cfg.Plan = append(cfg.Plan, Fault{Kind: Kill, A: AnyLeader, At: at, For: 3 * time.Second})
	}
	cfg.Build = func(env Env) (Node, error) {
		return buildNode(env, func(c *node.Config) {
			c.Failover.Fast, c.Failover.TakeoverDelay = false, time.Hour
			if env.ID == "n1" {
				c.Priority = 200
			}
		})
	}
	cfg.MaxGap = 2500 * time.Millisecond
	return cfg
}

// leaderDiskHang has leaders whose disk hangs: another node must take over.
func leaderDiskHang(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	for at := 3 * time.Second; at < cfg.Length; at += 8 * time.Second {
		cfg.Plan = append(cfg.Plan, Fault{Kind: StallDisk, A: AnyLeader, At: at, For: 5 * time.Second})
	}
	cfg.MaxGap = 3 * time.Second
	return cfg
}

// unreliableDetector corrupts the input of the failure detector most of the time. Probes and claims are corrupt, late
// or lost. Connections are cut in one direction or reset. Leaders crash and hang meanwhile.
func unreliableDetector(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Weights = FaultWeights{
		Lie: 20, Loss: 18, Delay: 22, Reject: 10, CutOne: 8, Deafen: 4, Mute: 4, Kill: 8, Isolate: 5, PowerLoss: 3,
		Pause: 4, StallDisk: 2, SlowDisk: 3, KillVoter: 3,
	}
	cfg.Length = 8 * time.Second
	cfg.Plan = Plan(
		seed, nodes, cfg.Length, cfg.Weights, traffic.Between(5*time.Millisecond, 250*time.Millisecond),
		cfg.FaultDuration,
	)
	for i, f := range cfg.Plan {
		if f.Kind == Loss || f.Kind == Delay {
			cfg.Plan[i].MessageKind = "probe"
		}
	}
	return cfg
}

// quorumLossScenario loses a majority permanently, while other faults go on. An operator recovers a node that is
// left, which begins a new generation. Watches end with the old generation, so there are none.
func quorumLossScenario(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Weights = cfg.Weights.Add(FaultWeights{Bridge: 4, Flap: 4})
	cfg.Length, cfg.ConvergeTimeout, cfg.Watchers = 12*time.Second, time.Minute, 0
	r := rand.New(rand.NewPCG(seed, 0x7265636f))
	f := Fault{
		Kind: Recover, At: traffic.Between(3*time.Second, 7*time.Second).Draw(r),
		For:   traffic.Between(0, 2*time.Second).Draw(r),
		Delay: traffic.Between(0, 2*time.Second).Draw(r), Bits: r.Uint64(),
	}
	cfg.Plan = append(cfg.faults(), f)
	slices.SortStableFunc(cfg.Plan, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return cfg
}

// snapshotCatchup isolates one node at a time until it lacks more than the logs of the
// others keep. It needs a snapshot, whose messages are lost and late. There is no watch:
// one on such a node would be answered that what it missed is compacted. The faults of messages begin one after the
// other: faults that begin at one moment draw the same numbers.
func snapshotCatchup(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length, cfg.FaultInterval = 14*time.Second, traffic.Between(50*time.Millisecond, 1500*time.Millisecond)
	cfg.Clients, cfg.Keys, cfg.ThinkTime, cfg.AnyNodeRatio = 10, 20, traffic.Between(0, 2*time.Millisecond), 0.05
	cfg.HTTPClients, cfg.Watchers, cfg.Campaigners, cfg.EvictInterval = 0, 0, 1, traffic.Range{}
	r := rand.New(rand.NewPCG(seed, 0x62656869))
	cfg.Plan = cfg.faults()
	for at := 1500 * time.Millisecond; at < cfg.Length; at += 7 * time.Second {
		cfg.Plan = append(cfg.Plan, Fault{Kind: Isolate, A: AnyFollower, At: at, For: 5 * time.Second})
		for i, kind := range []FaultKind{Loss, LossReply, Delay, LateReply} {
			cfg.Plan = append(
				cfg.Plan,
				Fault{
					Kind: kind, At: at + time.Duration(4900+i)*time.Millisecond, For: time.Second,
					MessageKind: "snapshot", Chance: 0.1 + 0.5*r.Float64(), Delay: 300 * time.Millisecond,
				},
			)
		}
	}
	slices.SortStableFunc(cfg.Plan, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return cfg
}

// rejoinSoleVoter removes a node that was the only voter for a while, wipes it and adds it
// again. The node is isolated while it catches up: the log that it has by then may end
// with the configuration in which it was the only voter.
func rejoinSoleVoter(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length = 10 * time.Second
	r := rand.New(rand.NewPCG(seed, 0x72657475))
	alone := 800*time.Millisecond + time.Duration(r.IntN(1000))*time.Millisecond
	cfg.Plan = []Fault{{Kind: HandOver, A: 1, B: 0, At: 1200 * time.Millisecond}}
	for i := 1; i < nodes; i++ {
		cfg.Plan = append(cfg.Plan, Fault{Kind: Demote, A: i, At: 1500 * time.Millisecond, For: alone})
	}
	cfg.Plan = append(cfg.Plan,
		Fault{Kind: HandOver, A: 1, B: 1, At: 4 * time.Second},
		Fault{Kind: Remove, A: 0, At: 4500 * time.Millisecond, For: 200 * time.Millisecond},
		Fault{
			Kind: SlowIn, A: 0, At: 4600 * time.Millisecond, For: 3 * time.Second,
			Delay: time.Duration(20+r.IntN(80)) * time.Millisecond,
		},
		Fault{
			Kind: Isolate, A: 0, At: 4800*time.Millisecond + time.Duration(r.IntN(1500))*time.Millisecond,
			For: time.Second,
		})
	return cfg
}

// configured builds nodes with a changed configuration.
func configured(change func(*node.Config)) func(Env) (Node, error) {
	return func(env Env) (Node, error) { return buildNode(env, change) }
}

// etcdClients has clients of the etcd API beside those of the native one: transactions on several keys, leases that
// end, watches, old revisions and compactions.
func etcdClients(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length = 12 * time.Second
	cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners, cfg.EvictInterval = 1, 0, 1, 0, traffic.Range{}
	cfg.EtcdClients, cfg.EtcdHolders, cfg.EtcdWatchers = 3, 2, 2
	cfg.Build = configured(func(c *node.Config) { c.EtcdAddr = etcdAddress(c.ID) })
	return cfg
}

// etcdRecipes has clients that make the requests of clientv3's package concurrency: sessions, elections, mutexes and
// STM.
func etcdRecipes(seed uint64, nodes int) Config {
	cfg := etcdClients(seed, nodes)
	cfg.EtcdClients, cfg.EtcdHolders, cfg.EtcdContenders, cfg.EtcdCounters = 0, 0, 5, 2
	return cfg
}
