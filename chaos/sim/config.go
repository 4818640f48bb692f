package sim

import (
	"io"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/chaos/check"
	"northstar/chaos/traffic"
	"northstar/cluster"
	"northstar/node"
	"northstar/transport"
)

// Config describes a simulation run: the cluster, its faults and its clients.
type Config struct {
	traffic.Config // the clients; Seed, Start, Rand and Local are set by the simulation

	Seed          uint64
	Nodes         int
	Length        time.Duration // of the time with faults, which is virtual
	Weights       FaultWeights
	FaultInterval traffic.Range // between the beginnings of two faults
	FaultDuration traffic.Range
	Plan          []Fault // nil: drawn from Seed

	Net  NetOptions
	Disk DiskOptions

	// Leases is set when the nodes have leases. No two may be valid at the same time.
	Leases bool
	// NoElections is set when no fault is a reason for another leader than that of startupTime.
	NoElections bool
	// CheckSilence is set when thresholds of silence and the number of needless elections are checked.
	CheckSilence bool
	// MaxGap is the longest time without an acknowledged write before the faults are healed. 0: any.
	MaxGap time.Duration
	// ConvergeTimeout is how long the cluster may take, after the last fault is healed,
	// to have a leader, to take a write and to agree. 0: the run does not wait for it.
	ConvergeTimeout time.Duration

	Timeline bool // the run has a report also when nothing is violated
	Build    func(Env) (Node, error)
}

// DefaultConfig is a run of 20 s of virtual time on a local network, with a fault about every 150 ms.
func DefaultConfig(seed uint64, nodes int) Config {
	return Config{
		Seed: seed, Nodes: nodes, Length: 20 * time.Second, Weights: DefaultFaults(),
		FaultInterval: traffic.Between(10*time.Millisecond, 500*time.Millisecond),
		FaultDuration: traffic.Between(5*time.Millisecond, 900*time.Millisecond),
		Config: traffic.Config{
			Clients: 2, HTTPClients: 1, Watchers: 1, Campaigners: 2, Keys: 3, AnyNodeRatio: 0.2,
			EvictInterval: traffic.Between(100*time.Millisecond, 4*time.Second),
			ThinkTime:     traffic.Between(0, 30*time.Millisecond), Timeout: time.Second,
			MinTTL: 600 * time.Millisecond,
		},
		Net: DefaultNetOptions(), Disk: DefaultDiskOptions(), ConvergeTimeout: 30 * time.Second,
		Build: configured(func(*node.Config) {}),
	}
}

// Env is what a node gets in place of the real world.
type Env struct {
	ID      cluster.NodeID
	Members []cluster.NodeID // the first members of the cluster, this one included
	Proc    *Proc            // listens and dials
	Store   *Store
	Faults  transport.Faults
	Clock   func() time.Duration // for leases and sessions: runs on while the machine is suspended
	Entropy io.Reader
	Logger  hclog.Logger
}

// Result is what came of a run.
type Result struct {
	Outcome
	Violations []check.Violation
	History    []check.Op
	Commits    uint64 // highest index committed
	Digest     uint64 // of all that happened, in its order
}
