package sim

import (
	"context"
	"errors"
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/storage"
	"northstar/node"
)

// Election timeouts of simulated nodes: the defaults of real ones.
const (
	timeoutMin = 150 * time.Millisecond
	timeoutMax = 300 * time.Millisecond
)

// Addresses of a node in the simulated network.
func raftAddress(id cluster.NodeID) string { return string(id) + ":7700" }
func httpAddress(id cluster.NodeID) string { return string(id) + ":7701" }
func etcdAddress(id cluster.NodeID) string { return string(id) + ":2379" } // in the scenario etcd

// defaults is made once: reading it takes longer than the rest of a start.
var defaults = node.Default()

// buildNode makes a whole node as the programs do, with a changed configuration, on the simulated network and disk.
// Its log is compacted often.
func buildNode(env Env, change func(*node.Config)) (Node, error) {
	cfg := defaults
	cfg.ID, cfg.DataDir, cfg.ClusterName = env.ID, "simulated", "sim"
	cfg.RaftAddr, cfg.HTTPAddr, cfg.Insecure = raftAddress(env.ID), httpAddress(env.ID), true
	cfg.Election.TimeoutMin, cfg.Election.TimeoutMax = timeoutMin, timeoutMax
	cfg.Snapshot.Threshold, cfg.Snapshot.Interval, cfg.Snapshot.TrailingLogs = 100, 500*time.Millisecond, 1000
	for _, id := range env.Members {
		cfg.InitialCluster = append(cfg.InitialCluster, node.InitialMember{
			ID: id, RaftAddress: raftAddress(id),
			HTTPAddress: httpAddress(id),
		})
	}
	change(&cfg)
	n, err := node.New(cfg, node.Env{
		Listen: env.Proc.Listen, Dial: env.Proc.Dial,
		OpenStorage: func(storage.Options) (storage.Storage, error) { return env.Store, nil },
		LeaseClock:  env.Clock, Entropy: env.Entropy,
		Notify: func(string) {}, WatchdogInterval: -1,
		Faults: env.Faults, Logger: env.Logger,
	})
	if err != nil {
		return nil, errors.Join(err, env.Store.Close())
	}
	return whole{n.Consensus(), n}, nil
}

// clockDrift is how far the rates of the clocks of leases and sessions may be from 1.
const clockDrift = 0.05

// drifting is a clock of the bubble's time that runs a little fast or slow, the same in every life of a node.
func drifting(seed uint64, id cluster.NodeID) func() time.Duration {
	draw := float64(hash(seed, string(id), "clock", 0)>>11) / (1 << 53) // from [0, 1)
	rate := 1 + clockDrift*(2*draw-1)
	start := time.Now()
	return func() time.Duration { return time.Duration(rate * float64(time.Since(start))) }
}

// whole is a node as clients of a run see it.
type whole struct {
	*consensus.Node
	node *node.Node
}

func (n whole) Run(ctx context.Context) error { return n.node.Run(ctx) }
