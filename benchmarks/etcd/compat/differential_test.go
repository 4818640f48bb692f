package compat

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var (
	programs  = flag.Int("programs", 300, "number of random programs")
	firstSeed = flag.Uint64("seed", 1, "seed of the first program: with -programs 1 it replays one")
	pairs     = flag.Int("pairs", 6, "pairs of clusters, which run programs at the same time")
)

// maxFailures is the number of programs with a difference after which the test ends.
const maxFailures = 5

// TestDifferential runs random programs on NorthStar and on etcd. All answers and errors must be equal, with
// revisions counted from the beginning of the program.
func TestDifferential(t *testing.T) {
	var next, requests atomic.Uint64
	next.Store(*firstSeed)
	var failures atomic.Int32
	var all sync.WaitGroup
	begin := time.Now()
	for range min(*pairs, *programs) {
		p := &pair{}
		for i, addr := range []string{startEtcd(t), startNorthstar(t, 1)[0].etcd} {
			p[i] = &side{name: []string{"etcd", "NorthStar"}[i], conn: dial(t, addr), requests: &requests}
		}
		all.Go(func() {
			for failures.Load() < maxFailures {
				seed := next.Add(1) - 1
				if seed >= *firstSeed+uint64(*programs) {
					return
				}
				if diff := p.compare(t.Context(), seed); diff != "" {
					failures.Add(1)
					t.Errorf("seed %d (replay: -programs 1 -seed %d):\n%s", seed, seed, diff)
				}
			}
		})
	}
	all.Wait()
	took := time.Since(begin)
	t.Logf("%d programs, %d requests of both sides, in %s", *programs, requests.Load(), took.Round(time.Second))
}

// pair is two servers that run the same programs: etcd, then NorthStar.
type pair [2]*side

// side is one of the two servers.
type side struct {
	name     string
	conn     *grpc.ClientConn
	requests *atomic.Uint64

	base  int64    // revision at the beginning of the program
	drawn int64    // lease whose ID the server has drawn, 0: none
	watch *watcher // nil: the program has none so far
}

// compare runs one program on both sides and returns the first difference, "" if there is none.
func (p *pair) compare(ctx context.Context, seed uint64) string {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, s := range p {
		if err := s.reset(ctx); err != nil {
			return fmt.Sprintf("%s: before the program: %v", s.name, err)
		}
	}
	random := newProgram(seed)
	var history []string
	last := func() string { return strings.Join(history[max(0, len(history)-12):], "\n") }
	for range 5 + random.IntN(20) {
		step := random.step()
		history = append(history, step.String())
		var got [2]string
		for i, s := range p {
			var err error
			if got[i], err = s.do(ctx, step); err != nil {
				return fmt.Sprintf("%s\n    %s: %v", last(), s.name, err)
			}
		}
		history = append(history, "    -> "+got[0])
		if got[0] != got[1] {
			return last() + "\n    NorthStar: " + got[1]
		}
	}
	var seen [2]string
	for i, s := range p {
		var err error
		if seen[i], err = s.finish(ctx); err != nil {
			return fmt.Sprintf("%s\n    %s: %v", strings.Join(history, "\n"), s.name, err)
		}
	}
	if seen[0] != withoutMissing(seen[1], seen[0]) {
		return fmt.Sprintf("%s\netcd's watches:\n%s\nNorthStar's:\n%s", strings.Join(history, "\n"), seen[0], seen[1])
	}
	return ""
}

// withoutMissing returns what was seen without the previous values that etcd leaves out: those that were compacted
// before it sent the event.
func withoutMissing(seen, etcd string) string {
	lines, other := strings.Split(seen, "\n"), strings.Split(etcd, "\n")
	for i := range min(len(lines), len(other)) {
		short, _, _ := strings.Cut(lines[i], " prev_kv:")
		if other[i] == short {
			lines[i] = short
		}
	}
	return strings.Join(lines, "\n")
}

// reset deletes all keys and leases, and notes the revision.
func (s *side) reset(ctx context.Context) error {
	s.watch, s.drawn = nil, 0
	leases, err := pb.NewLeaseClient(s.conn).LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	if err != nil {
		return err
	}
	for _, l := range leases.Leases {
		if _, err := pb.NewLeaseClient(s.conn).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: l.ID}); err != nil {
			return err
		}
	}
	kv := pb.NewKVClient(s.conn)
	_, err = kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil {
		return err
	}
	out, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("base")})
	if err != nil {
		return err
	}
	s.base = out.Header.Revision
	return nil
}

// do makes a request and returns its answer, or its error, in a form that both sides share.
func (s *side) do(ctx context.Context, st step) (string, error) {
	s.requests.Add(1)
	request, answer := proto.Clone(st.request), st.answer
	s.localize(request)
	switch r := request.(type) {
	case *pb.WatchCreateRequest:
		w, err := s.watcher(ctx)
		if err != nil {
			return "", err
		}
		return "", w.create(ctx, r)
	case *pb.WatchCancelRequest:
		w, err := s.watcher(ctx)
		if err != nil {
			return "", err
		}
		return "", w.cancel(ctx, r.WatchId)
	case *pb.LeaseKeepAliveRequest:
		return s.keepAlive(ctx, r)
	}
	answer = proto.Clone(answer)
	if err := s.conn.Invoke(ctx, st.method, request, answer); err != nil {
		return status.Convert(err).Code().String() + ": " + status.Convert(err).Message(), nil
	}
	if g, ok := answer.(*pb.LeaseGrantResponse); ok && request.(*pb.LeaseGrantRequest).ID == 0 {
		s.drawn = g.ID
	}
	return s.describe(answer), nil
}

// keepAlive renews a lease once.
func (s *side) keepAlive(ctx context.Context, r *pb.LeaseKeepAliveRequest) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(s.conn).LeaseKeepAlive(ctx)
	if err != nil {
		return "", err
	}
	if err := stream.Send(r); err != nil {
		return "", err
	}
	answer, err := stream.Recv()
	if err != nil {
		return "", err
	}
	return s.describe(answer), nil
}

// localize replaces the revisions and leases of a program by those of this side.
func (s *side) localize(m proto.Message) {
	translate(m.ProtoReflect(), s.base, func(lease int64) int64 {
		switch {
		case lease != drawnLease:
			return lease
		case s.drawn == 0:
			return math.MaxInt64 / 2 // unknown, and as high as one that is drawn
		}
		return s.drawn
	})
}

// describe returns a message of this side without what differs between any two clusters.
func (s *side) describe(m proto.Message) string {
	translate(m.ProtoReflect(), -s.base, func(lease int64) int64 {
		if lease == s.drawn && lease != 0 {
			return drawnLease
		}
		return lease
	})
	if l, ok := m.(*pb.LeaseLeasesResponse); ok { // in etcd their order is by expiry
		slices.SortFunc(l.Leases, func(a, b *pb.LeaseStatus) int { return cmp.Compare(a.ID, b.ID) })
	}
	if l, ok := m.(*pb.LeaseTimeToLiveResponse); ok { // and that of a lease's keys has none
		slices.SortFunc(l.Keys, bytes.Compare)
	}
	return strings.Join(strings.Fields(prototext.MarshalOptions{}.Format(m)), " ")
}

// translate adds d to each revision above 0 and renames leases. It clears numbers of clusters and members, terms, and
// what a lease has left.
func translate(m protoreflect.Message, d int64, lease func(int64) int64) {
	of := m.Descriptor().Name()
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch name := string(f.Name()); {
		case name == "cluster_id", name == "member_id", name == "raft_term",
			name == "TTL" && of == "LeaseTimeToLiveResponse" && v.Int() > 0:
			m.Clear(f)
		case name == "lease" && of == "KeyValue" && !m.Has(m.Descriptor().Fields().ByName("value")):
			m.Clear(f) // etcd 3.7 leaves it out with keys_only, and earlier versions do not
		case name == "lease", name == "ID":
			m.Set(f, protoreflect.ValueOfInt64(lease(v.Int())))
		case strings.HasSuffix(name, "revision"):
			if v.Int() > 0 {
				m.Set(f, protoreflect.ValueOfInt64(v.Int()+d))
			}
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				translate(v.List().Get(i).Message(), d, lease)
			}
		case f.Message() != nil:
			translate(v.Message(), d, lease)
		}
		return true
	})
}
