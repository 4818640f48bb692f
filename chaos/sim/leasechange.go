package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"northstar/chaos/traffic"
	"northstar/node"
)

// leaseChange is leaseElections while an operator changes election.lease and the timeouts, one restart after the other.
// The first node has leases and long timeouts, and gets leadership before each burst. Each process of another node has
// the same or not. They are killed often.
func leaseChange(seed uint64, nodes int) Config {
	cfg := leaseElections(seed, nodes)
	cfg.Build = func(env Env) (Node, error) {
		now := uint64(time.Now().UnixNano()) / uint64(time.Second) // virtual: the same in each run of a seed
		draw := hash(seed, string(env.ID), "lease", now)
		return buildNode(env, func(c *node.Config) {
			first := env.ID == env.Members[0]
			c.Election.Lease = first || draw%4 > 0
			if first || draw/4%3 > 0 {
				c.Election.TimeoutMin, c.Election.TimeoutMax = 4*timeoutMin, 4*timeoutMax
			}
		})
	}
	r := rand.New(rand.NewPCG(seed, 0x6368616e))
	for at := 1900 * time.Millisecond; at < cfg.Length; at += 1600 * time.Millisecond {
		cfg.Plan = append(cfg.Plan, Fault{Kind: HandOver, A: 1, B: 0, At: at})
		for range 1 + r.IntN(2) {
			cfg.Plan = append(cfg.Plan, Fault{
				Kind: Kill, A: 1 + r.IntN(nodes-1), At: at + time.Duration(r.IntN(1200))*time.Millisecond,
				For: traffic.Between(5*time.Millisecond, 300*time.Millisecond).Draw(r),
			})
		}
	}
	slices.SortStableFunc(cfg.Plan, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return cfg
}
