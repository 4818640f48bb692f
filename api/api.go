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

	"northstar/cluster"
	"northstar/state"
	"northstar/telemetry"
)

// Cluster is what the API needs of consensus. All methods may be called by any
// goroutine. Errors are *cluster.Error: CodeNoLeader means that nothing was
// done, CodeOutcomeUnknown that it may have been.
type Cluster interface {
	// Propose returns once the command is applied here, or is known not to be.
	Propose(ctx context.Context, c state.Command) (state.Result, error)
	// Barrier returns once View holds every write acknowledged before the call.
	ReadBarrier(ctx context.Context) error
	// LeaseBarrier is Barrier, without a round while a lease is valid.
	LeaseReadBarrier(ctx context.Context) error
	View() *state.View
	Feed() *state.Feed
	RoleFeed() *state.Feed
	NodeFeed() *state.Feed
	// Status is cheap.
	Status() cluster.NodeStatus
	// Peers says what this node knows of the other servers.
	Peers() []cluster.PeerStatus
	// LeaderChanged is closed at the next change of the leader or the term.
	LeaderChanged() <-chan struct{}

	// Spread returns once every node that answers has applied what this one has.
	AwaitAppliedEverywhere(ctx context.Context)

	// ChangeMember changes the membership, PlanChange says what that would do.
	ChangeMember(ctx context.Context, change cluster.MemberChange) error
	PlanChange(ctx context.Context, change cluster.MemberChange) (cluster.Plan, error)
	// PlanRecovery asks the other members whether a lost quorum may be recovered
	// so, and by whom. It needs no leader. Beside an error the plan is as far as
	// it is known.
	PlanRecovery(ctx context.Context, o cluster.RecoveryRequest) (cluster.RecoveryPlan, error)
	// Recover makes this node the only voter of a new generation.
	Recover(ctx context.Context, o cluster.RecoveryRequest) (cluster.Generation, error)
	// SetAside makes this node begin anew, at its next start, as a member of that
	// generation, which leader leads.
	SetAside(ctx context.Context, clusterID string, leader cluster.NodeID, g cluster.Generation) error
	Backup(ctx context.Context, w io.Writer) error
	Restore(ctx context.Context, r io.Reader) error
}

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
	Cluster    Cluster
	Leadership LeadershipMover
	Sessions   Sessions
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
	deps    Deps
	limits  Limits
	logger  hclog.Logger
	cluster Cluster
	routes  *router
	auth    *authenticator
	leader  *leaderTracker
	forward *forwarder

	attached *attachments
	loads    loads
	openAPI  func() ([]byte, error) // made when somebody asks: it takes longer than all the rest of a start
	views    singleflight.Group     // questions for the leader's /v1/cluster

	draining atomic.Bool
	stopping context.Context // ends with Drain
	stop     context.CancelFunc

	entropy sync.Mutex // of Deps.Entropy, which need not be safe for concurrent use

	requests         atomic.Int64
	streams          atomic.Int64
	attaching        atomic.Int64
	waitingCampaigns atomic.Int64
	queuedForLeader  atomic.Int64
	writes           atomic.Int64 // that were held, and are not answered yet
	bodyBytes        atomic.Int64
}

// New makes a Server and starts nothing. It fails when a dependency is missing
// or the token file is bad.
func New(d Deps) (*Server, error) {
	switch {
	case d.Cluster == nil, d.Leadership == nil, d.Sessions == nil, d.SplitBrain == nil, d.Journal == nil, d.Logger == nil:
		return nil, errors.New("api: Cluster, Leadership, Sessions, SplitBrain, Journal and Logger must be given")
	case d.TimeoutMax <= 0:
		return nil, errors.New("api: TimeoutMax must be positive")
	}
	if d.TransferTimeout <= 0 {
		d.TransferTimeout = 30 * time.Second
	}
	if d.Entropy == nil {
		d.Entropy = rand.Reader
	}
	s := &Server{
		deps:    d,
		limits:  d.Limits.withDefaults(),
		logger:  d.Logger.Named("api"),
		cluster: d.Cluster,
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	var err error
	if s.auth, err = newAuthenticator(d, s.logger); err != nil {
		return nil, err
	}
	s.routes = newRouter(table)
	s.leader = newLeaderTracker(d.Cluster)
	s.forward = newForwarder(d)
	s.attached = newAttachments(s)
	s.openAPI = sync.OnceValues(func() ([]byte, error) { return openAPI(s.routes, d.Node.Version) })
	return s, nil
}

// Run keeps an eye on the leader and the token file until ctx ends. Requests
// that come without it find no leader.
func (s *Server) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { s.auth.run(ctx) })
	loops.Go(func() { s.attached.run(ctx) })
	s.leader.run(ctx)
	loops.Wait()
	s.forward.close()
	return nil
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
