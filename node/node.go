// Package node puts one node together. It is the only package that knows all
// others: what they need of each other they name in small interfaces of their
// own, and New hands it in.
package node

import (
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
	"northstar/failover"
	"northstar/roles"
	"northstar/splitbrain"
	"northstar/telemetry"
	"northstar/transfer"
	"northstar/transport"
	"northstar/transport/crashdetect"
)

// ErrRestart ends Run when the node is to be built anew, over the same data
// directory and in the same process: its data has been set aside.
var ErrRestart = errors.New("the node begins anew")

// Node is one member of a cluster, built and not running until Run. Its methods
// may be called from any goroutine.
type Node struct {
	cfg  Config
	env  Env
	log  hclog.Logger
	boot string // random, of this process
	tls  *transport.TLS

	raftListener, httpListener net.Listener
	raftAddr, httpAddr         string // advertised
	crashSocket                *crashdetect.CrashSocket

	journal    *telemetry.Journal
	metrics    *telemetry.Metrics
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
	conns      connCount
	joiner     *joiner // nil: neither join nor discover

	draining         atomic.Bool
	restartRequested chan struct{} // capacity 1: the node is to begin anew
}

// New checks the configuration, binds the listeners, opens the data directory
// and builds everything. It starts nothing. What is wrong with the
// configuration comes as *Problem, all of them joined.
func New(cfg Config, env Env) (*Node, error) {
	if err := cfg.Validate(time.Now()); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, env: env.withDefaults(), restartRequested: make(chan struct{}, 1)}
	n.log = n.env.Logger.With("node_id", string(cfg.ID))
	var err error
	if n.boot, err = newBootID(n.env.Entropy); err != nil {
		return nil, err
	}
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Close gives back what New has taken, for a Node whose Run is never called.
func (n *Node) Close() error {
	var errs []error
	for _, l := range []net.Listener{n.raftListener, n.httpListener} {
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

// build makes everything, from the listeners up.
func (n *Node) build() error {
	if err := n.bind(); err != nil {
		return err
	}
	n.journal = telemetry.NewJournal(n.cfg.ID, n.boot, telemetry.DefaultJournalSize, n.log.Named("event"))
	n.metrics = telemetry.New()
	if n.env.RaftMetrics != nil {
		n.metrics.Registry().MustRegister(n.env.RaftMetrics)
	}
	if n.cfg.TLS.Enabled() {
		var err error
		if n.tls, err = transport.LoadTLS(transport.TLSFiles(n.cfg.TLS), n.log); err != nil {
			return err
		}
	}
	if n.cfg.Failover.ExternalLock != "" {
		n.external = n.newExternalLock()
	}
	if err := n.buildConsensus(); err != nil {
		return err
	}
	n.transfer = transfer.New(nodeWithHealth{n.consensus, n}, transfer.Options{Done: n.onTransfer, ReclaimLeadership: n.campaignAgain, Logger: n.log})
	n.buildFailover()
	n.roles = roles.New(roles.Deps{Consensus: n.consensus, Clock: n.env.LeaseClock, Event: n.journal.Append, Logger: n.log})
	n.consensus.AddLeaderTask("roles", n.roles.Lead)
	n.buildSplitBrainDetector()
	n.buildAudit()
	if n.external != nil {
		n.consensus.AddLeaderTask("external lock", n.external.runWhileLeader)
	}
	var err error
	if n.api, err = api.New(n.apiDeps()); err != nil {
		return err
	}
	n.http = n.api.HTTPServer()
	n.http.ConnState = n.conns.track
	n.metrics.SetSource(telemetry.StateSource{Status: n.consensus.Status, Peers: nodeWithHealth{n.consensus, n}.Peers, Roles: n.metricRoles, AuditDropped: n.auditDropped, Reloads: n.reloadProblems})
	n.joiner, err = n.newJoiner()
	return err
}

// bind opens the listeners first, so that nothing is touched when another
// process has the port.
func (n *Node) bind() (err error) {
	if n.raftListener, err = n.env.Listen(n.cfg.RaftAddr); err != nil {
		return fmt.Errorf("raft-addr: %w", err)
	}
	if n.httpListener, err = n.env.Listen(n.cfg.HTTPAddr); err != nil {
		return fmt.Errorf("http-addr: %w", err)
	}
	if n.crashSocket, err = crashdetect.NewCrashSocket(n.raftListener); err != nil {
		n.log.Info("a sudden death of this process will be noticed a little later", "error", err)
	}
	n.raftAddr = advertised(n.cfg.AdvertisedRaft(), n.raftListener)
	n.httpAddr = advertised(n.cfg.AdvertisedHTTP(), n.httpListener)
	return nil
}

// advertised is the configured address, with the port that was bound in the
// place of 0.
func advertised(configured string, l net.Listener) string {
	host, port, err := net.SplitHostPort(configured)
	_, bound, err2 := net.SplitHostPort(l.Addr().String())
	if err != nil || err2 != nil || port != "0" {
		return configured
	}
	return net.JoinHostPort(host, bound)
}

// buildConsensus makes the transport and the consensus node, which need each
// other: the transport's questions go through n, and none is asked before Run.
func (n *Node) buildConsensus() error {
	var err error
	members := &membership{n: n}
	if n.transport, err = transport.New(n.transportConfig(members)); err != nil {
		return err
	}
	store, err := n.env.OpenStorage(storage.Options{Dir: n.cfg.DataDir, Reserve: uint64(n.cfg.Disk.Reserve), Logger: n.log})
	if err != nil {
		return err
	}
	n.consensus, err = consensus.New(n.consensusConfig(), n.consensusDeps(store))
	members.Node = n.consensus
	return configProblem(err)
}

// configProblem makes a configuration that does not fit the data directory what it
// is to whoever starts the node: a problem of the configuration.
func configProblem(err error) error {
	var bad *consensus.ConfigError
	if errors.As(err, &bad) {
		return &Problem{Message: bad.Error()}
	}
	return err
}

func newBootID(entropy io.Reader) (string, error) {
	var b [8]byte
	if _, err := io.ReadFull(entropy, b[:]); err != nil {
		return "", fmt.Errorf("read random bytes: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// ID is the node's ID.
func (n *Node) ID() cluster.NodeID { return n.cfg.ID }

// HTTPAddr is the advertised HTTP address.
func (n *Node) HTTPAddr() string { return n.httpAddr }

// RaftAddr is the advertised raft address.
func (n *Node) RaftAddr() string { return n.raftAddr }

// Consensus is this node's part in the cluster.
func (n *Node) Consensus() *consensus.Node { return n.consensus }

// Transport is this node's end of all peer traffic.
func (n *Node) Transport() *transport.Transport { return n.transport }

// Journal is what happened on this node.
func (n *Node) Journal() *telemetry.Journal { return n.journal }

// Handler answers the API's requests, for tests that need no connection.
func (n *Node) Handler() http.Handler { return n.api }

// autoFailoverEnabled says whether the cluster may depose a leader, and elect the
// next, without being told to. Before there is a first leader, it may.
func (n *Node) autoFailoverEnabled() bool { return n.consensus.View().AutoFailover(time.Now()) }

// replicationPaused reports whether this node's appends are to fail, so that the
// others elect another leader: its disk is stalled, or it must not lead any more.
func (n *Node) replicationPaused() bool {
	return n.consensus.Stalled() && n.autoFailoverEnabled() || n.consensus.StepDownPending()
}

// Names of the files that are re-read, as metrics have them.
const (
	fileTokens = "tokens"
	fileTLS    = "tls"
)

// reloadProblems says of the files that are re-read why they cannot be used as they are
// now, so that what was read before is in force; "" when they can.
func (n *Node) reloadProblems() map[string]string {
	problems := map[string]string{}
	if n.cfg.Auth.Tokens != "" {
		problems[fileTokens] = n.api.TokenProblem()
	}
	if n.tls != nil {
		problems[fileTLS] = n.tls.Problem()
	}
	return problems
}

// warnings says where the member record differs from the configuration, and which
// files cannot be used as they are now.
func (n *Node) warnings() []string {
	var all []string
	reloads := n.reloadProblems()
	if what := reloads[fileTokens]; what != "" {
		all = append(all, "auth.tokens: the changed file cannot be used, the tokens read before stay in force: "+what)
	}
	if what := reloads[fileTLS]; what != "" {
		all = append(all, "tls: the changed files cannot be used, those read before stay in use: "+what)
	}
	m, ok := n.consensus.View().Member(n.cfg.ID)
	if !ok {
		return all
	}
	note := func(key string, record, configured any) {
		if record != configured {
			all = append(all, fmt.Sprintf("%s is %v in the cluster and %v in this node's configuration: the cluster's counts, PATCH /admin/members/%s changes it", key, record, configured, n.cfg.ID))
		}
	}
	note("priority", m.Priority, n.cfg.Priority)
	note("eligible", m.Eligible, n.cfg.Eligible)
	if n.external != nil && n.consensus.Status().Role == cluster.Leader {
		if err := n.external.mayWrite(); err != nil {
			all = append(all, err.Error())
		}
	}
	note("zone", fmt.Sprintf("%q", m.Zone), fmt.Sprintf("%q", n.cfg.Zone))
	return all
}

// snapshotState gathers what the journal's events are derived from.
func (n *Node) snapshotState() stateSnapshot {
	view := n.consensus.View()
	o := stateSnapshot{
		status: n.consensus.Status(), warnings: n.warnings(), members: map[cluster.NodeID]cluster.Member{},
		pause: pause{!view.AutoFailover(time.Now()), view.Settings()},
	}
	for _, m := range view.Members() {
		o.members[m.ID] = m
	}
	if since := o.status.LeaderSince; !since.IsZero() && time.Since(since) > healthWarmup {
		o.peers = map[cluster.NodeID]cluster.PeerStatus{}
		for _, p := range n.health().Statuses() {
			o.peers[p.ID] = p
		}
	}
	return o
}
