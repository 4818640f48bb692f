// Package etcd serves the etcd v3 API over NorthStar's state: gRPC, and the JSON gateway on the same port. Keys,
// revisions and sessions are those of the native API; a lease is a session with a number. Every node serves. A write
// goes through the leader; a linearizable read asks the leader for the read index alone; watches and serializable reads
// are local.
//
// Answers, codes and texts are those of etcd, since clients compare them. DESIGN.md has what differs, and why.
package etcd

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers its codec
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"northstar/api/openapi"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

// Versions that the API reports. Clients decide by them what they may use: 3.7 would promise RangeStream.
const (
	serverVersion  = "3.5.21"
	clusterVersion = "3.5.0"
)

// Limits of requests and streams.
const (
	maxRequestBytes   = 3 << 19 // of one write, as in etcd
	maxReceivedBytes  = 2 << 20 // of one gRPC message
	maxHeaderBytes    = 32 << 10
	maxStreamsPerConn = 4096     // RPCs in progress on one connection
	callWorkers       = 64       // goroutines that are kept for calls: a new one has to grow its stack first
	streamWindow      = 64 << 10 // bytes that a client may send on a stream before they are read
	connWindow        = 1 << 20
	minPingInterval   = 5 * time.Second
	headerTimeout     = 10 * time.Second
	maxConnectionIdle = 15 * time.Minute // of a gRPC connection without an RPC in progress; its client connects again
)

// Node is this node of the cluster. Its methods are called by any goroutine; their errors are *cluster.Error.
type Node interface {
	View() *state.View
	Feed() *state.Feed
	Status() cluster.NodeStatus
	// Term is that of Status, for each answer.
	Term() uint64
	// LeaderChanged returns a channel that is closed at the next change of the leader or the term.
	LeaderChanged() <-chan struct{}
	// CheckCaughtUp returns an error until this node's state has all that was committed when it started.
	CheckCaughtUp() error
	// Full returns the members that have no space for writes: on their disks, as far as this node has heard of it, or,
	// for this node, in the state.
	Full() []cluster.NodeID
}

// Call is one call that was authenticated and admitted. Its caller is the client. Methods may be called by any
// goroutine; their errors are *cluster.Error. Large because one call may propose, read, hold leases and take limits.
type Call interface {
	// Context ends with the call, and with its cause when the caller's credentials of a stream are no longer valid.
	Context() context.Context
	// Propose has the leader propose a command. It holds the command while there is no leader.
	Propose(ctx context.Context, cmd state.Command) (state.Result, error)
	// ReadIndex returns once this node's view has every write that was acknowledged before the call.
	ReadIndex(ctx context.Context) error
	LeaseCall
	CallLimits
	// MoveLeader moves leadership.
	MoveLeader(ctx context.Context, target cluster.NodeID) error
	// Leave ends the call with its error, nil if it succeeded.
	Leave(err error)
}

// LeaseCall is what a call does with leases.
type LeaseCall interface {
	// RenewLeases renews leases and returns how long each has left, counted from the call: its TTL, less if a role was
	// taken from it, 0 if it has ended. A quorum has confirmed after the call that the leader which renewed them leads.
	// Renewals of one node share their messages. With a lease that is not the caller's, it returns those before that,
	// and the error.
	RenewLeases(ctx context.Context, leases []*state.Session) (left []time.Duration, err error)
	// Remaining returns how long a session has left, as the leader knows it, and reports whether it lives.
	Remaining(ctx context.Context, session string) (left time.Duration, lives bool, err error)
	// HoldLease makes the end of a connection that of a lease. detach must be called once, with whether the client is
	// gone: the lease then ends after grace, unless another connection holds it.
	HoldLease(ctx context.Context, lease string, grace time.Duration) (detach func(lost bool), err error)
}

// CallLimits is what a call takes of what the node has for all callers. Each has a share of it.
type CallLimits interface {
	// TakeAnswer takes bytes of the budget of all answers of the node, until give is called, once. CodeBusy: there are
	// not so many left. give must not refer to the call or its context: they refer to the answer, whose garbage
	// collection may have to call give.
	TakeAnswer(size int) (give func(), err error)
	// AwaitPlace waits for a place among the writes in progress that return items, until leave is called, once. If ctx
	// ends before, it returns the cause.
	AwaitPlace(ctx context.Context) (leave func(), err error)
	// Watches returns the caller's share of the watches of the node, and of the bytes of their keys.
	Watches() Share
}

// CallKind is what a call needs and how it counts.
type CallKind struct {
	Name  string // in the audit log
	Role  token.Role
	Kind  openapi.ResponseKind
	Write bool
}

// Deps are the dependencies of a Server. All are required unless they say otherwise.
type Deps struct {
	Node Node
	// Begin authenticates and admits a call. r has the caller's credentials and address, and conn what NewConn returned
	// for the connection.
	Begin func(ctx context.Context, r *http.Request, conn any, kind CallKind) (Call, error)
	// NewConn returns what is remembered of a connection, as the listener has accepted it.
	NewConn func(net.Conn) any
	// NewShare returns the share of a connection from an address, in what calls hold before their callers are known:
	// places of calls, and bytes of messages.
	NewShare func(address string) Share
	// AuthEnabled reports whether callers need a token or a certificate.
	AuthEnabled func() bool
	// CheckToken checks a token and its name, for the caller at an address. CodeUnauthenticated, CodeBusy.
	CheckToken func(name, tok, address string) error
	// ClientURL returns the URL of a member's etcd port, "" if unknown.
	ClientURL func(cluster.NodeID) string

	TimeoutMax       time.Duration // election.timeout-max
	LeaseGrace       time.Duration // etcd.lease-grace; 0: a tenth of the TTL alone
	LeaseConnection  bool          // a lease ends with the connection of its keep-alives
	ProgressInterval time.Duration // between two progress notifications of an idle watch
	Entropy          io.Reader     // the source of lease numbers
	Logger           hclog.Logger
}

// Server answers the calls of etcd clients.
type Server struct {
	deps    Deps
	logger  hclog.Logger
	methods map[string]*method // by name
	paths   map[string]*method // of the gateway
	// unsupported are the other paths of etcd's gateway, with their methods.
	unsupported map[string]string
	grpc        *grpc.Server
	http        *http.Server
	health      *health.Server
	hub         *hub
	recipes     *recipes
	files       recipeFiles // of the recipes
	self        ids
	own         ownWrites

	keeping *semaphore.Weighted // held by the call that is in keepReplaced
	keptAt  time.Time           // of the last attempt of keepReplaced; guarded by keeping

	// lifetime limits the sending of a large answer, or of one message of a stream, and on the gateway that of a call
	// that is no stream.
	lifetime time.Duration
	entropy  sync.Mutex // guards Deps.Entropy

	stopping context.Context // ended by Drain
	stop     context.CancelFunc
	opening  connSet // connections of gRPC without a frame of the client

	answering  atomic.Int64  // calls with one answer that have their message, and large answers that are not sent
	drainQuiet time.Duration // see Drain
}

// New returns a Server that does not run yet.
func New(d Deps) *Server {
	s := &Server{
		deps: d, logger: d.Logger.Named("etcd"), methods: map[string]*method{}, paths: map[string]*method{},
		unsupported: unsupportedPaths(), health: health.NewServer(), hub: newHub(d.Node.View, d.Node.Feed),
		lifetime: 90 * time.Second, drainQuiet: 2 * time.Second, keeping: semaphore.NewWeighted(1),
	}
	s.recipes = &recipes{s: s}
	s.deps.ProgressInterval = cmp.Or(d.ProgressInterval, 10*time.Minute)
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(
		grpc.Creds(finishedTLS{d.NewConn, d.NewShare, &s.opening}),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		//lint:ignore SA1019 gRPC gives no other way to a limit of decompressed messages alone
		grpc.RPCDecompressor(smallGzip{}),
		grpc.MaxRecvMsgSize(maxReceivedBytes), grpc.MaxConcurrentStreams(maxStreamsPerConn),
		grpc.MaxHeaderListSize(maxHeaderBytes), grpc.InTapHandle(s.admit),
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: minPingInterval, PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxConnectionIdle}),
		grpc.ConnectionTimeout(headerTimeout), grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(s.interceptUnary), grpc.StreamInterceptor(s.interceptStream),
		grpc.UnknownServiceHandler(refuseMethod), grpc.NumStreamWorkers(callWorkers),
	)
	s.register()
	grpc_health_v1.RegisterHealthServer(s.grpc, healthService{s.health})
	resolver := reflection.ServerOptions{Services: s.grpc, DescriptorResolver: &s.files}
	reflectionv1.RegisterServerReflectionServer(s.grpc, reflection.NewServerV1(resolver))
	reflectionv1alpha.RegisterServerReflectionServer(s.grpc, reflection.NewServer(resolver))
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeaderBytes,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, newConn(liveConnOf(c), d.NewConn))
		},
		ErrorLog: s.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	return s
}

// register registers the services, and makes the tables of methods.
func (s *Server) register() {
	type service struct {
		desc *grpc.ServiceDesc
		impl any
	}
	services := []service{
		{&pb.KV_ServiceDesc, &kvService{s: s}},
		{&pb.Watch_ServiceDesc, &watchService{s: s}},
		{&pb.Lease_ServiceDesc, &leaseService{s: s}},
		{&pb.Cluster_ServiceDesc, &clusterService{s: s}},
		{&pb.Maintenance_ServiceDesc, &maintenanceService{s: s}},
		{&pb.Auth_ServiceDesc, &authService{s: s}},
	}
	for _, r := range recipeServices() {
		file, err := r.file()
		if err == nil {
			err = s.files.RegisterFile(file)
		}
		if err != nil {
			panic(err) // the tables are constant
		}
		services = append(services, service{r.describe(file), s.recipes})
	}
	rows := methods()
	for _, sv := range services {
		s.grpc.RegisterService(sv.desc, sv.impl)
		for i := range rows {
			m := &rows[i]
			if unary, streaming := describe(sv.desc, m.name); unary == nil && streaming == nil {
				continue
			}
			m.desc, m.service = sv.desc, sv.impl
			s.methods[m.name] = m
			for _, path := range m.paths {
				s.paths[path] = m
			}
		}
	}
}

// Serve answers the clients of a listener until ctx ends. It is an error if the listener is closed before. secure is
// nil without TLS.
func (s *Server) Serve(ctx context.Context, l net.Listener, secure *tls.Config) error {
	serving, end := context.WithCancel(ctx)
	defer end()
	split := newSplitter(l, secure, s.logger)
	var servers sync.WaitGroup
	servers.Go(func() { s.hub.run(serving) })
	errs := make(chan error, 2)
	servers.Go(func() { errs <- s.grpc.Serve(split.grpc) })
	servers.Go(func() { errs <- s.http.Serve(split.http) })
	undo := context.AfterFunc(serving, func() {
		_ = l.Close()
		s.stop()
		s.opening.closeAll() // gRPC waits for them
		_ = s.http.Close()
		s.grpc.Stop()
	})
	defer undo()
	err := split.run()
	if ctx.Err() != nil {
		err = nil
	}
	end()
	servers.Wait()
	return errors.Join(err, unlessClosed(<-errs), unlessClosed(<-errs))
}

// unlessClosed returns an error, nil if it only says that the server was stopped.
func unlessClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Watchers returns the number of open watches, with the calls that wait for a lock or an election, and by how many
// revisions the slowest stream of watches is behind.
func (s *Server) Watchers() (open int, lag uint64) {
	return s.hub.watching() + int(s.recipes.waiting.Load()), s.hub.lag()
}

// ids are the numbers by which etcd knows a cluster and its members.
type ids struct {
	once    sync.Once
	cluster uint64
	member  uint64
}

// number returns the number of a name: never 0, and at most 63 bits, since some clients read it as a signed number.
func number(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return max(1, binary.BigEndian.Uint64(sum[:])>>1)
}

// memberID returns the number of a node.
func memberID(clusterID string, id cluster.NodeID) uint64 {
	return number(clusterID + "/" + string(id))
}

// header returns the header of an answer that shows a view.
func (s *Server) header(v *state.View) *pb.ResponseHeader {
	h := s.memberHeader()
	h.Revision = int64(v.Revision())
	return h
}

// headerAt returns the header of an answer to a write, which is acknowledged with it.
func (s *Server) headerAt(revision uint64) *pb.ResponseHeader {
	s.own.note(revision)
	h := s.memberHeader()
	h.Revision = int64(revision)
	return h
}

// memberHeader returns a header without a revision.
func (s *Server) memberHeader() *pb.ResponseHeader {
	term := s.deps.Node.Term()
	clusterID := s.deps.Node.View().ClusterID()
	if clusterID == "" {
		return &pb.ResponseHeader{MemberId: memberID("", s.deps.Node.Status().NodeID), RaftTerm: term}
	}
	s.self.once.Do(func() { // the ID of a cluster does not change while a node runs
		s.self.cluster, s.self.member = number(clusterID), memberID(clusterID, s.deps.Node.Status().NodeID)
	})
	return &pb.ResponseHeader{ClusterId: s.self.cluster, MemberId: s.self.member, RaftTerm: term}
}
