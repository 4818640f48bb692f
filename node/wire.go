package node

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"time"

	"northstar/api"
	"northstar/api/apiv1"
	"northstar/api/attach"
	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/raftnode"
	"northstar/consensus/storage"
	"northstar/roles"
	"northstar/transfer"
	"northstar/transport"
)

// Packages that do not import each other recognise these errors by their methods.
var (
	_ transfer.TimeoutNowError  = (*consensus.TransferError)(nil)
	_ raftnode.UndeliveredError = (*transport.TimeoutNowUndelivered)(nil)
)

func (n *Node) transportConfig(members transport.Membership) transport.Config {
	return transport.Config{
		Listener: n.raftListener, CrashSocketPort: n.crashSocket.Port(), Dial: n.env.Dial, Advertise: n.raftAddr,
		Membership: members, Elections: elections{n},
		Claim: n.claim, ConnectionLost: func(l cluster.ConnectionLoss) { n.failover.OnConnectionLost(l) },
		Relayed: n.receiveAuditBatch, Rejected: n.metrics.RPCRejected, InstallRepeated: n.installRepeated,
		ReadOnly: func() bool { return n.consensus.ReadOnly() }, ReplicationPaused: n.replicationPaused,
		TLS: n.tls, ClusterName: n.cfg.ClusterName, Lease: n.cfg.Election.Lease,
		TimeoutMin: n.cfg.Election.TimeoutMin, TimeoutMax: n.cfg.Election.TimeoutMax,
		Faults: n.env.Faults, Logger: n.log,
	}
}

func (n *Node) consensusConfig() consensus.Config {
	c := n.cfg
	cfg := consensus.Config{
		Self: cluster.Peer{
			Identity: cluster.Identity{NodeID: c.ID}, BootID: n.boot, HTTPAddress: n.httpAddr, RaftAddress: n.raftAddr,
			Version: Version, Priority: c.Priority, Eligible: c.Eligible, Zone: c.Zone,
		},
		ClusterName: c.ClusterName, Join: len(c.Join) > 0 || c.Discover != "",
		TimeoutMin: c.Election.TimeoutMin, TimeoutMax: c.Election.TimeoutMax,
		Lease: c.Election.Lease, LeaseDrift: float64(c.Election.LeaseDrift) / 100, AutoFailover: c.Failover.Auto,
		DeadAfter:         c.Members.DeadAfter,
		SnapshotThreshold: c.Snapshot.Threshold, SnapshotInterval: c.Snapshot.Interval,
		TrailingLogs: c.Snapshot.TrailingLogs,
	}
	for _, m := range c.InitialCluster {
		cfg.InitialCluster = append(cfg.InitialCluster, consensus.FirstMember(m))
	}
	return cfg
}

func (n *Node) consensusDeps(store storage.Storage) consensus.Deps {
	deps := consensus.Deps{
		Storage:    store,
		Transport:  func() consensus.Transport { return n.transport.Raft() },
		Bind:       func(c consensus.RaftCallbacks) { n.transport.Raft().Bind(c) },
		Acks:       n.transport.Acks(),
		PeerAck:    n.transport.Acks().Peer,
		ResetPeers: n.transport.ResetPeers,
		Probe:      n.transport.Probe,
		Poll:       n.transport.Poll,
		Logger:     n.log, Entropy: n.env.Entropy, LeaseClock: n.env.LeaseClock,
		Announce: func(ctx context.Context, h cluster.TransferNotice) func() {
			return n.failover.AnnounceTransfer(ctx,
				h)
		},
		HeldWrites: func() int { return n.api.QueuedWrites() },
		Facts:      n.electionFacts,
		Hooks:      n.hooks(),
		ObserveDisk: func(op string, took time.Duration) {
			if op != storage.OpRead {
				n.metrics.Fsync(took)
			}
		},
	}
	deps.MayWrite = n.mayWrite
	return deps
}

func (n *Node) apiDeps() api.Deps {
	deps := api.Deps{
		Reads: nodeWithHealth{n.consensus, n}, Proposals: n.consensus, Membership: n.consensus, Recovery: n.consensus,
		Backups: n.consensus, Leader: n.consensus,
		Leadership: n.failover, Sessions: n.roles, SplitBrain: n.splitBrain, Audit: n.audit, Entropy: n.env.Entropy,
		Journal: n.journal, Metrics: n.metrics, Logger: n.log,
		Renewals: func(r *attach.Server) attach.Renewals { return roles.NewAttachments(r, n.cfg.Election.TimeoutMax) },
		Node: api.NodeInfo{
			ID: n.cfg.ID, BootID: n.boot, ClusterName: n.cfg.ClusterName, HTTPAddress: n.httpAddr,
			RaftAddress: n.raftAddr,
			Version:     Version, StartedAt: time.Now(), Priority: n.cfg.Priority, Eligible: n.cfg.Eligible,
			Zone: n.cfg.Zone,
		},
		Dial: n.env.Dial, AddressOf: n.firstAddress, LeaderProcessDead: n.failover.LeaderDead, Warnings: n.warnings,
		Restart:  n.requestRestart,
		Insecure: n.cfg.Insecure, TimeoutMax: n.cfg.Election.TimeoutMax, TransferTimeout: n.cfg.Transfer.Timeout,
	}
	if n.tls != nil {
		deps.ClientTLS = n.clientTLS
	}
	if file := n.cfg.Auth.Tokens; file != "" {
		deps.Tokens = func() ([]byte, error) { return os.ReadFile(file) }
	}
	return deps
}

// clientTLS returns the TLS configuration for one connection to another node's HTTP address.
func (n *Node) clientTLS(addr string) *tls.Config {
	cfg := n.tls.ClientConfig()
	if host, _, err := net.SplitHostPort(addr); err == nil {
		cfg.ServerName = host
	}
	return cfg
}

// firstAddress returns the HTTP address of a bootstrap member that has no record yet.
func (n *Node) firstAddress(id cluster.NodeID) string {
	m, _ := n.cfg.InitialCluster.find(id)
	return m.HTTPAddress
}

// newJoiner returns nil without join and discover.
func (n *Node) newJoiner() (*joiner, error) {
	if len(n.cfg.Join) == 0 && n.cfg.Discover == "" {
		return nil, nil
	}
	j := &joiner{
		self:      apiv1.MemberAdd{ID: string(n.cfg.ID), RaftAddress: n.raftAddr, HTTPAddress: n.httpAddr},
		addresses: n.cfg.Join, resolver: n.env.Resolver, token: n.cfg.JoinToken, scheme: "http",
		joined: func() bool { return n.consensus.Identity().ClusterID != "" },
		log:    n.log.Named("join"),
	}
	if n.cfg.Discover != "" {
		d, err := parseDiscover(n.cfg.Discover, n.cfg.HTTPAddr)
		if err != nil {
			return nil, err
		}
		j.discovery = &d
	}
	t := &http.Transport{
		DisableKeepAlives: true, // one request per connection
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return n.env.Dial(ctx, addr)
		},
	}
	if n.tls != nil {
		j.scheme = "https"
		t.DialTLSContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
			return n.tls.Dial(ctx, n.env.Dial, addr)
		}
	}
	j.client = &http.Client{Transport: t}
	return j, nil
}
