package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"northstar/api"
	"northstar/api/apiv1"
	"northstar/api/attach"
	"northstar/api/token"
	"northstar/audit"
	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/raftnode"
	"northstar/consensus/storage"
	"northstar/health"
	"northstar/roles"
	"northstar/splitbrain"
	"northstar/state"
	"northstar/telemetry"
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
		Replication: peerMessages{n}, Claims: peerMessages{n}, Handler: peerMessages{n}, Events: peerMessages{n},
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
			Version: Version, Priority: c.Priority, Eligible: c.Eligible, Zone: c.Zone, EtcdURL: n.ownEtcdURL(),
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
			return n.failover.AnnounceTransfer(ctx, h)
		},
		HeldWrites: func() int { return n.api.QueuedWrites() },
		Facts:      n.electionFacts,
		Hooks:      n.hooks(),
		DiskHangs:  func() { n.failover.OnDiskHangs() },
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
		Backups: n.consensus, Leader: n.consensus, Consensus: n.consensus, Call: n.call,
		Leadership: n.failover, Sessions: n.roles, SplitBrain: n.splitBrain, Audit: n.audit, Entropy: n.env.Entropy,
		EventLog: n.eventLog, Metrics: n.metrics, Tracer: n.tracer, Logger: n.log,
		Renewals: func(r *attach.Server) attach.Renewals { return roles.NewAttachments(r, n.cfg.Election.TimeoutMax) },
		Node: api.NodeInfo{
			ID: n.cfg.ID, BootID: n.boot, ClusterName: n.cfg.ClusterName, HTTPAddress: n.httpAddr,
			RaftAddress: n.raftAddr,
			Version:     Version, StartedAt: time.Now(), Priority: n.cfg.Priority, Eligible: n.cfg.Eligible,
			Zone: n.cfg.Zone,
		},
		Dial: n.env.Dial, AddressOf: n.firstAddress, LeaderProcessDead: n.failover.LeaderDead, Warnings: n.warnings,
		ElectionObstacle: n.electionObstacle, Restart: n.requestRestart,
		Votes: n.votes, VotesGiven: n.failover.VotesGiven,
		Needless: n.failover.NeedlessElections, Silence: n.silence,
		PrivateViews: !n.cfg.Auth.Public,
		Insecure:     n.cfg.Insecure, TimeoutMax: n.cfg.Election.TimeoutMax, Hold: n.cfg.Failover.Hold,
		TransferTimeout: n.cfg.Transfer.Timeout,
		Limits:          api.Limits{AddressConnections: n.cfg.Limits.ConnectionsPerAddress},
	}
	if role, err := token.ParseRole(n.cfg.Etcd.CertRole); err == nil {
		deps.CertRole = role
	}
	if n.tls != nil {
		deps.ClientTLS, deps.ClientRoots = n.clientTLS, n.tls.Roots
	}
	if n.etcdTLS != n.tls {
		deps.CallRoots = n.etcdTLS.Roots
	}
	if file := n.cfg.Auth.Tokens; file != "" {
		deps.Tokens = func() ([]byte, error) { return os.ReadFile(file) }
	}
	return deps
}

// call sends a request to another node. CodeNoLeader: that node has not received it.
func (n *Node) call(ctx context.Context, to cluster.NodeID, request []byte) ([]byte, error) {
	response, err := n.transport.Call(ctx, to, request)
	if notSent := (*transport.NotSentError)(nil); errors.As(err, &notSent) {
		return nil, cluster.Errorf(cluster.CodeNoLeader, "node %s cannot be reached: %w", to, err)
	}
	return response, err
}

// loadTLS reads the certificates of this node and of its etcd port.
func (n *Node) loadTLS() (err error) {
	if n.cfg.TLS.Enabled() {
		if n.tls, err = transport.LoadTLS(transport.TLSFiles(n.cfg.TLS), n.log); err != nil {
			return err
		}
		n.tls.Require(func(pair *tls.Certificate, authorities *x509.CertPool) error {
			// as at the start: with these files, no peer would talk to this node
			if err := suitsNode(pair, authorities, n.cfg.ClusterName, n.cfg.ID, time.Time{}); err != nil {
				return fmt.Errorf("certificate %s with authorities %s: %w", n.cfg.TLS.Cert, n.cfg.TLS.CA, err)
			}
			return nil
		})
	}
	if n.etcdTLS = n.tls; n.cfg.EtcdAddr != "" && n.cfg.Etcd.TLS.Enabled() {
		n.etcdTLS, err = transport.LoadTLS(transport.TLSFiles(n.cfg.Etcd.TLS), n.log)
	}
	return err
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
			if slices.Contains(n.cfg.Join, addr) {
				return n.tls.Dial(ctx, n.env.Dial, addr)
			}
			// It is from DNS, which can be forged: only a node may read the request, which may have a token.
			return n.tls.DialNode(ctx, n.env.Dial, addr, n.cfg.ClusterName)
		}
	}
	j.client = &http.Client{Transport: t}
	return j, nil
}

// nodeWithHealth is consensus whose Peers also have the health that the peers report about themselves.
type nodeWithHealth struct {
	*consensus.Node
	of *Node
}

// Peers returns what this node knows of the other servers of the configuration.
func (i nodeWithHealth) Peers() []cluster.PeerStatus {
	return health.Assess(health.Input{
		Now: time.Now(), Self: i.Status(), RaftPeers: i.Node.Peers(), Claims: i.of.transport.Claims(),
		MaxSilence: 2 * i.of.cfg.Election.TimeoutMax,
	})
}

// buildSplitBrainDetector builds the detector of second leaders and other clusters.
func (n *Node) buildSplitBrainDetector() {
	n.splitBrain = splitbrain.New(splitbrain.Config{
		Self: n.cfg.ID, BootID: n.boot, RaftAddress: n.raftAddr, Interval: n.cfg.SplitBrain.Interval,
		TimeoutMin: n.cfg.Election.TimeoutMin, TimeoutMax: n.cfg.Election.TimeoutMax,
	}, splitbrain.Deps{
		Self: n.consensus.Claim, Servers: n.consensus.Servers,
		Claims: n.transport.Claims, Changed: n.transport.ClaimsChanged, Poll: n.transport.Poll,
		BroadcastClaim: n.transport.Announce,
		FetchLeader: func(ctx context.Context, id cluster.NodeID) (splitbrain.Answer, string, error) {
			return n.api.AskLeader(ctx, id)
		},
		Probe: func(ctx context.Context, address string) bool {
			_, _, err := n.transport.Probe(ctx, address) // the hello itself reaches the detector through OnHello
			return err == nil || errors.As(err, new(*transport.RefusedError))
		},
		Believes:         n.consensus.BelievesRecovery,
		VerifyLeadership: n.consensus.ReadBarrier, StepDown: n.consensus.StepDown,
		Event: func(e cluster.Event, alarm bool) {
			e.Term = n.consensus.Status().Term
			if alarm {
				n.eventLog.Warn(e)
			} else {
				n.eventLog.Append(e)
			}
		},
		Detected: n.metrics.SplitBrain,
	})
}

// vacantRoleMetricTTL is how long a vacant role without candidates stays in the metrics, for an alert.
const vacantRoleMetricTTL = 24 * time.Hour

// metricRoles returns the metrics of roles and sessions. Of too many roles it returns the required ones first, and then
// the oldest: a client that makes many new ones hides none.
func (n *Node) metricRoles(limit int) (roles []telemetry.Role, sessions int) {
	v := n.consensus.View()
	return oldestRoles(v, limit), v.Sessions()
}

func oldestRoles(v *state.View, limit int) (roles []telemetry.Role) {
	var all []*state.Role
	for r := range v.RolesAfter("") {
		if exportRole(r, v.Time()) {
			all = append(all, r)
		}
	}
	if len(all) > limit {
		slices.SortStableFunc(all, func(a, b *state.Role) int {
			if a.Required != b.Required {
				return map[bool]int{true: -1, false: 1}[a.Required]
			}
			return cmp.Compare(firstToken(a), firstToken(b))
		})
		all = all[:limit]
	}
	for _, r := range all {
		roles = append(roles, telemetry.Role{
			Name: r.Name, Token: r.Current.Token, Elections: r.Elections, Required: r.Required,
		})
	}
	return roles
}

// firstToken returns the token of the role's oldest tenure that is known. Tokens grow over all roles.
func firstToken(r *state.Role) uint64 {
	switch {
	case len(r.History) > 0:
		return r.History[0].Token
	case r.Held():
		return r.Current.Token
	}
	return math.MaxUint64
}

func exportRole(r *state.Role, now time.Time) bool {
	if r.Required || r.Held() || len(r.Queue) > 0 || len(r.History) == 0 {
		return true
	}
	return now.Sub(time.Unix(0, r.History[len(r.History)-1].EndedAt)) < vacantRoleMetricTTL
}

// auditFile is the file of audit records that are not committed yet.
const auditFile = "audit-spool"

func (n *Node) buildAudit() {
	n.audit = audit.New(audit.Deps{
		Source: string(n.cfg.ID) + "/" + n.boot,
		Send:   n.sendAudit, SendWithin: 2 * n.cfg.Election.TimeoutMax,
		Changed: n.consensus.LeaderChanged,
		Load:    func() ([]byte, error) { return n.consensus.LoadFile(auditFile) },
		Save:    func(data []byte) error { return n.consensus.SaveFile(auditFile, data) },
		Count:   n.metrics.Audit, Logger: n.log,
	})
}

// sendAudit commits a batch of audit records, here or through the leader.
func (n *Node) sendAudit(ctx context.Context, batch state.Command) error {
	leader := n.consensus.Status().LeaderID
	switch {
	case leader == "":
		return fmt.Errorf("no leader known")
	case !n.consensus.Readable(&batch):
		return fmt.Errorf("a member does not support command version %d", batch.MinVersion())
	case leader == n.cfg.ID:
		return n.proposeAudit(ctx, batch)
	}
	data, err := state.EncodeBatch([]state.Command{batch})
	if err != nil {
		return err
	}
	return n.transport.Relay(ctx, leader, data)
}

// auditDropped returns the number of records removed from the cluster's audit log.
func (n *Node) auditDropped() map[string]uint64 {
	dropped := n.consensus.View().AuditCounts().Dropped
	return map[string]uint64{"clients": dropped[state.AuditClients], "operators": dropped[state.AuditOperators]}
}

// proposeAudit commits a batch. No record of it is later than now, by this leader's clock: much older ones are dropped,
// so that a node whose clock is far ahead would end the records of all.
func (n *Node) proposeAudit(ctx context.Context, batch state.Command) error {
	now := time.Now().UnixNano()
	for i := range batch.AuditBatch.Records {
		batch.AuditBatch.Records[i].At = min(batch.AuditBatch.Records[i].At, now)
	}
	result, err := n.consensus.Propose(ctx, batch)
	if err == nil && result.Err != nil {
		return result.Err
	}
	return err
}
