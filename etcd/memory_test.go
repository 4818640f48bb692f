package etcd

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"northstar/state"
)

// What clients make a node keep in memory while their calls and streams go on.

const (
	campaignMethod = "/v3electionpb.Election/Campaign"
	observeMethod  = "/v3electionpb.Election/Observe"
)

// electionMessage returns an empty message of the Election service.
func electionMessage(t *testing.T, name protoreflect.Name) fields {
	t.Helper()
	file, err := recipeServices()[1].file()
	if err != nil {
		t.Fatal(err)
	}
	return fields{dynamicpb.NewMessage(file.Messages().ByName(name))}
}

// TestStreamMessagesAreSmall: a stream keeps messages that wait for its handler, and its first message for as long as
// it lasts. Thousands of streams must not keep megabytes each.
func TestStreamMessagesAreSmall(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	conn := dial(t, addr)
	large := make([]byte, maxStreamMessage)
	watched := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: large},
	}}
	kept := &pb.LeaseKeepAliveRequest{ID: 1}
	unknown := append([]byte{0xa2, 0x06, 0x80, 0x80, 0x02}, large...) // field 100, of 32 KiB
	kept.ProtoReflect().SetUnknown(unknown)
	for method, in := range map[string]any{
		pb.Watch_Watch_FullMethodName: watched, pb.Lease_LeaseKeepAlive_FullMethodName: kept,
		observeMethod: electionMessage(t, "LeaderRequest").set("name", large).Message,
	} {
		both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
		stream, err := conn.NewStream(within(t), both, method)
		if err == nil {
			err = stream.SendMsg(in)
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err == nil {
			err = stream.RecvMsg(new(pb.WatchResponse))
		}
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "request is too large") {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// TestObservedNameIsShort: a stream of an election keeps the name.
func TestObservedNameIsShort(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	in := electionMessage(t, "LeaderRequest").set("name", make([]byte, maxWatchKey+1))
	stream, err := dial(t, addr).NewStream(within(t), &grpc.StreamDesc{ServerStreams: true}, observeMethod)
	if err == nil {
		err = stream.SendMsg(in.Message)
	}
	if err == nil {
		err = stream.RecvMsg(electionMessage(t, "LeaderResponse").Message)
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a long name: %v", err)
	}
}

// TestWaitingCallsAreCounted: what a call that waits for its election keeps of its request counts for the connection,
// and the value is kept in the state only.
func TestWaitingCallsAreCounted(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	conn := dial(t, c.addr)
	request := electionMessage(t, "CampaignRequest").set("name", []byte("e"))
	request.set("value", make([]byte, 2*smallAnswer))
	campaign := func(ctx context.Context, lease int64) error {
		in := request.set("lease", lease)
		return conn.Invoke(ctx, campaignMethod, in.Message, electionMessage(t, "CampaignResponse").Message)
	}
	if err := campaign(within(t), 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	done := make(chan error, 1)
	go func() { done <- campaign(ctx, 2) }()
	c.until("the second waits", func() bool { return c.has("e/2") })
	if _, bytes := c.node.share.taken(); bytes < 2*smallAnswer {
		t.Errorf("a call with 8 KiB that waits counts %d bytes", bytes)
	}
	cancel()
	<-done
	c.until("all is given back", func() bool { _, bytes := c.node.share.taken(); return bytes == 0 })
}

// TestWaitingCampaignKeepsNoValue: the state has the value of a candidate; the call does not keep it, too.
func TestWaitingCampaignKeepsNoValue(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: 1, TTL: 60}})
	s := New(testDeps(n))
	defer s.grpc.Stop()
	in := electionMessage(t, "CampaignRequest").set("name", []byte("e")).set("lease", int64(1))
	in.set("value", []byte("v"))
	ctx := context.WithValue(t.Context(), callKey{}, Call(fakeCall{t.Context(), n}))
	if _, err := s.recipes.campaign(ctx, in); err != nil {
		t.Fatal(err)
	}
	if len(in.bytes("value")) > 0 {
		t.Error("the request still has the value")
	}
}

// TestRecipeAnswersAreCounted: answers with the value of a leader hold the budget until they are sent. A campaign whose
// candidate has a value already waits for its place among the writes that return items.
func TestRecipeAnswersAreCounted(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	conn := dial(t, c.addr)
	value := make([]byte, 300<<10)
	campaign := func(ctx context.Context) error {
		in := electionMessage(t, "CampaignRequest").set("name", []byte("e")).set("lease", int64(1))
		in.set("value", value)
		return conn.Invoke(ctx, campaignMethod, in.Message, electionMessage(t, "CampaignResponse").Message)
	}
	if err := campaign(within(t)); err != nil {
		t.Fatal(err)
	}
	leader := electionMessage(t, "LeaderRequest").set("name", []byte("e")).Message
	ask := func() error {
		out := electionMessage(t, "LeaderResponse").Message
		return conn.Invoke(within(t), "/v3electionpb.Election/Leader", leader, out)
	}
	observe := func() error {
		ctx, cancel := context.WithCancel(within(t))
		defer cancel()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, observeMethod)
		if err == nil {
			err = stream.SendMsg(leader)
		}
		if err == nil {
			err = stream.RecvMsg(electionMessage(t, "LeaderResponse").Message)
		}
		return err
	}
	for name, call := range map[string]func() error{"Leader": ask, "Observe": observe} {
		c.node.largest.Store(0)
		if err := call(); err != nil || c.node.largest.Load() < 2*int64(len(value)) {
			t.Errorf("%s: %v, %d bytes are counted", name, err, c.node.largest.Load())
		}
		c.until("all is given back", func() bool { runtime.GC(); return c.node.answers.Load() == 0 })
	}
	c.node.answers.Store(maxAnswer)
	if err := ask(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("Leader without a budget: %v", err)
	}
	if err := c.node.returning.Acquire(t.Context(), maxReturning); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := campaign(short); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a campaign that returns a value: %v", err)
	}
	c.node.returning.Release(maxReturning)
}

// TestListOfLeasesIsCounted: one client may have 20,000 leases.
func TestListOfLeasesIsCounted(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	for id := range int64(100) {
		n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: id + 1, TTL: 60}})
	}
	leases := pb.NewLeaseClient(dial(t, addr))
	out, err := leases.LeaseLeases(within(t), &pb.LeaseLeasesRequest{})
	if err != nil || len(out.Leases) != 100 || n.largest.Load() < 100*leaseStatusBytes {
		t.Errorf("%d leases, %d bytes are counted, %v", len(out.GetLeases()), n.largest.Load(), err)
	}
	n.answers.Store(maxAnswer)
	if _, err := leases.LeaseLeases(within(t), &pb.LeaseLeasesRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("without a budget: %v", err)
	}
}

// tallyCall notes what is taken of the budget when a command is proposed.
type tallyCall struct {
	fakeCall
	taken *atomic.Int64
}

func (c tallyCall) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	c.taken.Store(c.node.answers.Load())
	return c.fakeCall.Propose(ctx, cmd)
}

// TestExecutedBodiesAreCounted: the gateway counts a large request until it is executed, as gRPC does.
func TestExecutedBodiesAreCounted(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	var taken atomic.Int64
	d := testDeps(n)
	d.Begin = func(ctx context.Context, _ *http.Request, _ any, _ CallKind) (Call, error) {
		return tallyCall{fakeCall{ctx, n}, &taken}, nil
	}
	_, addr := serve(t, d, nil)
	body := `{"key":"YQ==","value":"` + strings.Repeat("YWFh", 100_000) + `"}`
	url := "http://" + addr + "/v3/kv/put"
	r, err := http.NewRequestWithContext(within(t), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK || taken.Load() < 300_000 || n.answers.Load() != 0 {
		t.Errorf("%d %s: %d bytes were taken, %d are left", resp.StatusCode, text, taken.Load(), n.answers.Load())
	}
}

// TestNothingStaysTaken calls each method in ways that end early: what was taken for a call is given back, also if its
// client is gone before the answer.
func TestNothingStaysTaken(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s, addr := serve(t, testDeps(n), nil)
	n.apply(t, put("a", strings.Repeat("v", 300<<10)))
	requests := []proto.Message{
		&emptypb.Empty{}, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("b")},
		&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 1, PrevKv: true},
		}},
		&pb.PutRequest{Key: []byte("p"), Value: make([]byte, 300<<10)},
	}
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	for name := range s.methods {
		conn := dial(t, addr)
		for _, in := range requests {
			for _, after := range []time.Duration{time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
				ctx, cancel := context.WithTimeout(within(t), after)
				stream, err := conn.NewStream(ctx, both, name)
				if err == nil {
					_ = stream.SendMsg(in)
					_ = stream.SendMsg(in)
					<-ctx.Done()
				}
				cancel()
			}
		}
		_ = conn.Close()
	}
	limit := within(t)
	for {
		runtime.GC() // frees what gRPC has not sent
		calls, bytes := n.share.taken()
		watches, keys := n.watches.taken()
		if calls == 0 && bytes == 0 && watches == 0 && keys == 0 && n.answers.Load() == 0 {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-limit.Done():
			t.Fatalf("%d calls, %d bytes, %d watches, %d bytes of keys, %d of answers are not given back", calls, bytes,
				watches, keys, n.answers.Load())
		}
	}
}
