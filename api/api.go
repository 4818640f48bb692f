// Package api is a node's HTTP side: it decodes a request, makes one call, and
// encodes the answer. Authentication, limits, errors, streams, forwarding to
// the leader and the dashboard live here too.
//
// Routes are rows of one table (table.go): the router, the role checks and the
// OpenAPI document are all made from it. There is no net/http mux and no router
// library: both clean paths, and a key must be taken as it is.
package api

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/singleflight"

	"northstar/api/attach"
	"northstar/api/forward"
	"northstar/api/openapi"
	"northstar/cluster"
	"northstar/telemetry"
)

// LeadershipMover moves leadership by an operator's order.
type LeadershipMover interface {
	// Plan works out what the order would do, and changes nothing. Its Actor says
	// who is to carry it out. The error is CodeNoLeader: not this node.
	Plan(ctx context.Context, o cluster.LeadershipRequest) (cluster.Plan, error)
	// Carry carries an order out by the plan that was made for it here just now,
	// and returns once the target is seen leading. Its errors are *cluster.Error.
	Execute(ctx context.Context, o cluster.LeadershipRequest, p cluster.Plan) (cluster.TransferOutcome, error)
}

// NodeInfo are what does not change while a node runs.
type NodeInfo struct {
	ID          cluster.NodeID
	BootID      string
	ClusterName string
	HTTPAddress string // advertised host:port
	RaftAddress string
	Version     string
	StartedAt   time.Time
	Priority    int // first values: what counts is the member record, once there is one
	Eligible    bool
	Zone        string
}

// Limits bound what clients can make a node hold. Zero means the default.
type Limits struct {
	Connections      int   // 16384
	Requests         int   // in flight, streams and health checks apart: 2048
	Streams          int   // 4096
	Attached         int   // sessions held by a connection: 12288
	WaitingCampaigns int   // campaigns, that wait for their election: 4096
	QueuedForLeader  int   // waiting for a leader: 1024
	RequestBytes     int64 // of all request bodies together: 128 MiB
}

func (l Limits) withDefaults() Limits {
	fill := func(n *int, def int) {
		if *n <= 0 {
			*n = def
		}
	}
	fill(&l.Connections, 16384)
	fill(&l.Requests, 2048)
	fill(&l.Streams, 4096)
	fill(&l.Attached, 12288)
	fill(&l.WaitingCampaigns, 4096)
	fill(&l.QueuedForLeader, 1024)
	if l.RequestBytes <= 0 {
		l.RequestBytes = 128 << 20
	}
	return l
}

// Deps is what a Server is made of.
type Deps struct {
	Reads      Reads
	Proposals  Proposals
	Membership Membership
	Recovery   Recovery
	Backups    Backups
	Leader     forward.LeaderSource
	Leadership LeadershipMover
	Sessions   Sessions
	// Renewals makes what renews the sessions of connections to this node, by reports to
	// the leader. Run runs it.
	Renewals   func(attach.Reporter) attach.Renewals
	SplitBrain SplitBrain
	Audit      Auditor // nil: nothing is recorded
	Journal    *telemetry.Journal
	Metrics    *telemetry.Metrics // nil: none
	Logger     hclog.Logger
	Node       NodeInfo

	// Dial connects to another node's HTTP address; nil dials TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// ClientTLS is asked at each connection to another node, with the address
	// it goes to; nil: plain HTTP between nodes.
	ClientTLS func(addr string) *tls.Config
	// AddressOf gives the HTTP address of a node that has no member record yet
	// ("" when not known); may be nil.
	AddressOf func(cluster.NodeID) string
	// LeaderProcessDead says whether this node has found the process of the leader of a term
	// dead: nothing is sent there, and nobody. May be nil.
	LeaderProcessDead func(leader cluster.NodeID, term uint64) bool
	// Warnings are for /status: where the member record differs from the
	// configuration. May be nil.
	Warnings func() []string
	// Restart makes the node begin anew once requests in flight are answered. May
	// be nil where nothing is ever set aside.
	Restart func()

	// Entropy is where session IDs come from; nil: crypto/rand.
	Entropy io.Reader

	Tokens     func() ([]byte, error) // reads the token file; nil: there is none
	Insecure   bool                   // every client counts as operator
	TimeoutMax time.Duration          // election.timeout-max
	Limits     Limits

	// TransferTimeout is for a transfer that names none; 0: 30 s.
	TransferTimeout time.Duration
}

// Server answers the API's requests.
type Server struct {
	deps     Deps
	limits   Limits
	logger   hclog.Logger
	reads    Reads
	routes   *openapi.Router[handler]
	auth     *authenticator
	leader   *forward.LeaderTracker
	forward  *forward.Forwarder
	attached *attach.Server

	loads   loads
	openAPI func() ([]byte, error) // made for the first request: it takes longer than all the rest of a start
	views   singleflight.Group     // requests for the leader's /v1/cluster

	draining atomic.Bool
	stopping context.Context // ends with Drain
	stop     context.CancelFunc

	entropy sync.Mutex // of Deps.Entropy, which need not be safe for concurrent use

	requests         atomic.Int64
	streams          atomic.Int64
	attaching        atomic.Int64
	waitingCampaigns atomic.Int64
	bodyBytes        atomic.Int64
}

// New makes a Server and starts nothing. It fails when a dependency is missing
// or the token file is bad.
func New(d Deps) (*Server, error) {
	for _, required := range []any{
		d.Reads, d.Proposals, d.Membership, d.Recovery, d.Backups, d.Leader, d.Leadership, d.Sessions, d.SplitBrain, d.Logger,
	} {
		if required == nil {
			return nil, errors.New("api: a dependency is missing")
		}
	}
	if d.Journal == nil || d.Renewals == nil || d.TimeoutMax <= 0 {
		return nil, errors.New("api: Journal and Renewals must be given, and TimeoutMax be positive")
	}
	if d.TransferTimeout <= 0 {
		d.TransferTimeout = 30 * time.Second
	}
	if d.Entropy == nil {
		d.Entropy = rand.Reader
	}
	s := &Server{
		deps:   d,
		limits: d.Limits.withDefaults(),
		logger: d.Logger.Named("api"),
		reads:  d.Reads,
		routes: openapi.NewRouter(table),
		leader: forward.NewLeaderTracker(d.Leader),
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	var err error
	if s.auth, err = newAuthenticator(d, s.logger); err != nil {
		return nil, err
	}
	s.forward = forward.New(forward.Config{
		Self: d.Node.ID, Leader: s.leader, Dial: d.Dial, ClientTLS: d.ClientTLS,
		ForwardToken: d.Tokens != nil && d.ClientTLS == nil && !d.Insecure,
		TimeoutMax:   d.TimeoutMax, MaxQueued: s.limits.QueuedForLeader,
		AddressOf: s.httpAddress, LeaderProcessDead: d.LeaderProcessDead, Refusing: d.SplitBrain.Refusing,
		Stopping: s.stopping,
	})
	s.attached = attach.New(attach.Config{
		BootID: d.Node.BootID, Renewals: d.Renewals, Sessions: d.Sessions, Forward: s.forward,
		Stopping: s.stopping, Leave: s.leaveThisNode, Problem: s.problem,
	})
	s.openAPI = sync.OnceValues(func() ([]byte, error) { return s.routes.Document(d.Node.Version) })
	return s, nil
}

// Run follows the leader and the token file, and renews attached sessions, until ctx
// ends. Requests that come without it find no leader.
func (s *Server) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { s.auth.run(ctx) })
	loops.Go(func() { _ = s.attached.Run(ctx) }) // it ends with ctx
	s.leader.Run(ctx)
	loops.Wait()
	s.forward.Close()
	return nil
}

// QueuedWrites returns how many writes have waited for a leader and are not answered yet.
func (s *Server) QueuedWrites() int { return s.forward.QueuedWrites() }

// httpAddress returns where a node's API is, "" when this node does not know.
func (s *Server) httpAddress(id cluster.NodeID) string {
	if id == s.deps.Node.ID {
		return s.deps.Node.HTTPAddress
	}
	if m, ok := s.reads.View().Member(id); ok && m.HTTPAddress != "" {
		return m.HTTPAddress
	}
	if s.deps.AddressOf != nil {
		return s.deps.AddressOf(id)
	}
	return ""
}

// Drain makes the node leave: it is not ready any more, leads no further
// write, and ends its streams, so that clients go elsewhere.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.stop()
}

// HTTPServer is an http.Server with this handler and its limits, for a listener
// that was made by Listener.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler:           s,
		ConnContext:       withConn,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       requestLifetime,
		WriteTimeout:      requestLifetime,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          s.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
}

// requestLifetime is the longest that reading a request and writing its answer
// may take, streams apart: timeout_ms at its most, and some for the network.
const requestLifetime = 90 * time.Second
