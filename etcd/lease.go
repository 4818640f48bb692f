package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"northstar/state"
)

// leaseService implements etcd's Lease service. A lease is a session with a number.
type leaseService struct {
	pb.UnimplementedLeaseServer
	s *Server
}

// LeaseGrant makes a lease.
func (l *leaseService) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	for tries := 1; ; tries++ {
		id := r.ID
		if id == 0 {
			var err error
			if id, err = l.s.newLeaseID(); err != nil {
				return nil, err
			}
		}
		asked := time.Now()
		result, err := callOf(ctx).Propose(ctx, state.Command{
			Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: id, TTL: r.TTL},
		})
		if r.ID == 0 && errors.Is(err, state.LeaseExists) {
			continue // another lease has the number that was drawn
		}
		if err != nil {
			return nil, err
		}
		left, err := l.grantInTime(ctx, renewal{result.Session, result.Session.TTL, asked})
		if err == nil && left == 0 { // it has ended meanwhile
			if r.ID == 0 && tries < mostTries {
				continue
			}
			err = errTooLate
		}
		if err != nil {
			return nil, err
		}
		return &pb.LeaseGrantResponse{Header: l.s.headerAt(result.Revision), ID: id, TTL: seconds(left)}, nil
	}
}

// newLeaseID draws a positive number.
func (s *Server) newLeaseID() (int64, error) {
	var b [8]byte
	s.entropy.Lock()
	defer s.entropy.Unlock()
	if _, err := io.ReadFull(s.deps.Entropy, b[:]); err != nil {
		return 0, err
	}
	return int64(max(1, binary.BigEndian.Uint64(b[:])>>1)), nil
}

// LeaseRevoke ends a lease and deletes its keys.
func (l *leaseService) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	result, err := callOf(ctx).Propose(ctx, state.Command{
		Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: r.ID},
	})
	if err != nil {
		return nil, err
	}
	return &pb.LeaseRevokeResponse{Header: l.s.headerAt(result.Revision)}, nil
}

// metadataAttach is the key of the metadata with which a stream of keep-alives asks that its leases end with it.
const metadataAttach = "northstar-attach"

// connectionGrace is how long a lease outlives its connection if the node's configuration ties them: clientv3 connects
// again before that. A client that asks for it itself has no grace.
const connectionGrace = time.Second

// heldLeases are the leases of a stream of keep-alives that end with its connection. One goroutine uses them.
type heldLeases struct {
	conn   *liveConn // nil: none ends with it
	grace  time.Duration
	detach map[string]func(lost bool) // by session: numbers of leases are used again
	most   int                        // of them, before those that have ended are looked for
}

// leastHeld is how many leases a stream holds before it looks for those that have ended. It does so each heldInterval
// as well: a client that starts lease after lease would keep the places of the ended ones from other clients.
const (
	leastHeld    = 64
	heldInterval = 10 * time.Second
)

func (l *leaseService) newHeldLeases(ctx context.Context) *heldLeases {
	h := &heldLeases{grace: connectionGrace, detach: map[string]func(bool){}, most: leastHeld}
	md, _ := metadata.FromIncomingContext(ctx)
	asked := len(md.Get(metadataAttach)) > 0 && md.Get(metadataAttach)[0] == "1"
	if asked {
		h.grace = 0
	}
	if p, ok := peer.FromContext(ctx); ok && (asked || l.s.deps.LeaseConnection) {
		if info, ok := p.AuthInfo.(*connInfo); ok {
			h.conn = info.live
		}
	}
	return h
}

// hold makes the end of the connection that of a lease.
func (h *heldLeases) hold(ctx context.Context, call Call, v *state.View, lease *state.Session) error {
	if h.conn == nil || h.detach[lease.ID] != nil {
		return nil
	}
	if len(h.detach) >= h.most {
		h.letGo(v)
		h.most = max(leastHeld, 2*len(h.detach))
	}
	detach, err := call.HoldLease(ctx, lease.ID, h.grace)
	if err != nil {
		return err
	}
	h.detach[lease.ID] = detach
	return nil
}

// looks returns a channel of the times to look for leases that have ended, until stop is called.
func (h *heldLeases) looks() (times <-chan time.Time, stop func()) {
	if h.conn == nil {
		return nil, func() {}
	}
	tick := time.NewTicker(jitter(heldInterval))
	return tick.C, tick.Stop
}

// letGo lets go of the leases that have ended: a stream may last for months, and each lease has a place at the node.
func (h *heldLeases) letGo(v *state.View) {
	for session, detach := range h.detach {
		_, lives := v.Session(session)
		if made, _ := v.MadeBefore(session); made && !lives {
			detach(false)
			delete(h.detach, session)
		}
	}
}

// release ends the hold when the stream has ended.
func (h *heldLeases) release() {
	for _, detach := range h.detach {
		detach(h.conn.gone())
	}
}

// LeaseKeepAlive answers each renewal in order. A lease that does not live has TTL 0: that is no error.
//
// Only this goroutine sends: after its return the stream belongs to the server again.
func (l *leaseService) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	undo := context.AfterFunc(l.s.stopping, func() { end(rpctypes.ErrGRPCStopped) })
	defer undo()
	held := l.newHeldLeases(ctx)
	defer held.release()
	look, stop := held.looks()
	defer stop()
	requests, failed := receive(ctx, l.s, pb.Lease_LeaseKeepAlive_FullMethodName, maxRenewals, func() (int64, error) {
		r, err := stream.Recv()
		return r.GetID(), err // not the message, which may have unknown fields: many may wait
	})
	for {
		var batch []int64
		var last error
		select {
		case r := <-requests:
			batch = append(batch, r)
		case last = <-failed: // requests may have some yet
		case <-look:
			held.letGo(l.s.deps.Node.View())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for len(requests) > 0 {
			batch = append(batch, <-requests)
		}
		if err := l.renewAll(ctx, stream, batch, held); err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		} else if err != nil {
			return err
		}
		switch {
		case errors.Is(last, io.EOF):
			return nil
		case last != nil:
			return last
		}
	}
}

// maxRenewals bounds the keep-alives of a stream that are renewed together. A client with many leases sends as many
// together; one proof of leadership for each would be too slow.
const maxRenewals = 128

// renewAll renews leases together and sends the answers in the order of the requests.
func (l *leaseService) renewAll(
	ctx context.Context, stream pb.Lease_LeaseKeepAliveServer, batch []int64, held *heldLeases,
) error {
	v := l.s.deps.Node.View()
	header := l.s.header(v)
	leases, known := make([]*state.Session, len(batch)), make([]*state.Session, 0, len(batch))
	for i, id := range batch {
		if lease, ok := v.Lease(id); ok {
			leases[i], known = lease, append(known, lease)
		}
	}
	asked := time.Now()
	var left []time.Duration
	var refused error
	if len(known) > 0 {
		left, refused = callOf(ctx).RenewLeases(ctx, known)
	}
	for i, id := range batch {
		out, lease, err := &pb.LeaseKeepAliveResponse{Header: header, ID: id}, leases[i], error(nil)
		switch {
		case lease == nil:
			out, err = l.renew(ctx, id, held)
		case len(left) == 0:
			return refused
		default:
			var rest time.Duration
			inTime := false
			if left[0] > 0 {
				rest, inTime, err = l.holdInTime(ctx, renewal{lease, left[0], asked}, held)
			}
			left = left[1:]
			if out.TTL = seconds(rest); err == nil && !inTime { // it has ended, or the answers before it took long
				out, err = l.renew(ctx, id, held)
			}
		}
		if err == nil {
			err = stream.Send(out)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// renew renews one lease. Its header is taken before: with a later one a client could see its lease renewed at a
// revision after that of its end.
func (l *leaseService) renew(
	ctx context.Context, id int64, held *heldLeases,
) (*pb.LeaseKeepAliveResponse, error) {
	v := l.s.deps.Node.View()
	out := &pb.LeaseKeepAliveResponse{Header: l.s.header(v), ID: id}
	lease, err := l.find(ctx, v, id)
	if err != nil || lease == nil {
		return out, err
	}
	left, err := l.renewInTime(ctx, lease, held)
	if err == nil && left == 0 { // this node may not have applied yet that another lease has the number
		ended := lease.ID
		if lease, err = l.findNow(ctx, id); err == nil && lease != nil && lease.ID != ended {
			left, err = l.renewInTime(ctx, lease, held)
		}
	}
	if err == nil {
		out.TTL = seconds(left)
	}
	return out, err
}

// find returns a lease, nil if it does not exist. This node may not have applied yet what made it.
func (l *leaseService) find(ctx context.Context, v *state.View, id int64) (*state.Session, error) {
	if lease, ok := v.Lease(id); ok {
		return lease, nil
	}
	return l.findNow(ctx, id)
}

// findNow is find after this node has applied all that was acknowledged.
func (l *leaseService) findNow(ctx context.Context, id int64) (*state.Session, error) {
	if err := callOf(ctx).ReadIndex(ctx); err != nil {
		return nil, err
	}
	lease, _ := l.s.deps.Node.View().Lease(id)
	return lease, nil
}

// LeaseTimeToLive returns what a lease has left. One that does not live has TTL -1.
func (l *leaseService) LeaseTimeToLive(
	ctx context.Context, r *pb.LeaseTimeToLiveRequest,
) (*pb.LeaseTimeToLiveResponse, error) {
	if err := callOf(ctx).ReadIndex(ctx); err != nil {
		return nil, err
	}
	v := l.s.deps.Node.View()
	out := &pb.LeaseTimeToLiveResponse{Header: l.s.header(v), ID: r.ID, TTL: -1}
	lease, ok := v.Lease(r.ID)
	if !ok {
		return out, nil
	}
	left, lives, err := callOf(ctx).Remaining(ctx, lease.ID)
	if err != nil || !lives {
		return out, err
	}
	out.TTL, out.GrantedTTL = int64(left/time.Second), seconds(lease.TTL)
	if r.Keys {
		room := roomForAnswer(ctx)
		for _, key := range v.LeaseKeys(r.ID) {
			if err := room(len(key) + state.ItemOverhead); err != nil {
				return nil, err
			}
			out.Keys = append(out.Keys, []byte(key))
		}
	}
	return out, nil
}

// leaseStatusBytes is about the memory of a lease in the answer of LeaseLeases.
const leaseStatusBytes = 64

// LeaseLeases returns all leases.
func (l *leaseService) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	if err := callOf(ctx).ReadIndex(ctx); err != nil {
		return nil, err
	}
	v := l.s.deps.Node.View()
	out := &pb.LeaseLeasesResponse{Header: l.s.header(v)}
	room := roomForAnswer(ctx)
	for lease := range v.Leases() {
		if err := room(leaseStatusBytes); err != nil {
			return nil, err
		}
		out.Leases = append(out.Leases, &pb.LeaseStatus{ID: lease.Lease})
	}
	return out, nil
}

// seconds returns a TTL as clients count it.
func seconds(d time.Duration) int64 { return int64(d / time.Second) }
