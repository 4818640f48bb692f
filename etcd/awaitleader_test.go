package etcd

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"
)

// TestStreamWaitsForALeader: a stream that requires a leader is not refused while the survivors of a leader elect
// another one.
func TestStreamWaitsForALeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t)
		s := New(testDeps(n))
		defer s.grpc.Stop()
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(rpctypes.MetadataRequireLeaderKey,
			rpctypes.MetadataHasLeader))
		n.setLeader("")
		time.AfterFunc(s.deps.TimeoutMax, func() { n.setLeader("n2") })
		for _, name := range []string{pb.Watch_Watch_FullMethodName, pb.Lease_LeaseKeepAlive_FullMethodName} {
			_, leave, err := s.begin(ctx, name)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			leave(nil)
		}
		n.setLeader("")
		began := time.Now()
		_, _, err := s.begin(ctx, pb.Watch_Watch_FullMethodName)
		d := time.Since(began)
		if !errors.Is(err, rpctypes.ErrGRPCNoLeader) || d != noLeaderTimeouts*s.deps.TimeoutMax {
			t.Errorf("without a leader: %v after %v", err, d)
		}
		s.stop()
		if _, _, err := s.begin(ctx, pb.Watch_Watch_FullMethodName); !errors.Is(err, rpctypes.ErrGRPCStopped) {
			t.Errorf("a stopping node: %v", err)
		}
	})
}
