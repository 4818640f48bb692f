package etcd

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"northstar/state"
)

// recipeClient calls Lock and Election over JSON.
type recipeClient struct {
	t      *testing.T
	node   *fakeNode
	server *Server
	addr   string
}

func newRecipeClient(t *testing.T) *recipeClient {
	n := newFakeNode(t)
	s, addr := serve(t, testDeps(n), nil)
	c := &recipeClient{t: t, node: n, server: s, addr: addr}
	for id := range int64(3) {
		n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: id + 1, TTL: 60}})
	}
	return c
}

type recipeAnswer struct {
	Header  struct{ Revision string }
	Key     []byte
	KV      struct{ Key, Value []byte }
	Leader  json.RawMessage
	Code    codes.Code
	Message string
}

// call posts a body, in which names and values are %q.
func (c *recipeClient) call(ctx context.Context, path, body string, args ...any) (out recipeAnswer, err error) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = base64.StdEncoding.EncodeToString([]byte(s))
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.addr+"/v3/"+path,
		strings.NewReader(fmt.Sprintf(body, args...)))
	if err != nil {
		return out, err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

// must is call for calls that succeed.
func (c *recipeClient) must(path, body string, args ...any) recipeAnswer {
	c.t.Helper()
	out, err := c.call(within(c.t), path, body, args...)
	if err != nil || out.Code != 0 {
		c.t.Fatalf("%s: %+v, %v", path, out, err)
	}
	return out
}

// begin starts a call and returns once it waits.
func (c *recipeClient) begin(ctx context.Context, path, body string, args ...any) <-chan recipeAnswer {
	c.t.Helper()
	answer := make(chan recipeAnswer, 1)
	before := c.node.View().Revision()
	go func() {
		out, _ := c.call(ctx, path, body, args...) // the zero answer after an error
		answer <- out
	}()
	c.until("the call has joined the queue", func() bool { return c.node.View().Revision() > before })
	select {
	case out := <-answer:
		c.t.Errorf("%s has not waited: %+v", path, out)
	default:
	}
	return answer
}

func (c *recipeClient) until(what string, ok func() bool) {
	c.t.Helper()
	ctx := within(c.t)
	for !ok() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			c.t.Fatal("timeout: " + what)
		}
	}
}

func (c *recipeClient) has(key string) bool { _, ok := c.node.View().Get(key); return ok }

// TestLock: a lock belongs to one lease at a time, first come, first served.
func TestLock(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	const lock = `{"name":%q,"lease":%d}`
	first := c.must("lock/lock", lock, "l", 1)
	if again := c.must("lock/lock", lock, "l", 1); string(first.Key) != "l/1" || string(again.Key) != "l/1" {
		t.Errorf("keys %q, %q, want l/1", first.Key, again.Key)
	}
	second := c.begin(within(t), "lock/lock", lock, "l", 2)
	third := c.begin(within(t), "lock/lock", lock, "l", 3)
	if it, _ := c.node.View().Get("l/2"); it.Lease() != 2 {
		t.Errorf("the key of the second has lease %d", it.Lease())
	}
	c.must("lock/unlock", `{"key":%q}`, "l/1")
	if got := <-second; string(got.Key) != "l/2" {
		t.Errorf("the second: %+v", got)
	}
	c.node.apply(t, state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: 2}})
	if got := <-third; string(got.Key) != "l/3" || got.Header.Revision != fmt.Sprint(c.node.View().Revision()) {
		t.Errorf("the third: %+v, at revision %d", got, c.node.View().Revision())
	}
	if out, err := c.call(within(t), "lock/lock", lock, "l", 99); err != nil ||
		out.Message != rpctypes.ErrorDesc(rpctypes.ErrGRPCLeaseNotFound) {
		t.Errorf("with a lease that does not exist: %+v, %v", out, err)
	}
	if got := c.must("lock/lock", `{"name":%q}`, "other"); !strings.HasPrefix(string(got.Key), "other/") {
		t.Errorf("without a lease: %+v", got)
	}
}

// TestLock_GivenUp: a caller that does not wait any longer leaves the queue, and one whose lease ends is told.
func TestLock_GivenUp(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	const lock = `{"name":%q,"lease":%d}`
	c.must("lock/lock", lock, "l", 1)
	ctx, cancel := context.WithCancel(within(t))
	c.begin(ctx, "lock/lock", lock, "l", 2)
	cancel()
	c.until("the caller that has gone leaves the queue", func() bool { return !c.has("l/2") })
	third := c.begin(within(t), "lock/lock", lock, "l", 3)
	c.node.apply(t, state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: 3}})
	c.must("lock/unlock", `{"key":%q}`, "l/1")
	if got := <-third; got.Message != "mutex: session is expired" || got.Code != codes.Unknown {
		t.Errorf("the caller without its lease: %+v", got)
	}
}

// TestLock_Drain: calls that wait end when the server stops.
func TestLock_Drain(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	n := c.node
	s, addr := serve(t, testDeps(n), nil)
	c.addr = addr
	c.must("lock/lock", `{"name":%q,"lease":%d}`, "l", 1)
	waiting := c.begin(within(t), "lock/lock", `{"name":%q,"lease":%d}`, "l", 2)
	c.until("the call counts as a watch", func() bool { open, _ := s.Watchers(); return open == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s.Drain(ctx)
	if got := <-waiting; got.Message != rpctypes.ErrorDesc(rpctypes.ErrGRPCStopped) {
		t.Errorf("the waiting call: %+v", got)
	}
	if ctx.Err() != nil {
		t.Error("the server has waited for the call")
	}
}

// TestElection: one lease leads, its value is observed, and the next one leads when it resigns.
func TestElection(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	if out, err := c.call(within(t), "election/leader", `{"name":%q}`, "e"); err != nil ||
		out.Message != "election: no leader" {
		t.Errorf("without a leader: %+v, %v", out, err)
	}
	observed := c.observe("e")
	const campaign = `{"name":%q,"lease":%d,"value":%q}`
	first := c.must("election/campaign", campaign, "e", 1, "one")
	expect := func(value string) {
		t.Helper()
		if got := <-observed; got != value {
			t.Errorf("observed %q, want %q", got, value)
		}
	}
	expect("one")
	c.must("election/campaign", `{"name":%q,"lease":1}`, "e")
	expect("")
	c.must("election/campaign", campaign, "e", 1, "one again")
	expect("one again")
	next := c.begin(within(t), "election/campaign", campaign, "e", 2, "two")
	c.must("election/proclaim", `{"leader":%s,"value":%q}`, first.Leader, "uno")
	expect("uno")
	if got := c.must("election/leader", `{"name":%q}`, "e"); string(got.KV.Value) != "uno" || string(got.KV.Key) != "e/1" {
		t.Errorf("leader: %+v", got)
	}
	c.must("election/resign", `{"leader":%s}`, first.Leader)
	if got := <-next; !strings.Contains(string(got.Leader), `"lease":"2"`) {
		t.Errorf("the next leader: %+v", got)
	}
	expect("two")
	out, err := c.call(within(t), "election/proclaim", `{"leader":%s,"value":%q}`, first.Leader, "late")
	if err != nil || out.Message != "election: not leader" {
		t.Errorf("the former leader proclaims: %+v, %v", out, err)
	}
	c.must("election/resign", `{"leader":%s}`, first.Leader)
	if !c.has("e/2") {
		t.Error("the former leader has ended the leadership of the next one")
	}
	for _, path := range []string{"election/proclaim", "election/resign"} {
		if out, err := c.call(within(t), path, `{}`); err != nil || out.Message != `"leader" field must be provided` {
			t.Errorf("%s without a leader: %+v, %v", path, out, err)
		}
	}
}

// TestProclaim_WithoutALease: a leader that does not name its lease gets another one. Its leadership does not become
// permanent.
func TestProclaim_WithoutALease(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	led := c.must("election/campaign", `{"name":%q,"lease":1,"value":%q}`, "e", "one")
	var leader map[string]any
	if err := json.Unmarshal(led.Leader, &leader); err != nil {
		t.Fatal(err)
	}
	delete(leader, "lease")
	text, err := json.Marshal(leader)
	if err != nil {
		t.Fatal(err)
	}
	c.must("election/proclaim", `{"leader":%s,"value":%q}`, text, "two")
	it, _ := c.node.View().Get("e/1")
	lease, _ := c.node.View().Session(it.Session)
	if string(it.Value) != "two" || lease == nil || lease.TTL != recipeTTL*time.Second {
		t.Errorf("the key %+v has the lease %+v", it, lease)
	}
}

// observe returns the values of the leaders of an election.
func (c *recipeClient) observe(name string) <-chan string {
	c.t.Helper()
	body := fmt.Sprintf(`{"name":%q}`, base64.StdEncoding.EncodeToString([]byte(name)))
	r, err := http.NewRequestWithContext(within(c.t), http.MethodPost, "http://"+c.addr+"/v3/election/observe",
		strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	values := make(chan string, 100)
	go func() {
		defer close(values)
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		for all := json.NewDecoder(resp.Body); ; {
			var one struct{ Result recipeAnswer }
			if all.Decode(&one) != nil {
				return
			}
			values <- string(one.Result.KV.Value)
		}
	}()
	return values
}

// TestRecipesOverGRPC: both services are there for gRPC, and reflection describes them.
func TestRecipesOverGRPC(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	conn := dial(t, c.addr)
	services := recipeServices()
	file, err := services[0].file()
	if err != nil {
		t.Fatal(err)
	}
	message := func(name protoreflect.Name) fields {
		return fields{dynamicpb.NewMessage(file.Messages().ByName(name))}
	}
	out := message("LockResponse")
	in := message("LockRequest").set("name", []byte("l")).set("lease", int64(1))
	if err := conn.Invoke(within(t), "/v3lockpb.Lock/Lock", in.Message, out.Message); err != nil ||
		string(out.bytes("key")) != "l/1" {
		t.Errorf("lock: %v, %v", out.Message, err)
	}
	if _, ok := out.message("header"); !ok {
		t.Error("the answer has no header")
	}
	empty := message("UnlockRequest").Message
	err = conn.Invoke(within(t), "/v3lockpb.Lock/Unlock", empty, message("UnlockResponse").Message)
	if status.Convert(err).Message() != rpctypes.ErrorDesc(rpctypes.ErrGRPCEmptyKey) {
		t.Errorf("unlock without a key: %v", err)
	}
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, symbol := range []string{"v3lockpb.Lock", "v3electionpb.LeaderKey", pb.KV_ServiceDesc.ServiceName} {
		err := stream.Send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol},
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := stream.Recv()
		if err != nil || len(got.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("reflection of %s: %v, %v", symbol, got, err)
		}
	}
}
