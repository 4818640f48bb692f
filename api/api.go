// Package api serves a node's HTTP API. A handler decodes a request, makes one call, and encodes the response. The
// package also has authentication, limits, errors, streams and the dashboard.
//
// Routes are rows of one table (table.go). The router, the role checks and the OpenAPI document are made from it.
// Neither net/http's mux nor a router library is used: both clean paths, and a key must be taken as it is.
package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/singleflight"

	"northstar/api/apiv1"
	"northstar/api/attach"
	"northstar/api/forward"
	"northstar/api/leadercall"
	"northstar/api/openapi"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/telemetry"
	"northstar/tracing"
)

// LeadershipMover moves leadership at an operator's request.
type LeadershipMover interface {
	// Plan returns what the request would do. The plan's Actor must execute it. CodeNoLeader: not this node.
	Plan(ctx context.Context, o cluster.LeadershipRequest) (cluster.Plan, error)
	// Execute executes the plan just made for a request, and returns when the target leads, or a *cluster.Error.
	Execute(ctx context.Context, o cluster.LeadershipRequest, p cluster.Plan) (cluster.TransferOutcome, error)
}

// NodeInfo is the identity and configuration of this node. It does not change while the node runs.
type NodeInfo struct {
	ID          cluster.NodeID
	BootID      string
	ClusterName string
	HTTPAddress string // advertised host:port
	RaftAddress string
	Version     string
	StartedAt   time.Time
	Priority    int // initial values: the member record overrides them
	Eligible    bool
	Zone        string
}

// Limits bound what clients can make a node hold. Zero means the default.
type Limits struct {
	Connections int
	// AddressConnections bounds the connections of one address. Loopback has no bound if the node has no tokens.
	AddressConnections int
	// AnonymousConnections bounds those on which no caller with an identity has called. Beyond it idle ones are closed.
	AnonymousConnections int
	Requests             int // in flight, without streams, health checks and /admin
	AdminCalls           int // of /admin, in flight
	Bodies               int // that are being received
	Streams              int
	Attached             int   // attached sessions
	WaitingCampaigns     int   // campaigns that wait for their election
	QueuedForLeader      int   // requests queued for a leader
	RequestBytes         int64 // of all request bodies together
	AnswerBytes          int64 // of the values in unread answers and streams
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Connections:          cmp.Or(l.Connections, 16384),
		AddressConnections:   cmp.Or(l.AddressConnections, 1024),
		AnonymousConnections: cmp.Or(l.AnonymousConnections, 2048),
		Requests:             cmp.Or(l.Requests, 2048),
		AdminCalls:           cmp.Or(l.AdminCalls, 256),
		Bodies:               cmp.Or(l.Bodies, 1024),
		Streams:              cmp.Or(l.Streams, 4096),
		Attached:             cmp.Or(l.Attached, 12288),
		WaitingCampaigns:     cmp.Or(l.WaitingCampaigns, 4096),
		QueuedForLeader:      cmp.Or(l.QueuedForLeader, 1024),
		AnswerBytes:          cmp.Or(l.AnswerBytes, 96<<20),
		RequestBytes:         cmp.Or(l.RequestBytes, 128<<20),
	}
}

// Deps are the dependencies of a Server. Only Tracer, Call, ClientTLS, ClientRoots, CallRoots and Tokens may be nil.
type Deps struct {
	Reads      Reads
	Proposals  Proposals
	Membership Membership
	Recovery   Recovery
	Backups    Backups
	Leader     forward.LeaderSource
	Leadership LeadershipMover
	Sessions   Sessions
	// Renewals returns the renewer of this node's attached sessions, which reports to the leader. Server.Run runs it.
	Renewals func(*attach.Server) attach.Renewals
	// Consensus and Call are for the calls to the leader. Call may be nil: then every read goes to the leader by HTTP.
	Consensus  leadercall.Consensus
	Call       func(ctx context.Context, to cluster.NodeID, request []byte) ([]byte, error)
	SplitBrain SplitBrain
	Audit      Auditor
	EventLog   *telemetry.EventLog
	Metrics    *telemetry.Metrics
	Tracer     *tracing.Tracer // nil: no traces
	Logger     hclog.Logger
	Node       NodeInfo

	// Dial connects to another node's HTTP address.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// ClientTLS returns the configuration of a connection to another node's address; nil: plain HTTP between nodes.
	ClientTLS func(addr string) *tls.Config
	// ClientRoots returns the authorities of client certificates, as of the TLS files: another pool after each change
	// of them. nil: no TLS.
	ClientRoots func() *x509.CertPool
	// CallRoots is ClientRoots for the connections of other protocols, if they have authorities of their own.
	CallRoots func() *x509.CertPool
	// AddressOf returns the HTTP address of a node without a member record, "" if unknown.
	AddressOf func(cluster.NodeID) string
	// LeaderProcessDead reports whether the leader's process was found dead. Nothing is sent to a dead leader.
	LeaderProcessDead func(leader cluster.NodeID, term uint64) bool
	// Votes returns the responses that this node, as candidate of a term, has received until now; nil: unknown. The
	// function may be nil.
	Votes func(term uint64) []cluster.Vote
	// VotesGiven returns this node's newest answers to candidates. The function may be nil.
	VotesGiven func() []cluster.VoteGiven
	// Needless returns, by term, why elections that this node started were needless. The function may be nil.
	Needless func() map[uint64]string
	// Silence returns for how long the leader may be silent; nil if that starts nothing. The function may be nil.
	Silence func() *apiv1.Silence
	// Warnings returns the differences between member record and configuration, for /status.
	Warnings func() []string
	// ElectionObstacle returns why this node starts no election by itself; "": it may.
	ElectionObstacle func() string
	// Restart restarts the node once requests in flight are answered.
	Restart func()

	// Entropy is the source of session IDs.
	Entropy io.Reader

	Tokens   func() ([]byte, error) // reads the token file; nil: no token file
	Insecure bool                   // every client is an operator
	// CertRole is the role of a client of another protocol whose certificate is trusted and has no URI of NorthStar, or
	// is of CallRoots; "": such a certificate proves nothing.
	CertRole token.Role
	// PrivateViews makes /status, /v1/cluster and /metrics need an observer.
	PrivateViews bool
	TimeoutMax   time.Duration // election.timeout-max
	Hold         time.Duration // how long a request is held while no leader is known; 0: twice TimeoutMax
	Limits       Limits

	// TransferTimeout is the default timeout of a transfer.
	TransferTimeout time.Duration
}

// Server answers the API's requests.
type Server struct {
	deps     Deps
	limits   Limits
	logger   hclog.Logger
	reads    Reads
	routes   *openapi.Router[handler]
	document []byte // of OpenAPI; all responses share it
	auth     *authenticator
	refusals *keyLimiter[string] // recorded 403s by caller
	leader   *forward.LeaderTracker
	forward  *forward.Forwarder
	attached *attach.Server
	calls    *leadercall.Calls

	loads loads
	views singleflight.Group // requests for the leader's /v1/cluster

	stopping context.Context // ended by Drain
	stop     context.CancelFunc

	entropy sync.Mutex // guards Deps.Entropy

	budgets
	returning *turns // writes of another protocol in progress that return values
	conns     *connTable
	watchers  watchers
	history   history
}

// New returns a Server that does not run yet. It fails if the token file is invalid.
func New(d Deps) (*Server, error) {
	s := &Server{
		deps:   d,
		limits: d.Limits.withDefaults(),
		logger: d.Logger.Named("api"),
		reads:  d.Reads,
		routes: openapi.NewRouter(table), document: openapi.Document(d.Node.Version),
		leader: forward.NewLeaderTracker(d.Leader),

		refusals: newKeyLimiter[string](refusalBurst, refusalRefill),
	}
	s.budgets, s.returning = newBudgets(s.limits), newTurns(maxReturning, maxReturning/2)
	s.conns = newConnTable(s.limits,
		func(p netip.Prefix) bool { return p.Addr().IsLoopback() && s.auth.tokens.Load() == nil },
		func(reason string) { d.Metrics.RPCRejected("http_connection", reason) })
	s.stopping, s.stop = context.WithCancel(context.Background())
	var err error
	if s.auth, err = newAuthenticator(d, s.logger); err != nil {
		return nil, err
	}
	s.forward = forward.New(forward.Config{
		Self: d.Node.ID, Leader: s.leader, Dial: d.Dial, ClientTLS: d.ClientTLS,
		ForwardToken: d.Tokens != nil && d.ClientTLS == nil && !d.Insecure,
		TimeoutMax:   d.TimeoutMax, Hold: d.Hold, EnterQueue: s.enterQueue,
		AddressOf: s.httpAddress, LeaderProcessDead: d.LeaderProcessDead, Refusing: d.SplitBrain.Refusing,
		Stopping: s.stopping,
	})
	s.auth.rootsChanged = s.forward.Reconnect
	s.attached = attach.New(attach.Config{
		BootID: d.Node.BootID, Renewals: d.Renewals, Sessions: d.Sessions, Forward: s.forward,
		Stopping: s.stopping, Leave: s.leaveThisNode, Problem: s.problem,
	})
	s.calls = leadercall.New(leadercall.Config{
		Consensus: d.Consensus, Sessions: d.Sessions, Forward: s.forward, Call: d.Call, TimeoutMax: d.TimeoutMax,
		BootID: d.Node.BootID, Tracer: d.Tracer,
	})
	return s, nil
}

// Calls returns the calls between this node and the leader.
func (s *Server) Calls() *leadercall.Calls { return s.calls }

// Run follows the leader and the token file, renews attached sessions, and samples the dashboard's graphs. Without it,
// requests find no leader.
func (s *Server) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { s.auth.run(ctx) })
	loops.Go(func() { _ = s.attached.Run(ctx) }) // returns when ctx ends
	loops.Go(func() { _ = s.calls.Run(ctx) })
	loops.Go(func() { s.history.run(ctx, s.reads) })
	s.leader.Run(ctx)
	loops.Wait()
	s.forward.Close()
	return nil
}

// QueuedWrites returns the number of unanswered writes that have been queued for a leader.
func (s *Server) QueuedWrites() int { return s.forward.QueuedWrites() }

// httpAddress returns the HTTP address of a node, "" if unknown.
func (s *Server) httpAddress(id cluster.NodeID) string {
	if id == s.deps.Node.ID {
		return s.deps.Node.HTTPAddress
	}
	if m, ok := s.reads.View().Member(id); ok && m.HTTPAddress != "" {
		return m.HTTPAddress
	}
	return s.deps.AddressOf(id)
}

func (s *Server) raftAddress(id cluster.NodeID) string {
	if id == s.deps.Node.ID {
		return s.deps.Node.RaftAddress
	}
	m, _ := s.reads.View().Member(id)
	return m.RaftAddress
}

// Drain makes the node not ready: it serves no write as leader, and its streams end, to be resumed elsewhere.
func (s *Server) Drain() { s.stop() }

func (s *Server) draining() bool { return s.stopping.Err() != nil }

// HTTPServer returns an http.Server with this handler and its limits, for a listener made by Listener.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler:           s,
		ConnContext:       withConn,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestLifetime,
		WriteTimeout:      requestLifetime,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          s.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
}

// headerTimeout limits the time to send a header, and that of a TLS handshake.
const headerTimeout = 10 * time.Second

// requestLifetime limits reading a request and writing its response, but not streams: timeout_ms, and the network.
const requestLifetime = 90 * time.Second
