package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"northstar/node"
)

// DefaultKind is the kind of world that goes on with every fault at once.
const DefaultKind = "mixed"

// kinds are worlds by their name: what differs between them is drawn from the
// seed in each.
var kinds = map[string]func(seed uint64, nodes int) Config{
	DefaultKind: DefaultConfig,
	"disk-wipe": func(seed uint64, nodes int) Config { // a node that comes back with an empty disk is refused for good
		cfg := DefaultConfig(seed, nodes)
		cfg.Mix[WipeRejoin] = 3
		return cfg
	},
	"admin-ops": func(seed uint64, nodes int) Config { // somebody operates the cluster at bad moments
		cfg := DefaultConfig(seed, nodes)
		cfg.Mix = OperatorMix()
		return cfg
	},
	"quorum-loss":           recovery,
	"snapshot-catchup":      behind,
	"high-fault-rate":       dense,
	"short":                 brief,
	"leader-lease":          lease,
	"no-failover":           calm,
	"unelectable-preferred": hushed,
	"leader-disk-hang":      hang,
	"unreliable-detector":   probes,
	"single-fault-slo":      single,
	"rejoin-sole-voter":     returning,
}

// Sizes are the numbers of nodes that worlds have.
var Sizes = []int{3, 5}

// Kinds are the names of the kinds of worlds.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// NewConfig is a world of one kind; "" is DefaultKind.
func NewConfig(kind string, seed uint64, nodes int) (Config, error) {
	if kind == "" {
		kind = DefaultKind
	}
	build := kinds[kind]
	if build == nil {
		return Config{}, fmt.Errorf("scenario %q is none of %v", kind, Kinds())
	}
	return build(seed, nodes), nil
}

// dense has four times as many faults in its time, and fewer clients: for runs of
// a million. Of four seeds, one has an operator as well, one leases, and one a
// node that comes back with an empty disk.
func dense(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	switch seed % 4 {
	case 0:
		cfg.Mix = OperatorMix()
	case 1:
		withLeases(&cfg)
	case 2:
		cfg.Mix[WipeRejoin] = 1
	}
	cfg.Mix = cfg.Mix.Add(Mix{Bridge: 4, Flap: 4})
	cfg.Gap, cfg.Spell = Spell{2 * time.Millisecond, 120 * time.Millisecond}, Spell{5 * time.Millisecond, 500 * time.Millisecond}
	cfg.Clients, cfg.Campaigners, cfg.Think = 1, 1, Spell{0, 150 * time.Millisecond}
	return cfg
}

// brief is over soon: for many worlds in little time.
func brief(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length = 3 * time.Second
	cfg.Gap = Spell{5 * time.Millisecond, 300 * time.Millisecond}
	cfg.Mix = cfg.Mix.Add(Mix{Bridge: 4, Flap: 4})
	return cfg
}

// lease has nodes that answer reads by a lease, which no election and no transfer
// may outlive.
func lease(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	withLeases(&cfg)
	cfg.Readers, cfg.Remotes, cfg.Campaigners, cfg.Evict = 3, 0, 0, Spell{}
	return cfg
}

// withLeases has nodes with leases, and much that takes leadership from those who
// have one.
func withLeases(cfg *Config) {
	cfg.Mix[HandOver], cfg.Mix[Demote] = 20, 4
	cfg.Build = configured(func(c *node.Config) { c.Election.Lease = true })
	cfg.Leases = true
}

// calm has faults that a cluster must hardly notice: nobody loses leadership, no
// write waits for long, and a role whose holder is gone is taken over in time.
func calm(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	r := rand.New(rand.NewPCG(seed, 0x63616c6d))
	for at := calmAfter; at < cfg.Length; at += time.Duration(100+r.IntN(400)) * time.Millisecond {
		f := Fault{Kind: SlowDisk, A: Following, At: at, For: 300 * time.Millisecond, Delay: time.Duration(10+r.IntN(80)) * time.Millisecond}
		switch r.IntN(4) {
		case 0:
			f = Fault{Kind: Repeat, At: at, For: 300 * time.Millisecond, Chance: 0.3}
		case 1:
			f = Fault{Kind: Lie, At: at, For: 300 * time.Millisecond, Chance: 0.05}
		}
		cfg.Plan = append(cfg.Plan, f)
	}
	cfg.Stable, cfg.MaxGap, cfg.Campaigners, cfg.CampaignWait = true, time.Second, 5, 5*time.Second
	return cfg
}

// calmAfter is when a new cluster has elected and made itself known.
const calmAfter = 2 * time.Second

// hushed has a node that is preferred as leader and can never win: none of its
// requests for votes arrives. The others must not wait for it for long, but where
// it has what they lack and they need its vote (excuseGaps).
func hushed(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Plan = []Fault{{Kind: Hush, A: 0, At: time.Second, For: cfg.Length}}
	for at := 4 * time.Second; at < cfg.Length; at += 5 * time.Second {
		cfg.Plan = append(cfg.Plan, Fault{Kind: Kill, A: Leading, At: at, For: 3 * time.Second})
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

// hang has leaders whose disk answers no more for a while: others must take over.
func hang(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	for at := 3 * time.Second; at < cfg.Length; at += 8 * time.Second {
		cfg.Plan = append(cfg.Plan, Fault{Kind: StallDisk, A: Leading, At: at, For: 5 * time.Second})
	}
	cfg.MaxGap = 3 * time.Second
	return cfg
}

// probes has probes and claims that lie, come late, come twice or not at all most
// of the time, connections cut in one direction or reset by a firewall, and leaders
// that die or fall silent meanwhile: what fast failover goes by is wrong, and
// nothing else may be.
func probes(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Mix = Mix{
		Lie: 20, Loss: 10, LossReply: 8, Delay: 10, LateReply: 8, Repeat: 4, Reject: 10, CutOne: 8, Deafen: 4, Mute: 4,
		Kill: 8, Isolate: 5, PowerLoss: 3, Pause: 4, StallDisk: 2, SlowDisk: 3, KillVoter: 3,
	}
	cfg.Length = 8 * time.Second
	cfg.Plan = Plan(seed, nodes, cfg.Length, cfg.Mix, Spell{5 * time.Millisecond, 250 * time.Millisecond}, cfg.Spell)
	for i, f := range cfg.Plan {
		switch f.Kind {
		case Loss, LossReply, Delay, LateReply, Repeat:
			cfg.Plan[i].Of = "probe"
		}
	}
	return cfg
}

// recovery loses a majority for good, in the middle of other faults that go on after,
// and an operator has one of those that are left begin a new generation. Watches end
// with the old one.
func recovery(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Mix = cfg.Mix.Add(Mix{Bridge: 4, Flap: 4})
	cfg.Length, cfg.Settle, cfg.Watchers = 12*time.Second, time.Minute, 0
	r := rand.New(rand.NewPCG(seed, 0x7265636f))
	f := Fault{
		Kind: Recover, At: Spell{3 * time.Second, 7 * time.Second}.draw(r), For: Spell{0, 2 * time.Second}.draw(r),
		Delay: Spell{0, 2 * time.Second}.draw(r), Bits: r.Uint64(),
	}
	cfg.Plan = append(cfg.faults(), f)
	slices.SortStableFunc(cfg.Plan, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return cfg
}

// behind has nodes that miss more than what the others' logs keep, one at a time: they
// get snapshots, which are lost, late, or not answered in time, while everything else
// goes wrong as well. Many clients write without a pause: a watch on such a node would be told
// that what it missed is gone.
func behind(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length, cfg.Gap = 14*time.Second, Spell{50 * time.Millisecond, 1500 * time.Millisecond}
	cfg.Clients, cfg.Keys, cfg.Think, cfg.Roam = 10, 20, Spell{0, 2 * time.Millisecond}, 0.05
	cfg.Remotes, cfg.Watchers, cfg.Campaigners, cfg.Evict = 0, 0, 1, Spell{}
	r := rand.New(rand.NewPCG(seed, 0x62656869))
	cfg.Plan = cfg.faults()
	for at := 1500 * time.Millisecond; at < cfg.Length; at += 7 * time.Second {
		cfg.Plan = append(cfg.Plan, Fault{Kind: Isolate, A: Following, At: at, For: 5 * time.Second})
		for _, kind := range []FaultKind{Loss, LossReply, Delay, LateReply} {
			cfg.Plan = append(cfg.Plan, Fault{Kind: kind, At: at + 4900*time.Millisecond, For: time.Second, Of: "snapshot", Chance: 0.1 + 0.5*r.Float64(), Delay: 300 * time.Millisecond})
		}
	}
	slices.SortStableFunc(cfg.Plan, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return cfg
}

// returning has a node that was the only voter for a while, and is removed, wiped
// and added again. It is cut off while it catches up: the log that it has so far may
// end with the configuration of that time.
func returning(seed uint64, nodes int) Config {
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
		Fault{Kind: SlowIn, A: 0, At: 4600 * time.Millisecond, For: 3 * time.Second, Delay: time.Duration(20+r.IntN(80)) * time.Millisecond},
		Fault{Kind: Isolate, A: 0, At: 4800*time.Millisecond + time.Duration(r.IntN(1500))*time.Millisecond, For: time.Second})
	return cfg
}

// configured builds nodes with a changed configuration.
func configured(change func(*node.Config)) func(Env) (Node, error) {
	return func(env Env) (Node, error) { return buildNode(env, change) }
}
