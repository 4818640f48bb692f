package failover

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/state"
)

const timeoutMin = 150 * time.Millisecond

// testCluster is all that a Controller of node n2 sees, in virtual time: n1 leads in
// term 5, all are voters.
type testCluster struct {
	t *testing.T

	mu              sync.Mutex
	status          cluster.NodeStatus
	mine            cluster.Claim
	contact         time.Time // with the leader
	claims          map[cluster.NodeID]cluster.ReceivedClaim
	answer          func() map[cluster.NodeID]cluster.ReceivedClaim // to polls; nil: seen
	alive           cluster.Liveness
	answers         string        // boot ID of n1's process that answers; "": none
	answerTime      time.Duration // after so long
	peers           []cluster.PeerStatus
	view            *state.View
	changed         chan struct{}
	confirmed       int
	started         []time.Time
	raises          bool // StartElection ends a candidacy first
	events          []cluster.Event
	asked           []time.Time // requests for a claim of the silent leader
	needless        []string    // causes
	announced       int         // how often this node's claim was sent to all
	moves           []cluster.TransferNotice
	cause           cluster.ElectionCause // that an election must have
	onStartElection func(*testCluster)    // the outcome of n2's election
	hangs           bool                  // n1 keeps a poll waiting until its end
	moved           func(ctx context.Context, to cluster.NodeID) error
	polled          func(peers []cluster.NodeID)
	barriers        int
	inside          time.Duration  // for how long Raft is inside an append when it is asked
	awake           bool           // n1 answers when it is asked
	slow            cluster.NodeID // keeps a poll waiting until its end
	slowFor         time.Duration  // or for so long
	news            chan struct{}  // closed at the next claim

	c *Controller
}

func newTestCluster(t *testing.T, voters ...cluster.NodeID) *testCluster {
	w := &testCluster{
		t: t, claims: map[cluster.NodeID]cluster.ReceivedClaim{}, alive: cluster.LivenessDead,
		changed: make(chan struct{}),
		contact: time.Now(), news: make(chan struct{}), view: state.New(state.Options{HistoryRevisions: 10}).View(),
	}
	w.status = cluster.NodeStatus{
		Identity: cluster.Identity{NodeID: "n2"}, Role: cluster.Follower, Term: 5,
		LeaderID: "n1",
	}
	for _, id := range voters {
		w.status.Servers = append(w.status.Servers, cluster.Server{ID: id, Suffrage: cluster.Voter})
		w.claims[id] = cluster.ReceivedClaim{Claim: claimOf(id), At: time.Now(), Connected: true}
	}
	w.mine = claimOf("n2")
	delete(w.claims, "n2")
	leader := w.claims["n1"]
	leader.Claim.Role, leader.Claim.BootID = cluster.Leader, "b1"
	w.claims["n1"] = leader
	return w
}

func claimOf(id cluster.NodeID) cluster.Claim {
	return cluster.Claim{
		NodeID: id, Term: 5, Role: cluster.Follower, LeaderID: "n1", LeaderBootID: "b1", LastLogTerm: 5,
		LastLogIndex: 44,
		Priority:     100, Eligible: true, IsVoter: true, Lifecycle: cluster.Active,
	}
}

// start runs a Controller over the world until the test's bubble ends.
func (w *testCluster) start(cfg Config) *Controller {
	cfg.Self, cfg.TimeoutMin, cfg.TimeoutMax = "n2", timeoutMin, 2*timeoutMin
	w.c = New(cfg, Deps{
		Claim: w.claim, Peers: w, Raft: func() Raft { return w }, Consensus: w.consensus(), Transfer: w,
		Event: func(e cluster.Event) {
			w.mu.Lock()
			w.events = append(w.events,
				e)
			w.mu.Unlock()
		}, Needless: func(cause string, _ cluster.Event) {
			w.mu.Lock()
			w.needless = append(w.needless, cause)
			w.mu.Unlock()
		}, Announce: func() { w.edit(func() { w.announced++ }) }, Logger: hclog.NewNullLogger(),
	})
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.c.Run(ctx); err != nil {
			w.t.Errorf("run: %v", err)
		}
	}()
	w.t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
	return w.c
}

func (w *testCluster) claim() cluster.Claim {
	w.mu.Lock()
	c := w.mine
	c.Role, c.Term, c.LeaderID = w.status.Role, w.status.Term, w.status.LeaderID
	c.LeaderBootID = ""
	c.LeaderSilence = time.Since(w.contact)
	c.LeaderContactAge = c.LeaderSilence
	w.mu.Unlock()
	if w.c != nil {
		w.c.AnnotateClaim(&c)
	}
	return c
}

func (w *testCluster) Claims() map[cluster.NodeID]cluster.ReceivedClaim {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.claims)
}

func (w *testCluster) ClaimsChanged() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.news
}

func (w *testCluster) Poll(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim {
	time.Sleep(100 * time.Microsecond)
	w.mu.Lock()
	answer, polled, slow := w.answer, w.polled, w.slow
	w.mu.Unlock()
	if polled != nil {
		polled(peers)
	}
	all := w.Claims()
	if answer != nil {
		all = answer()
	}
	got := map[cluster.NodeID]cluster.ReceivedClaim{}
	for _, id := range peers {
		if id == slow {
			select {
			case <-time.After(cmp.Or(w.slowFor, time.Hour)):
			case <-ctx.Done():
				continue
			}
		}
		if id == "n1" {
			if !w.awake {
				if w.hangs {
					<-ctx.Done()
				} else {
					time.Sleep(pollWait) // for an answer that does not come
				}
				continue
			}
			w.edit(func() { w.contact = time.Now() })
		}
		if s, ok := all[id]; ok {
			s.At = time.Now()
			got[id] = s
		}
	}
	return got
}

// Ask requests a claim of n1, which answers if it is awake.
func (w *testCluster) Ask(peer cluster.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, time.Now())
	if peer == "n1" && w.awake {
		w.contact = time.Now()
	}
}

func (w *testCluster) Confirm(context.Context, cluster.NodeID, string) cluster.Liveness {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.confirmed++
	return w.alive
}

func (w *testCluster) Answer(ctx context.Context, _ cluster.NodeID) (bootID string) {
	w.mu.Lock()
	boot, wait := w.answers, w.answerTime
	w.mu.Unlock()
	if boot == "" {
		wait = time.Hour
	}
	select {
	case <-time.After(wait):
		return boot
	case <-ctx.Done():
		return ""
	}
}

func (w *testCluster) WaitMainLoop(ctx context.Context) error {
	w.mu.Lock()
	w.barriers++
	inside := w.inside
	w.mu.Unlock()
	select {
	case <-time.After(inside):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *testCluster) Choices() []cluster.TargetOption {
	return []cluster.TargetOption{
		{ID: "n3", Eligible: true, Voter: true, Priority: 100},
		{ID: "n1", Reason: "node n1 is draining", Voter: true},
	}
}

func (w *testCluster) StartElection(_ context.Context, term uint64, by cluster.ElectionCause) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if by != w.cause {
		w.t.Errorf("cause %v, want %v", by, w.cause)
	}
	if term != w.status.Term {
		return 0, errors.New("the term has moved")
	}
	w.started = append(w.started, time.Now())
	if w.raises {
		term++
		w.c.OnTermRaised(term)
	}
	if w.onStartElection != nil {
		go w.onStartElection(w)
	}
	return term + 1, nil
}

func (w *testCluster) Execute(ctx context.Context, h cluster.TransferNotice) (cluster.TransferOutcome, error) {
	w.mu.Lock()
	w.moves = append(w.moves, h)
	moved := w.moved
	w.mu.Unlock()
	if moved != nil {
		return cluster.TransferOutcome{}, moved(ctx, h.To)
	}
	return cluster.TransferOutcome{NewLeader: h.To}, nil
}

// fakeConsensus keeps Peers apart: the transport's are other ones.
type fakeConsensus struct{ w *testCluster }

func (w *testCluster) consensus() fakeConsensus { return fakeConsensus{w} }

func (f fakeConsensus) Status() cluster.NodeStatus {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return f.w.status
}

func (f fakeConsensus) Peers() []cluster.PeerStatus {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return f.w.peers
}

func (f fakeConsensus) LeaseWait() time.Duration { return 0 }

func (f fakeConsensus) View() *state.View { return f.w.view }

func (f fakeConsensus) LeaderChanged() <-chan struct{} {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return f.w.changed
}

// lead makes a node the leader that n2 knows.
func (w *testCluster) lead(id cluster.NodeID, term uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.LeaderID, w.status.Term = id, term
	w.contact = time.Now()
	close(w.changed)
	w.changed = make(chan struct{})
}

// report makes the other voters report the leader as lost.
func (w *testCluster) report(ids ...cluster.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		s := w.claims[id]
		s.Claim.LeaderProcessDead, s.Claim.LeaderSilence = true, 10*time.Millisecond
		w.claims[id] = s
	}
	close(w.news)
	w.news = make(chan struct{})
}

// receive makes a claim arrive of a node that has not heard the leader for a second.
func (w *testCluster) receive(id cluster.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.claims[id]
	s.At, s.Claim.LeaderSilence = time.Now(), time.Second
	w.claims[id] = s
	close(w.news)
	w.news = make(chan struct{})
}

// hang makes the other voters hear nothing of the leader since the start.
func (w *testCluster) hang(ids ...cluster.NodeID) {
	began := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim {
		all := w.Claims()
		for _, id := range ids {
			s := all[id]
			s.Claim.LeaderSilence = time.Since(began)
			all[id] = s
		}
		return all
	}
}

func (w *testCluster) loss() {
	w.c.OnConnectionLost(cluster.ConnectionLoss{Peer: "n1", BootID: "b1", At: time.Now()})
}

func (w *testCluster) elections() []time.Time {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.started
}

func (w *testCluster) edit(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}
