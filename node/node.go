// Package node builds one node out of all other packages. Each package names what it needs of others in its own
// small interfaces; New connects them.
package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api"
	"northstar/audit"
	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/storage"
	"northstar/etcd"
	"northstar/failover"
	"northstar/roles"
	"northstar/splitbrain"
	"northstar/state"
	"northstar/telemetry"
	"northstar/tracing"
	"northstar/transfer"
	"northstar/transport"
	"northstar/transport/crashdetect"
)

// ErrRestart ends Run when the data was set aside: the node must be built again, in the same process.
var ErrRestart = errors.New("node restart requested")

// Node is one member of a cluster; it does nothing before Run. Its methods may be called from any goroutine.
type Node struct {
	cfg  Config
	env  Env
	log  hclog.Logger
	boot string // random, of this process
	tls  *transport.TLS
	// etcdTLS is that of the etcd port: tls, unless etcd.tls is set.
	etcdTLS *transport.TLS

	builtAt   time.Time
	storageAt time.Time // when the data directory was open

	raftListener, httpListener net.Listener
	etcdListener               net.Listener // nil: no etcd-addr
	debugListener              net.Listener // nil: no debug-addr
	raftAddr, httpAddr         string       // advertised
	etcdAddr                   string       // advertised; "": no etcd-addr
	crashSocket                *crashdetect.CrashSocket

	eventLog   *telemetry.EventLog
	metrics    *telemetry.Metrics
	tracer     *tracing.Tracer // nil: no tracing.otlp
	transport  *transport.Transport
	consensus  *consensus.Node
	transfer   *transfer.Transfer
	failover   *failover.Controller
	roles      *roles.SessionManager
	audit      *audit.Recorder
	splitBrain *splitbrain.Detector
	external   *externalLock // nil: no failover.external-lock
	api        *api.Server
	http       *http.Server
	etcd       *etcd.Server // nil: no etcd-addr
	conns      connCount
	joiner     *joiner // nil: neither join nor discover

	draining         atomic.Bool
	quotaRefused     atomic.Pointer[time.Time] // when a limit of the state last refused a proposal; nil: never
	lastResort       atomic.Bool               // this leader was elected although its record forbids it, or without one
	restartRequested chan struct{}             // capacity 1
}

// New checks the configuration, binds the listeners, opens the data directory and builds all parts. It starts
// no goroutine. Errors of the configuration are *Problem, joined.
func New(cfg Config, env Env) (*Node, error) {
	if err := cfg.Validate(time.Now()); err != nil {
		return nil, err
	}
	n := &Node{builtAt: time.Now(), cfg: cfg, env: env.withDefaults(), restartRequested: make(chan struct{}, 1)}
	n.log = n.env.Logger.With("node_id", string(cfg.ID))
	var boot [8]byte
	if _, err := io.ReadFull(n.env.Entropy, boot[:]); err != nil {
		return nil, fmt.Errorf("read random bytes: %w", err)
	}
	n.boot = hex.EncodeToString(boot[:])
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Close releases what New acquired, for a Node whose Run is never called.
func (n *Node) Close() error {
	var errs []error
	for _, l := range []net.Listener{n.raftListener, n.httpListener, n.etcdListener, n.debugListener} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	n.crashSocket.Close()
	if n.consensus != nil {
		errs = append(errs, n.consensus.Close())
	}
	return errors.Join(errs...)
}

// build makes all parts, listeners first.
func (n *Node) build() error {
	if err := n.bind(); err != nil {
		return err
	}
	n.eventLog = telemetry.NewEventLog(n.cfg.ID, n.boot, telemetry.DefaultEventLogSize, n.log.Named("event"))
	n.metrics = telemetry.New()
	n.tracer = tracing.New(tracing.Config{
		Endpoint: n.cfg.Tracing.OTLP, Sample: float64(n.cfg.Tracing.Sample) / 100, Node: string(n.cfg.ID),
		Cluster: n.cfg.ClusterName, Version: Version, Logger: n.log.Named("tracing"),
	})
	if n.env.RaftMetrics != nil {
		n.metrics.Registry().MustRegister(n.env.RaftMetrics)
	}
	if err := n.loadTLS(); err != nil {
		return err
	}
	if n.cfg.Failover.ExternalLock != "" {
		n.external = &externalLock{n: n}
	}
	if err := n.buildConsensus(); err != nil {
		return err
	}
	n.transfer = transfer.New(nodeWithHealth{n.consensus, n}, transfer.Options{
		Done: n.onTransfer,
		ReclaimLeadership: func(ctx context.Context, term uint64, h cluster.TransferNotice) error {
			return n.failover.ReclaimLeadership(ctx, term, h)
		},
		Zones: n.cfg.Failover.Zones, Logger: n.log,
	})
	n.buildFailover()
	n.roles = roles.New(roles.Deps{
		Consensus: n.consensus, Clock: n.env.LeaseClock, Event: n.eventLog.Append,
		LeaseGrace: n.cfg.Etcd.LeaseGrace, NodeRetention: n.cfg.Nodes.Retention, Logger: n.log,
	})
	n.consensus.AddLeaderTask(n.roles.Lead)
	n.consensus.AddLeaderTask(n.proposeLimits)
	n.buildSplitBrainDetector()
	n.buildAudit()
	if n.external != nil {
		n.consensus.AddLeaderTask(n.external.runWhileLeader)
	}
	var err error
	if n.api, err = api.New(n.apiDeps()); err != nil {
		return err
	}
	n.http = n.api.HTTPServer()
	n.http.ConnState = n.trackConn
	if n.etcdListener != nil {
		n.etcd = etcd.New(n.etcdDeps())
	}
	n.metrics.SetSource(n.metricSource())
	n.joiner, err = n.newJoiner()
	return err
}

// metricSource has what a scrape of the metrics reads.
func (n *Node) metricSource() telemetry.StateSource {
	build := ReadBuild()
	return telemetry.StateSource{
		Status: n.consensus.Status, Peers: nodeWithHealth{n.consensus, n}.Peers, Draining: n.api.Draining,
		AutoFailover: func(now time.Time) bool { return n.consensus.View().AutoFailover(now) },
		Watchers:     n.watchers, Connections: func() map[string]int {
			return map[string]int{"http": n.api.Connections(), "raft": n.transport.Connections()}
		},
		Roles: n.metricRoles, AuditDropped: n.auditDropped, Reloads: n.reloadProblems, Size: n.stateSize,
		Certificates: n.certificates, SilenceThreshold: func() (time.Duration, bool) {
			t, used := n.failover.Silence()
			return t.Value, used
		},
		Build: telemetry.Build{Version: build.Version, Commit: build.Commit, Go: build.Go},
	}
}

// bind opens the listeners first, so that nothing is changed if another process has the port.
func (n *Node) bind() (err error) {
	if n.raftListener, err = n.env.Listen(n.cfg.RaftAddr); err != nil {
		return fmt.Errorf("raft-addr: %w", err)
	}
	if n.httpListener, err = n.env.Listen(n.cfg.HTTPAddr); err != nil {
		return fmt.Errorf("http-addr: %w", err)
	}
	if n.cfg.EtcdAddr != "" {
		if n.etcdListener, err = n.env.Listen(n.cfg.EtcdAddr); err != nil {
			return fmt.Errorf("etcd-addr: %w", err)
		}
		n.etcdAddr = advertised(n.cfg.AdvertisedEtcd(), n.etcdListener)
	}
	if n.cfg.DebugAddr != "" {
		if n.debugListener, err = n.env.Listen(n.cfg.DebugAddr); err != nil {
			return fmt.Errorf("debug-addr: %w", err)
		}
	}
	if n.crashSocket, err = crashdetect.NewCrashSocket(n.raftListener); err != nil {
		n.log.Info("cannot open the crash socket: peers detect a crash of this process more slowly", "error", err)
	}
	n.raftAddr = advertised(n.cfg.AdvertisedRaft(), n.raftListener)
	n.httpAddr = advertised(n.cfg.AdvertisedHTTP(), n.httpListener)
	return nil
}

// advertised returns the configured address, with the bound port instead of 0.
func advertised(configured string, l net.Listener) string {
	host, port, err := net.SplitHostPort(configured)
	_, bound, err2 := net.SplitHostPort(l.Addr().String())
	if err != nil || err2 != nil || port != "0" {
		return configured
	}
	return net.JoinHostPort(host, bound)
}

// buildConsensus makes the transport and the consensus node. They need each other, so the transport's callbacks
// go through n; none is called before Run.
func (n *Node) buildConsensus() error {
	var err error
	members := &membership{n: n}
	if n.transport, err = transport.New(n.transportConfig(members)); err != nil {
		return err
	}
	store, err := n.env.OpenStorage(storage.Options{
		Dir: n.cfg.DataDir, Reserve: uint64(n.cfg.Disk.Reserve),
		Logger: n.log,
	})
	if err != nil {
		return err
	}
	n.storageAt = time.Now()
	n.consensus, err = consensus.New(n.consensusConfig(), n.consensusDeps(store))
	members.Node = n.consensus
	return configProblem(err)
}

// configProblem turns a consensus.ConfigError into *Problem: the configuration does not fit the data directory.
func configProblem(err error) error {
	var bad *consensus.ConfigError
	if errors.As(err, &bad) {
		return &Problem{Message: bad.Error()}
	}
	return err
}

// Consensus returns the consensus node.
func (n *Node) Consensus() *consensus.Node { return n.consensus }

// Failover returns the controller of failovers.
func (n *Node) Failover() *failover.Controller { return n.failover }

// autoFailoverEnabled reports whether the cluster may replace a leader, or elect its first, without an operator.
func (n *Node) autoFailoverEnabled() bool { return n.consensus.ElectionView().AutoFailover(time.Now()) }

// Names of the reloaded files in metrics.
const (
	fileTokens  = "tokens"
	fileTLS     = "tls"
	fileEtcdTLS = "etcd_tls"
)

// reloadProblems returns, for each reloaded file, why the changed file is not used, or "".
func (n *Node) reloadProblems() map[string]string {
	problems := map[string]string{}
	if n.cfg.Auth.Tokens != "" {
		problems[fileTokens] = n.api.TokenProblem()
	}
	if n.tls != nil {
		problems[fileTLS] = n.tls.Problem()
	}
	if n.etcdTLS != n.tls {
		problems[fileEtcdTLS] = n.etcdTLS.Problem()
	}
	return problems
}

// certificates returns when each certificate expires.
func (n *Node) certificates() map[string]time.Time {
	if n.tls == nil {
		return nil
	}
	own, authority := n.tls.Expiry()
	all := map[string]time.Time{"node": own, "ca": authority}
	if n.etcdTLS != n.tls {
		all["etcd"], all["etcd_ca"] = n.etcdTLS.Expiry()
	}
	return all
}

const noLeaderWhilePaused = "no leader, and automatic failover is paused: only the last leader may be elected " +
	"without an operator; northstarctl failover (POST /admin/failover) elects another node"

// warnings returns differences between member record and configuration, and reload problems.
func (n *Node) warnings() []string {
	var all []string
	reloads := n.reloadProblems()
	if what := reloads[fileTokens]; what != "" {
		all = append(all, "auth.tokens: reload failed, previous tokens remain active: "+what)
	}
	if what := reloads[fileTLS]; what != "" {
		all = append(all, "tls: reload failed, previous certificate remains active: "+what)
	}
	if what := reloads[fileEtcdTLS]; what != "" {
		all = append(all, "etcd.tls: reload failed, previous certificate remains active: "+what)
	}
	leader := n.consensus.Status().LeaderID
	if leader == "" && !n.autoFailoverEnabled() {
		all = append(all, noLeaderWhilePaused)
	} else if what := electionWarning(leader, n.electionObstacle(), time.Since(n.builtAt)); what != "" {
		all = append(all, what)
	}
	view := n.consensus.View()
	members := view.Members()
	if what := lastResortWarning(n.consensus.Status().Servers, members); what != "" {
		all = append(all, what)
	}
	if what := nodeIDsWarning(len(members)); what != "" {
		all = append(all, what)
	}
	in, own := view.Limits(), n.cfg.limits()
	own.KeysPerSession = in.KeysPerSession // not configured
	if in != own && in != (state.Limits{}) {
		all = append(all, fmt.Sprintf("limits: %v of state and %d sessions per identity are in force, and this node's "+
			"configuration says %v and %d (the leader's configuration counts)", Size(in.StateBytes),
			in.SessionsPerIdentity, Size(own.StateBytes), own.SessionsPerIdentity))
	}
	if what := n.consensus.LeaseObstacle(); what != "" {
		all = append(all, "election.lease: with this node as leader, consistency=lease reads as linearizable: "+what)
	}
	m, ok := view.Member(n.cfg.ID)
	if !ok {
		return all
	}
	note := func(key string, record, configured any) {
		if record != configured {
			all = append(all,
				fmt.Sprintf(
					"%s: cluster value %v overrides configured value %v (change it with PATCH /admin/members/%s)",
					key, record, configured, n.cfg.ID))
		}
	}
	note("priority", m.Priority, n.cfg.Priority)
	note("eligible", m.Eligible, n.cfg.Eligible)
	if n.consensus.Status().Role == cluster.Leader {
		if err := n.mayWrite(); err != nil {
			all = append(all, err.Error())
		}
	}
	note("zone", fmt.Sprintf("%q", m.Zone), fmt.Sprintf("%q", n.cfg.Zone))
	return all
}

// snapshotState returns the state that the event log's events are derived from.
func (n *Node) snapshotState() stateSnapshot {
	view := n.consensus.View()
	o := stateSnapshot{
		status: n.consensus.Status(), warnings: n.warnings(), members: map[cluster.NodeID]cluster.Member{},
		pause: pause{!view.AutoFailover(time.Now()), view.Settings()}, quotaExceeded: n.quotaExceeded(),
		stateBytes: view.StateBytes(), limits: view.Limits(),
	}
	for _, m := range view.Members() {
		o.members[m.ID] = m
	}
	if since := o.status.LeaderSince; !since.IsZero() && time.Since(since) > healthWarmup {
		o.peers = map[cluster.NodeID]cluster.PeerStatus{}
		for _, p := range (nodeWithHealth{n.consensus, n}).Peers() {
			o.peers[p.ID] = p
		}
	}
	return o
}
