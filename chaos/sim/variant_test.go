package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/transport"
)

// variant takes guards off a node, to show that the invariants catch what the
// guards prevent. It is consensus and transport without the rest of a node, so
// that no seam for this is needed in what ships. The zero value has all guards.
type variant struct {
	transport func(Env, consensus.Transport) consensus.Transport
	acks      func(consensus.Acks) consensus.Acks
}

// build makes a node without the variant's guards.
func (v variant) build(env Env) (Node, error) {
	addr := raftAddress(env.ID)
	listener, err := env.Proc.Listen(addr)
	if err != nil {
		return nil, err
	}
	n := &composed{}
	n.transport, err = transport.New(transport.Config{
		Listener: listener, Dial: env.Proc.Dial, Advertise: addr,
		Membership: n, Elections: timersDecide{n: n},
		ClusterName: "sim", TimeoutMin: timeoutMin, TimeoutMax: timeoutMax,
		Replication: n, Claims: timersDecide{n: n}, Events: timersDecide{n: n}, Faults: env.Faults, Logger: env.Logger,
	})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	cfg := consensus.Config{
		Self: cluster.Peer{
			Identity: cluster.Identity{NodeID: env.ID}, BootID: fmt.Sprintf("%s-%d", env.ID, time.Now().UnixNano()),
			RaftAddress: addr, HTTPAddress: string(env.ID) + ":7701", Version: "sim", Priority: cluster.DefaultPriority,
			Eligible: true,
		},
		ClusterName: "sim", TimeoutMin: timeoutMin, TimeoutMax: timeoutMax, AutoFailover: true,
		SnapshotThreshold: 100, SnapshotInterval: 500 * time.Millisecond, TrailingLogs: 1000,
	}
	for _, id := range env.Members {
		cfg.InitialCluster = append(cfg.InitialCluster, consensus.FirstMember{
			ID: id, RaftAddress: raftAddress(id),
			HTTPAddress: string(id) + ":7701",
		})
	}
	n.Node, err = consensus.New(cfg, v.deps(env, n.transport))
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return n, nil
}

func (v variant) deps(env Env, t *transport.Transport) consensus.Deps {
	d := consensus.Deps{
		Storage: env.Store,
		Transport: func() consensus.Transport {
			var trans consensus.Transport = t.Raft()
			if v.transport != nil {
				trans = v.transport(env, trans)
			}
			return trans
		},
		Acks:       t.Acks(),
		Bind:       func(c consensus.RaftCallbacks) { t.Raft().Bind(c) },
		PeerAck:    t.Acks().Peer,
		ResetPeers: t.ResetPeers, Poll: t.Poll, Probe: t.Probe,
		Logger: env.Logger, Entropy: env.Entropy, LeaseClock: env.Clock,
	}
	if v.acks != nil {
		d.Acks = v.acks(d.Acks)
	}
	return d
}

// composed is a consensus node with its transport.
type composed struct {
	*consensus.Node
	transport *transport.Transport
}

// raftDecides leaves every decision to Raft.
type raftDecides struct{}

func (raftDecides) VetoPreVote(cluster.NodeID, time.Time) string                     { return "" }
func (raftDecides) MayIgnoreLeader(cluster.NodeID, uint64, time.Time) bool           { return false }
func (raftDecides) ApproveTimeoutNow(context.Context, cluster.NodeID, uint64) string { return "" }
func (raftDecides) MayStartElection(cluster.ElectionCause) bool                      { return true }

func (raftDecides) VoteObstacle() (kind, why string)       { return "", "" }
func (raftDecides) VoteReceived(cluster.VoteResponse)      {}
func (raftDecides) VoteAnswered(cluster.VoteGiven, string) {}
func (raftDecides) TermRaised(uint64)                      {}

// ReplicationPaused reports whether its disk hangs.
func (n *composed) ReplicationPaused() bool { return n.DiskHangs(true) }

// timersDecide is a node without failover: Raft's timers elect.
type timersDecide struct {
	raftDecides
	n *composed
}

func (t timersDecide) MayStartElection(by cluster.ElectionCause) bool {
	return by != cluster.CauseLeaderFailed || t.n.MayStartElection()
}

func (timersDecide) Claim() cluster.Claim                        { return cluster.Claim{} }
func (timersDecide) OnHeard(cluster.NodeID, *cluster.Claim)      {}
func (timersDecide) OnConnectionLost(cluster.ConnectionLoss)     {}
func (timersDecide) Rejected(string, string)                     {}
func (timersDecide) InstallRepeated(cluster.NodeID, uint64, int) {}

// Run runs both. The transport ends last: the node still needs it to stop.
func (n *composed) Run(ctx context.Context) error {
	tctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { _ = n.transport.Run(tctx) }) // ends with its listener when the process is killed
	err := n.Node.Run(ctx)
	stop()
	wg.Wait()
	return err
}

var _ Node = (*composed)(nil)
