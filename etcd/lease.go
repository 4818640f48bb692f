package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"northstar/state"
)

// leaseService implements etcd's Lease service. A lease is a session with a number.
type leaseService struct {
	pb.UnimplementedLeaseServer
	s *Server
}

// LeaseGrant makes a lease.
func (l *leaseService) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	for {
		id := r.ID
		if id == 0 {
			var err error
			if id, err = l.s.newLeaseID(); err != nil {
				return nil, err
			}
		}
		result, err := callOf(ctx).Propose(ctx, state.Command{
			Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: id, TTL: r.TTL},
		})
		if r.ID == 0 && errors.Is(err, state.LeaseExists) {
			continue // another lease has the number that was drawn
		}
		if err != nil {
			return nil, err
		}
		return &pb.LeaseGrantResponse{
			Header: l.s.headerAt(result.Revision), ID: id, TTL: seconds(result.Session.TTL),
		}, nil
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

// LeaseKeepAlive answers each renewal in order. A lease that does not live has TTL 0: that is no error.
func (l *leaseService) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	ctx := stream.Context()
	ended := make(chan error, 1)
	go func() { ended <- l.keepAlive(ctx, stream) }() // it ends when the stream has ended, which this return causes
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.s.stopping.Done():
		return rpctypes.ErrGRPCStopped
	}
}

func (l *leaseService) keepAlive(ctx context.Context, stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out, err := l.renew(ctx, r.ID)
		if err != nil {
			return err
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// renew renews one lease. Its header is taken before: with a later one a client could see its lease renewed at a
// revision after that of its end.
func (l *leaseService) renew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	v := l.s.deps.Node.View()
	out := &pb.LeaseKeepAliveResponse{Header: l.s.header(v), ID: id}
	lease, err := l.find(ctx, v, id)
	if err != nil || lease == nil {
		return out, err
	}
	lives, err := callOf(ctx).RenewLease(ctx, lease)
	if err == nil && lives {
		out.TTL = seconds(lease.TTL)
	}
	return out, err
}

// find returns a lease, nil if it does not exist. This node may not have applied yet what made it.
func (l *leaseService) find(ctx context.Context, v *state.View, id int64) (*state.Session, error) {
	if lease, ok := v.Lease(id); ok {
		return lease, nil
	}
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
		for _, key := range v.LeaseKeys(r.ID) {
			out.Keys = append(out.Keys, []byte(key))
		}
	}
	return out, nil
}

// LeaseLeases returns all leases.
func (l *leaseService) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	if err := callOf(ctx).ReadIndex(ctx); err != nil {
		return nil, err
	}
	v := l.s.deps.Node.View()
	out := &pb.LeaseLeasesResponse{Header: l.s.header(v)}
	for lease := range v.Leases() {
		out.Leases = append(out.Leases, &pb.LeaseStatus{ID: lease.Lease})
	}
	return out, nil
}

// seconds returns a TTL as clients count it.
func seconds(d time.Duration) int64 { return int64(d / time.Second) }
