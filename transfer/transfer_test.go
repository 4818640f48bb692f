package transfer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"northstar/cluster"
	"northstar/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a leader n1 of three voters and a non-voter, whose library transfer
// the test plays.
type fake struct {
	mu       sync.Mutex
	status   cluster.NodeStatus
	peers    []cluster.PeerStatus
	state    *state.State
	changed  chan struct{}
	calls    []cluster.TransferNotice
	returned []uint64
	back     bool // an election of its own works
	move     func(ctx context.Context, f *fake, target cluster.NodeID) error
}

func newFake() *fake {
	f := &fake{changed: make(chan struct{}), state: state.New(state.Options{})}
	f.status = cluster.NodeStatus{Role: cluster.Leader, Term: 5, LeaderID: "n1", Servers: []cluster.Server{
		{ID: "n1", Suffrage: cluster.Voter},
		{ID: "n2", Suffrage: cluster.Voter},
		{ID: "n3", Suffrage: cluster.Voter},
		{ID: "n4", Suffrage: cluster.NonVoter},
	}}
	f.status.NodeID = "n1"
	for _, id := range []cluster.NodeID{"n2", "n3", "n4"} {
		f.peers = append(f.peers, cluster.PeerStatus{ID: id, Healthy: true})
	}
	for _, s := range f.status.Servers {
		f.member(cluster.Member{ID: s.ID, Priority: 100, Eligible: true, Lifecycle: cluster.Active})
	}
	f.move = func(_ context.Context, f *fake, target cluster.NodeID) error { f.lead(target); return nil }
	return f
}

func (f *fake) member(m cluster.Member) {
	v := f.state.View()
	f.state.Apply(v.AppliedIndex()+1, 5, []state.Command{{Kind: state.KindMember, Member: &m}})
}

// lead makes another node the leader that n1 sees.
func (f *fake) lead(id cluster.NodeID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Role, f.status.LeaderID, f.status.Term = cluster.Follower, id, f.status.Term+1
	close(f.changed)
	f.changed = make(chan struct{})
}

// lags sets how many entries a peer is behind.
func (f *fake) lags(peer int, entries uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers[peer].LagEntries = entries
}

func (f *fake) Status() cluster.NodeStatus { f.mu.Lock(); defer f.mu.Unlock(); return f.status }
func (f *fake) Peers() []cluster.PeerStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]cluster.PeerStatus(nil), f.peers...)
}
func (f *fake) View() *state.View { return f.state.View() }
func (f *fake) LeaderChanged() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fake) TransferTo(ctx context.Context, h cluster.TransferNotice) error {
	f.mu.Lock()
	f.calls = append(f.calls, h)
	f.mu.Unlock()
	return f.move(ctx, f, h.To)
}

// again is the call of a transfer after which no node leads.
func (f *fake) again(_ context.Context, term uint64, h cluster.TransferNotice) error {
	f.mu.Lock()
	f.returned = append(f.returned, term)
	back := f.back
	f.mu.Unlock()
	if back {
		f.lead("n1")
	}
	return nil
}

type sentError struct{ sent bool }

func (sentError) Error() string          { return "it went wrong" }
func (e sentError) TimeoutNowSent() bool { return e.sent }

// newTransfer returns a Transfer that appends its results. Two transfers may end at one moment.
func newTransfer(f *fake, results *[]Result) *Transfer {
	return New(f, Options{
		Done: func(r Result) {
			f.mu.Lock()
			defer f.mu.Unlock()
			*results = append(*results, r)
		},
		ReclaimLeadership: f.again,
		Logger:            hclog.NewNullLogger(),
	})
}

func TestTo(t *testing.T) {
	for _, tt := range []struct {
		name    string
		target  cluster.NodeID
		change  func(*fake)
		leader  cluster.NodeID // "" when it fails
		code    cluster.Code
		status  int
		detail  string
		reached bool // the library was asked
	}{
		{name: "to a voter", target: "n2", leader: "n2", reached: true},
		{name: "to the best", leader: "n2", reached: true},
		{name: "to the best by priority", change: func(f *fake) {
			f.member(cluster.Member{ID: "n3", Priority: 200, Eligible: true, Lifecycle: cluster.Active})
		}, leader: "n3", reached: true},
		{
			name: "to the best by lag", change: func(f *fake) { f.peers[0].LagEntries = caughtUpLag + 1 }, leader: "n3",
			reached: true,
		},
		{
			name: "a lower priority rather than one that is far behind", change: func(f *fake) {
				f.member(cluster.Member{ID: "n3", Priority: 200, Eligible: true, Lifecycle: cluster.Active})
				f.peers[1].LagEntries = 1e6
			}, leader: "n2", reached: true,
		},
		{
			name: "to the best by priority although it must catch up a little", change: func(f *fake) {
				f.member(cluster.Member{ID: "n3", Priority: 200, Eligible: true, Lifecycle: cluster.Active})
				f.peers[1].LagEntries = caughtUpLag + 1
				time.AfterFunc(time.Second, func() { f.lags(1, 0) })
			}, leader: "n3", reached: true,
		},
		{
			name: "what is in flight is no lag", change: func(f *fake) { f.peers[0].LagEntries = caughtUpLag },
			leader:  "n2",
			reached: true,
		},
		{name: "unknown node", target: "n9", code: cluster.CodeBadRequest, status: 404, detail: "n9"},
		{name: "itself", target: "n1", code: cluster.CodeTransferFailed, status: 409, detail: "leads already"},
		{name: "non-voter", target: "n4", code: cluster.CodeTransferFailed, status: 409, detail: "not a voter"},
		{name: "not eligible", target: "n2", change: func(f *fake) {
			f.member(cluster.Member{ID: "n2", Priority: 100, Lifecycle: cluster.Active})
		}, code: cluster.CodeTransferFailed, status: 409, detail: "not eligible"},
		{name: "priority 0", target: "n2", change: func(f *fake) {
			f.member(cluster.Member{ID: "n2", Eligible: true, Lifecycle: cluster.Active})
		}, code: cluster.CodeTransferFailed, status: 409, detail: "not eligible"},
		{name: "draining", target: "n2", change: func(f *fake) {
			f.member(cluster.Member{ID: "n2", Priority: 100, Eligible: true, Lifecycle: cluster.Draining})
		}, code: cluster.CodeTransferFailed, status: 409, detail: "draining"},
		{name: "not healthy", target: "n2", change: func(f *fake) {
			f.peers[0] = cluster.PeerStatus{ID: "n2", Reasons: []string{"silent for 3s"}}
		}, code: cluster.CodeTransferFailed, status: 409, detail: "silent for 3s"},
		{
			name: "the best was given up in this term", change: func(f *fake) { f.peers[0].TransferBlocked = "given up" },
			leader: "n3", reached: true,
		},
		{name: "given up in this term", target: "n2", change: func(f *fake) {
			f.peers[0].TransferBlocked = "given up"
		}, code: cluster.CodeTransferFailed, status: 409, detail: "given up"},
		{
			name: "nobody can", change: func(f *fake) { f.peers = nil }, code: cluster.CodeTransferFailed, status: 409,
			detail: "no node can take over",
		},
		{
			name: "not the leader", target: "n2", change: func(f *fake) { f.lead("n3") }, code: cluster.CodeNoLeader,
			status: 503,
		},
		{
			name: "lags for ever", target: "n2", change: func(f *fake) { f.peers[0].LagEntries = 1e6 },
			code: cluster.CodeTransferFailed, status: 409, detail: "1000000 entries behind",
		},
		{name: "failed before the target was told", target: "n2", change: func(f *fake) {
			f.move = func(context.Context, *fake, cluster.NodeID) error { return sentError{false} }
		}, code: cluster.CodeTransferFailed, status: 409, detail: "n1 continues to lead", reached: true},
		{name: "told, another won", target: "n2", change: func(f *fake) {
			f.move = func(_ context.Context, f *fake, _ cluster.NodeID) error { f.lead("n3"); return sentError{true} }
		}, code: cluster.CodeTransferFailed, status: 504, detail: "node n3 leads", reached: true},
		{name: "told, the old leader goes on", target: "n2", change: func(f *fake) {
			f.move = func(context.Context, *fake, cluster.NodeID) error { return sentError{true} }
		}, code: cluster.CodeTransferFailed, status: 504, detail: "n1 continues to lead", reached: true},
		{name: "told, nobody leads", target: "n2", change: func(f *fake) {
			f.move = func(_ context.Context, f *fake, _ cluster.NodeID) error { f.lead(""); return sentError{true} }
		}, code: cluster.CodeTransferFailed, status: 504, detail: "no leader is known", reached: true},
		{name: "told, nobody leads, and this node returns", target: "n2", change: func(f *fake) {
			f.back = true
			f.move = func(_ context.Context, f *fake, _ cluster.NodeID) error { f.lead(""); return sentError{true} }
		}, code: cluster.CodeTransferFailed, status: 504, detail: "node n1 leads", reached: true},
		{name: "told, and it arrives late", target: "n2", change: func(f *fake) {
			f.move = func(_ context.Context, f *fake, _ cluster.NodeID) error {
				f.lead("")
				go func() { time.Sleep(resolveTimeout / 2); f.lead("n2") }()
				return sentError{true}
			}
		}, leader: "n2", reached: true},
		{name: "busy in consensus", target: "n2", change: func(f *fake) {
			f.move = func(context.Context, *fake, cluster.NodeID) error {
				return cluster.Errorf(cluster.CodeBusy,
					"busy")
			}
		}, code: cluster.CodeBusy, status: 503, reached: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				if tt.change != nil {
					tt.change(f)
				}
				var results []Result
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				out, err := newTransfer(f, &results).Execute(ctx, cluster.TransferNotice{
					To:      tt.target,
					Trigger: "manual",
					Reason:  "why", Operator: "anna",
				})
				if tt.leader != "" {
					if err != nil || out.NewLeader != tt.leader || out.OldLeader != "n1" ||
						out.Term != f.Status().Term {
						t.Fatalf("%+v, %v", out, err)
					}
				} else {
					var e *cluster.Error
					if errors.As(err, &e) && e.Status == 504 && e.Leader != f.Status().LeaderID {
						t.Errorf("it names %q as leader, %q leads", e.Leader, f.Status().LeaderID)
					}
					if !errors.As(err, &e) || e.Code != tt.code || e.HTTPStatus() != tt.status ||
						!strings.Contains(e.Detail, tt.detail) {
						t.Fatalf("%v", err)
					}
				}
				if reached := len(f.calls) > 0; reached != tt.reached {
					t.Errorf("the library was asked: %v", reached)
				} else if reached && (f.calls[0].Reason != "why" || f.calls[0].Trigger != "manual" ||
					f.calls[0].Operator != "anna") {
					t.Errorf("the target is told %+v", f.calls[0])
				}
				if lost := strings.HasPrefix(tt.name, "told, nobody") ||
					strings.HasSuffix(tt.name, "late"); len(f.returned) > 0 != lost || len(f.returned) > 1 {
					t.Errorf("it starts elections again in terms %v", f.returned)
				}
				recorded := tt.code != cluster.CodeBusy
				if tt.reached && (recorded != (len(results) == 1) ||
					recorded && (results[0].Err == nil) != (tt.leader != "")) {
					t.Errorf("results %+v", results)
				}
			})
		})
	}
}

func TestWaitsUntilCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.peers[0].LagEntries = 1000
		go func() {
			time.Sleep(3 * time.Second)
			f.mu.Lock()
			f.peers[0].LagEntries = 0
			f.mu.Unlock()
		}()
		var results []Result
		out, err := newTransfer(f, &results).Execute(context.Background(), cluster.TransferNotice{To: "n2"})
		if err != nil || out.Duration < 3*time.Second || out.Duration > 4*time.Second {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

// All are far behind. Leadership goes to the first one that has caught up.
func TestBest_FirstToCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.member(cluster.Member{ID: "n3", Priority: 200, Eligible: true, Lifecycle: cluster.Active})
		f.lags(0, 1e6)
		f.lags(1, 1e6)
		time.AfterFunc(2*time.Second, func() { f.lags(0, 0) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var results []Result
		out, err := newTransfer(f, &results).Execute(ctx, cluster.TransferNotice{})
		if err != nil || out.NewLeader != "n2" || out.Duration > 3*time.Second || results[0].Target != "n2" {
			t.Errorf("%+v, %v; results %+v", out, err, results)
		}
	})
}

// A transfer waits for a node that is far behind. A stopping leader, and an operator, move leadership meanwhile.
func TestWaitingTransferHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.lags(0, 1e6)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var results []Result
		tr := newTransfer(f, &results)
		waiting := make(chan error, 1)
		go func() { _, err := tr.Execute(ctx, cluster.TransferNotice{To: "n2"}); waiting <- err }()
		synctest.Wait()
		start := time.Now()
		out, err := tr.Execute(ctx, cluster.TransferNotice{Reason: "node n1 is stopping"})
		if err != nil || out.NewLeader != "n3" || time.Since(start) > time.Second {
			t.Errorf("%+v, %v, after %v", out, err, time.Since(start))
		}
		if err := <-waiting; !cluster.IsCode(err, cluster.CodeNoLeader) {
			t.Errorf("the one that waited: %v", err)
		}
	})
}

func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		started, release := make(chan struct{}), make(chan struct{})
		f.move = func(_ context.Context, f *fake, target cluster.NodeID) error {
			close(started)
			<-release
			f.lead(target)
			return nil
		}
		var results []Result
		tr := newTransfer(f, &results)
		first := make(chan error)
		go func() { _, err := tr.Execute(context.Background(), cluster.TransferNotice{To: "n2"}); first <- err }()
		<-started
		_, err := tr.Execute(context.Background(), cluster.TransferNotice{To: "n3"})
		var e *cluster.Error
		if !errors.As(err, &e) || e.Code != cluster.CodeBusy || e.Retryable() {
			t.Errorf("a second transfer: %v", err)
		}
		close(release)
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}
