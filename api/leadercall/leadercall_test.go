package leadercall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"northstar/api/forward"
	"northstar/cluster"
	"northstar/state"
)

// node is a node of a test: the leader has the state, the others apply what the test says.
type node struct {
	*Calls
	id     cluster.NodeID
	shared *fakeCluster
	feeds  *state.State // in which a test waits for changes

	propose    func(state.Command) (state.Result, error) // instead of applying
	applied    atomic.Uint64
	subscribed atomic.Int64                  // calls of Subscribe
	renewed    atomic.Int64                  // calls of Renew
	asked      atomic.Int64                  // calls of ReadIndex
	asker      atomic.Pointer[cluster.Asker] // of the last one
}

// fakeCluster is a cluster of nodes that share one state.
type fakeCluster struct {
	mu      sync.Mutex
	state   *state.State
	leader  cluster.NodeID
	changed chan struct{}
	nodes   map[cluster.NodeID]*node
	calls   func(ctx context.Context, to cluster.NodeID) error // before each call; nil: nothing
	old     atomic.Bool                                        // nodes are of a build that knows no traced commands
}

const timeoutMax = 300 * time.Millisecond

// withCluster runs a test in virtual time with nodes n1 and n2, of which n1 leads. They do not know numbers.
func withCluster(t *testing.T, test func(w *fakeCluster, leader, other *node)) {
	t.Helper()
	withClusterOf(t, Version, test)
}

// withClusterOf is withCluster for nodes that read a command version.
func withClusterOf(t *testing.T, reads uint32, test func(w *fakeCluster, leader, other *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &fakeCluster{
			state: state.New(state.Options{}), changed: make(chan struct{}), nodes: map[cluster.NodeID]*node{},
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		for _, id := range []cluster.NodeID{"n1", "n2"} {
			w.apply(state.Command{Kind: state.KindMember, Member: &cluster.Member{ID: id, Reads: reads}})
			n := &node{id: id, shared: w, feeds: state.New(state.Options{})}
			w.nodes[id] = n
			tracker := forward.NewLeaderTracker(n)
			n.Calls = New(Config{
				Consensus: n, Sessions: n, Call: n.call, TimeoutMax: timeoutMax,
				Forward: forward.New(forward.Config{
					Self: id, Leader: tracker, TimeoutMax: timeoutMax,
					EnterQueue:        func(context.Context, forward.Client) (func(), error) { return func() {}, nil },
					AddressOf:         func(id cluster.NodeID) string { return string(id) + ":1" },
					LeaderProcessDead: func(cluster.NodeID, uint64) bool { return false },
					Refusing:          func() string { return "" }, Stopping: context.Background(),
				}),
			})
			running.Go(func() { tracker.Run(ctx) })
			running.Go(func() { _ = n.Run(ctx) })
		}
		w.lead("n1")
		test(w, w.nodes["n1"], w.nodes["n2"])
		cancel()
		running.Wait()
	})
}

func (w *fakeCluster) lead(id cluster.NodeID) {
	w.mu.Lock()
	w.leader = id
	close(w.changed)
	w.changed = make(chan struct{})
	w.mu.Unlock()
	synctest.Wait()
}

func (w *fakeCluster) apply(c state.Command) state.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Apply(w.state.View().AppliedIndex()+1, 1, []state.Command{c})[0]
}

func (n *node) Status() cluster.NodeStatus {
	n.shared.mu.Lock()
	defer n.shared.mu.Unlock()
	st := cluster.NodeStatus{Term: 1, LeaderID: n.shared.leader}
	st.NodeID = n.id
	return st
}

func (n *node) LeaderChanged() <-chan struct{} {
	n.shared.mu.Lock()
	defer n.shared.mu.Unlock()
	return n.shared.changed
}

func (n *node) call(ctx context.Context, to cluster.NodeID, request []byte) ([]byte, error) {
	if hook := n.shared.calls; hook != nil {
		if err := hook(ctx, to); err != nil {
			return nil, err
		}
	}
	time.Sleep(time.Millisecond)
	if n.shared.old.Load() && kind(request[0]) == traced {
		request = append([]byte{99}, request[1:]...) // a kind that Handle does not know
	}
	return n.shared.nodes[to].Handle(ctx, n.id, request), nil
}

func (n *node) leads() error {
	if n.Status().LeaderID != n.id {
		return notLeading(n.id)
	}
	return nil
}

func (n *node) Propose(_ context.Context, c state.Command) (state.Result, error) {
	if err := n.leads(); err != nil {
		return state.Result{}, err
	}
	if n.propose != nil {
		return n.propose(c)
	}
	return n.shared.apply(c), nil
}

func (n *node) ReadBarrier(context.Context) error {
	time.Sleep(time.Millisecond)
	return n.leads()
}

func (n *node) Asker() cluster.Asker {
	return cluster.Asker{ID: n.id, Incarnation: "d-" + string(n.id), Term: 1, Applied: n.Applied()}
}

func (n *node) ReadIndex(ctx context.Context, by cluster.Asker) (uint64, error) {
	n.asker.Store(&by)
	n.asked.Add(1)
	return n.View().AppliedIndex(), n.ReadBarrier(ctx)
}

func (n *node) Applied() uint64 { return n.applied.Load() }

func (n *node) AwaitApplied(ctx context.Context, index uint64) error {
	for n.applied.Load() < index {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (n *node) Watched() (bool, <-chan struct{}) { return n.feeds.Watched() }

func (n *node) Subscribe(cluster.NodeID) error {
	if err := n.leads(); err != nil {
		return err
	}
	n.subscribed.Add(1)
	return nil
}

func (n *node) View() *state.View { return n.shared.state.View() }

func (n *node) Renew(ctx context.Context, ids []string) (out state.Renewed, err error) {
	n.renewed.Add(1)
	for _, id := range ids {
		if revoked := n.View().Revocations(id); len(revoked) > 0 {
			out.Revoked = append(out.Revoked, revoked[0])
		} else if s, ok := n.View().Session(id); ok {
			out.Alive = append(out.Alive, s)
		}
	}
	return out, n.ReadBarrier(ctx)
}

func (n *node) Remaining(*state.Session) time.Duration { return 7 * time.Second }

func putOf(key string) state.Command {
	return state.Command{Kind: state.KindTxn, Txn: &state.Txn{Success: []state.Op{{Put: &state.TxnPut{Key: key}}}}}
}

// A command whose outcome is unknown is proposed again under the same key, here or at the next leader, and so applied
// once.
func TestPropose_UnknownOutcome(t *testing.T) {
	for name, lost := range map[string]func(w *fakeCluster, leader *node){
		"the leader says so": func(w *fakeCluster, leader *node) {
			leader.propose = func(c state.Command) (state.Result, error) {
				w.apply(c)
				leader.propose = nil
				return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "lost leadership")
			}
		},
		"no answer": func(w *fakeCluster, leader *node) {
			leader.propose = func(c state.Command) (state.Result, error) {
				w.apply(c)
				leader.propose = nil
				w.calls = func(context.Context, cluster.NodeID) error { w.calls = nil; return nil }
				return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "the connection broke")
			}
		},
		"another leader": func(w *fakeCluster, leader *node) {
			leader.propose = func(c state.Command) (state.Result, error) {
				w.apply(c)
				w.lead("n2")
				return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "lost leadership")
			}
		},
	} {
		for _, reads := range []uint32{Version, state.NumberVersion} {
			withClusterOf(t, reads, func(w *fakeCluster, leader, other *node) {
				lost(w, leader)
				r, err := other.Calls.Propose(context.Background(), putOf("a"))
				item, _ := w.state.View().Get("a")
				if err != nil || r.Err != nil || r.Txn == nil || item.Version != 1 {
					t.Errorf("%s, version %d: %+v, %v, version %d", name, reads, r, err, item.Version)
				}
				if got := w.state.View().CommandVersion(); got != reads {
					t.Errorf("%s: command version %d where members read %d", name, got, reads)
				}
			})
		}
	}
}

// A command that is proposed again after its result has been dropped is not applied again.
func TestPropose_ForgottenResult(t *testing.T) {
	withCluster(t, func(w *fakeCluster, leader, other *node) {
		w.apply(putOf("first"))
		other.applied.Store(w.state.View().AppliedIndex())
		leader.propose = func(c state.Command) (state.Result, error) {
			w.apply(c)
			for i := range 100_000 {
				later := putOf("b")
				later.Idempotency = &state.Idempotency{Key: state.NodeIdempotencyPrefix + strconv.Itoa(i)}
				w.apply(later)
			}
			leader.propose = nil
			return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "lost leadership")
		}
		r, err := other.Calls.Propose(context.Background(), putOf("a"))
		item, _ := w.state.View().Get("a")
		if err != nil || item.Version != 1 || r.Err == nil || r.Err.Code != cluster.CodeOutcomeUnknown {
			t.Errorf("%+v, %v, version %d", r, err, item.Version)
		}
	})
}

// Without a leader a command waits, and fails as not proposed if none comes. After an unknown outcome it stays unknown.
func TestPropose_WithoutLeader(t *testing.T) {
	withCluster(t, func(w *fakeCluster, leader, other *node) {
		w.lead("")
		began := time.Now()
		_, err := other.Calls.Propose(context.Background(), putOf("a"))
		if took := time.Since(began); !cluster.IsCode(err, cluster.CodeNoLeader) || took != 2*timeoutMax {
			t.Errorf("after %v: %v", took, err)
		}
		w.lead("n1")
		leader.propose = func(state.Command) (state.Result, error) {
			w.lead("")
			return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "lost leadership")
		}
		if _, err := other.Calls.Propose(context.Background(), putOf("a")); !cluster.IsCode(err, cluster.CodeOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
	})
}

// The node that the client asked is told whether the leader's disk stalls or is full.
func TestPropose_DiskStalls(t *testing.T) {
	withCluster(t, func(_ *fakeCluster, leader, other *node) {
		for _, wait := range []time.Duration{0, time.Second} {
			leader.propose = func(state.Command) (state.Result, error) {
				return state.Result{}, &cluster.Error{Code: cluster.CodeReadOnly, Detail: "the disk", RetryAfter: wait}
			}
			for _, n := range []*node{leader, other} {
				_, err := n.Calls.Propose(context.Background(), putOf("a"))
				var refused *cluster.Error
				if !errors.As(err, &refused) || refused.Code != cluster.CodeReadOnly ||
					refused.DiskStalls() != (wait > 0) {
					t.Errorf("at %s, after %v: %v", n.id, wait, err)
				}
			}
		}
	})
}

// An error that is no refusal of the other node leaves the outcome of a proposal unknown.
func TestPropose_BrokenCall(t *testing.T) {
	withCluster(t, func(w *fakeCluster, _, other *node) {
		w.calls = func(context.Context, cluster.NodeID) error { return errors.New("the connection broke") }
		_, err := other.Calls.Propose(context.Background(), putOf("a"))
		if !cluster.IsCode(err, cluster.CodeOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
		w.calls = func(context.Context, cluster.NodeID) error { return notLeading("n1") }
		if _, err := other.Calls.Propose(context.Background(), putOf("a")); !cluster.IsCode(err, cluster.CodeNoLeader) {
			t.Errorf("never sent: %v", err)
		}
	})
}

// All readers that wait share one question, which is asked after they have come, and wait until this node has applied
// the index.
func TestReadIndexIsShared(t *testing.T) {
	withCluster(t, func(w *fakeCluster, leader, other *node) {
		for range 3 {
			w.apply(putOf("a"))
		}
		var reading sync.WaitGroup
		for range 500 {
			reading.Go(func() {
				if err := other.Calls.ReadIndex(context.Background(), 0); err != nil || other.Applied() < 5 {
					t.Errorf("%v at index %d", err, other.Applied())
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		other.applied.Store(w.state.View().AppliedIndex())
		reading.Wait()
		if n := leader.asked.Load(); n > 2 {
			t.Errorf("the leader was asked %d times", n)
		}
		if got, want := *leader.asker.Load(), other.Asker(); got.ID != want.ID || got.Term != want.Term ||
			got.Incarnation != want.Incarnation {
			t.Errorf("asked by %+v, want %+v", got, want)
		}
		if err := leader.Calls.ReadIndex(context.Background(), 0); err != nil || leader.asked.Load() > 2 {
			t.Errorf("on the leader: %v", err)
		}
	})
}

// A node that cannot apply in time is not waited for again before a second has passed.
func TestTryReadIndex(t *testing.T) {
	withCluster(t, func(w *fakeCluster, leader, other *node) {
		w.apply(putOf("a"))
		began := time.Now()
		if err := other.TryReadIndex(context.Background()); err == nil || time.Since(began) != timeoutMax/2 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		began = time.Now()
		if err := other.TryReadIndex(context.Background()); err == nil || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		other.applied.Store(w.state.View().AppliedIndex())
		time.Sleep(tryAgainAfter)
		if err := other.TryReadIndex(context.Background()); err != nil {
			t.Error(err)
		}
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		_ = other.TryReadIndex(gone) // a client that is gone says nothing about this node
		if err := other.TryReadIndex(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// All renewals that wait share one message, on the leader, too. A session from which a role was taken is not renewed.
func TestRenewalsAreShared(t *testing.T) {
	withCluster(t, func(w *fakeCluster, leader, other *node) {
		var ids []string
		for i := range 50 {
			grant := &state.LeaseGrant{ID: int64(i + 1), TTL: 10}
			r := w.apply(state.Command{Kind: state.KindLeaseGrant, LeaseGrant: grant})
			ids = append(ids, r.Session.ID)
		}
		w.apply(state.Command{
			Kind: state.KindRoleCampaign, RoleCampaign: &state.RoleCampaign{Role: "r", Session: ids[0], Wait: true},
		})
		w.apply(state.Command{
			Kind: state.KindRoleTransfer, RoleTransfer: &state.RoleTransfer{Role: "r", AwaitPreviousHolder: true},
		})
		for _, n := range []*node{leader, other} {
			before := leader.renewed.Load()
			var renewing sync.WaitGroup
			for i := range 200 {
				renewing.Go(func() {
					id, want := ids[i%50], Renewed
					switch {
					case i%10 == 9:
						id, want = fmt.Sprint("gone", i), 0
					case i%50 == 0:
						want = 7 * time.Second
					}
					left, err := n.RenewSessions(context.Background(), []string{id})
					if err != nil || left[id] != want {
						t.Errorf("%s at %s: %v, %v, want %v", id, n.id, left[id], err, want)
					}
				})
			}
			renewing.Wait()
			if calls := leader.renewed.Load() - before; calls > 2 {
				t.Errorf("%s: %d renewals", n.id, calls)
			}
		}
		left, lives, err := other.Calls.Remaining(context.Background(), ids[0])
		if err != nil || !lives || left != 7*time.Second {
			t.Errorf("%v left, %v, %v", left, lives, err)
		}
		if _, lives, err := other.Calls.Remaining(context.Background(), "gone"); err != nil || lives {
			t.Errorf("%v, %v", lives, err)
		}
	})
}

// Nothing is asked of a leader of an older build, which would not understand.
func TestOldLeaderIsNotAsked(t *testing.T) {
	withCluster(t, func(w *fakeCluster, _, other *node) {
		w.apply(state.Command{Kind: state.KindMember, Member: &cluster.Member{ID: "n1", Reads: Version - 1}})
		w.calls = func(context.Context, cluster.NodeID) error {
			t.Error("it was called")
			return nil
		}
		if err := other.Calls.ReadIndex(context.Background(), 0); !cluster.IsCode(err, cluster.CodeNoLeader) {
			t.Error(err)
		}
	})
}

// What is no call is refused, and so is a command that no client of the etcd API may give.
func TestHandleRefuses(t *testing.T) {
	withCluster(t, func(w *fakeCluster, leader, _ *node) {
		member, err := state.EncodeBatch([]state.Command{{
			Kind: state.KindMemberRemove, MemberRemove: &state.MemberRemove{ID: "n2"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		for name, request := range map[string][]byte{
			"nothing": nil, "short": {1}, "no limit": {1, 0x80}, "no command": {1, 0}, "no message": {2, 0},
			"no trace": {6, 0}, "a short trace": {6, 0, 9, 'a', 'b', 'c'},
			"the longest trace": append([]byte{6, 0, 255}, make([]byte, 300)...),
			"no kind":           append([]byte{9, 0}, "{}"...), "no session": append([]byte{4, 0}, "{}"...),
			"another command": append([]byte{1, 0}, member...),
		} {
			got := leader.Handle(context.Background(), "n2", request)
			if len(got) < 1 || got[0] != failed {
				t.Errorf("%s: %q", name, got)
			}
		}
		if m, _ := w.state.View().Member("n2"); m.Removed {
			t.Error("a member was removed")
		}
	})
}

// A command that belongs to a trace is applied once, also by a leader of a build that knows no such commands.
func TestPropose_Traced(t *testing.T) {
	withCluster(t, func(w *fakeCluster, leader, other *node) {
		var proposed int
		leader.propose = func(c state.Command) (state.Result, error) {
			proposed++
			return w.apply(c), nil
		}
		spans := tracetest.NewSpanRecorder()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("")
		ctx, span := tracer.Start(context.Background(), "request")
		put := func() {
			if r, err := other.Calls.Propose(ctx, putOf("a")); err != nil || r.Err != nil {
				t.Errorf("%+v, %v", r, err)
			}
		}
		put()
		w.old.Store(true)
		put()
		span.End()
		if proposed != 2 {
			t.Errorf("%d commands were proposed, want 2", proposed)
		}
		var names []string
		for _, s := range spans.Ended() {
			names = append(names, s.Name())
		}
		if !slices.Equal(names, []string{"forward", "forward", "request"}) {
			t.Errorf("spans %q", names)
		}
	})
}

// TestPropose_OldCommand: members of earlier builds would keep a node's idempotency key among those of clients, and
// their states would differ.
func TestPropose_OldCommand(t *testing.T) {
	old := state.Command{Kind: state.KindPut, Put: &state.Put{Key: "a", Value: []byte("v")}}
	withCluster(t, func(_ *fakeCluster, _, other *node) {
		if _, err := other.Calls.Propose(context.Background(), old); !cluster.IsCode(err, cluster.CodeBadRequest) {
			t.Errorf("a command of version %d without a key: %v", old.MinVersion(), err)
		}
	})
	withClusterOf(t, state.NumberVersion, func(_ *fakeCluster, _, other *node) {
		if r, err := other.Calls.Propose(context.Background(), old); err != nil || r.Err != nil {
			t.Errorf("%+v, %v where all members know numbers", r, err)
		}
	})
}

// A read whose leader does not answer goes on with the next leader immediately. Without one, its limit ends it.
func TestReadIndex_LeaderChanges(t *testing.T) {
	withCluster(t, func(w *fakeCluster, _, other *node) {
		w.calls = func(ctx context.Context, _ cluster.NodeID) error {
			<-ctx.Done()
			return ctx.Err()
		}
		began, read := time.Now(), make(chan error, 1)
		go func() { read <- other.Calls.ReadIndex(context.Background(), 0) }()
		synctest.Wait()
		w.lead("n2")
		if err := <-read; err != nil || time.Since(began) > timeoutMax/10 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		w.lead("")
		began = time.Now()
		err := other.Calls.ReadIndex(context.Background(), timeoutMax/2)
		if took := time.Since(began); !cluster.IsCode(err, cluster.CodeNoLeader) || took > timeoutMax*6/10 {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
