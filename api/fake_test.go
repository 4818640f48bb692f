package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api/apiv1"
	"northstar/api/attach"
	"northstar/api/problem"
	"northstar/cluster"
	"northstar/roles"
	"northstar/state"
	"northstar/telemetry"
)

// fakeCluster is a cluster of one real state, whose node leads or not as the
// test says.
type fakeCluster struct {
	mu      sync.Mutex
	st      cluster.NodeStatus
	peers   []cluster.PeerStatus
	state   *state.State
	applies *sync.Mutex // guards state.Apply: two nodes of a test may share a state
	changed chan struct{}

	propose      func(context.Context, state.Command) (state.Result, error) // instead of the real thing
	barrier      func(context.Context) error
	members      []string // calls, as text
	awaitApplied int      // calls
	backup       string
	fail         error              // of membership, backup and restore
	left         []cluster.Survivor // that answer this node
	resume       cluster.NodeID     // the recovered node, if a recovery is to be completed
}

func newFakeCluster(id string, leads bool) *fakeCluster {
	f := &fakeCluster{state: state.New(state.Options{}), applies: new(sync.Mutex), changed: make(chan struct{})}
	f.st = cluster.NodeStatus{
		Identity: cluster.Identity{
			NodeID: cluster.NodeID(id), ClusterID: "c1", Incarnation: "i1",
			Generation: cluster.Generation{Number: 1},
		},
		Lifecycle: cluster.Active, CaughtUp: true, LeaderContactAge: -1, StateAge: -1, Role: cluster.Follower, Term: 1,
		Servers: []cluster.Server{
			{ID: "n1", Address: "h1:7700", Suffrage: cluster.Voter},
			{ID: "n2", Address: "h2:7700", Suffrage: cluster.Voter},
			{ID: "n3", Address: "h3:7700", Suffrage: cluster.Voter},
		},
	}
	if leads {
		f.lead(cluster.NodeID(id), 2)
	}
	return f
}

// lead makes the node the leader. With an empty ID, there is no leader.
func (f *fakeCluster) lead(id cluster.NodeID, term uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.st.LeaderID, f.st.Term, f.st.LeaderRaftAddress = id, term, ""
	f.st.Role, f.st.LeaderContactAge, f.st.StateAge = cluster.Follower, -1, -1
	if id != "" {
		f.st.LeaderRaftAddress = string(id) + ":7700"
		f.st.LeaderContactAge, f.st.StateAge = 20*time.Millisecond, 20*time.Millisecond
	}
	if id == f.st.NodeID {
		f.st.Role, f.st.LeaderContactAge, f.st.StateAge = cluster.Leader, 0, 0
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeCluster) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeCluster) apply(c state.Command) state.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applies.Lock()
	defer f.applies.Unlock()
	return f.state.Apply(f.state.View().AppliedIndex()+1, f.st.Term, []state.Command{c})[0]
}

func (f *fakeCluster) put(key, value string) state.Result {
	return f.apply(state.Command{
		Kind: state.KindPut, Now: time.Now().UnixNano(),
		Put: &state.Put{Key: key, Value: []byte(value)},
	})
}

func (f *fakeCluster) addRecord(m cluster.Member) {
	f.apply(state.Command{Kind: state.KindMember, Now: 1, Member: &m})
}

func (f *fakeCluster) notLeading() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.st.Role != cluster.Leader {
		return cluster.Errorf(cluster.CodeNoLeader, "does not lead")
	}
	return nil
}

func (f *fakeCluster) Propose(ctx context.Context, c state.Command) (state.Result, error) {
	f.mu.Lock()
	hook := f.propose
	f.mu.Unlock()
	if hook != nil {
		return hook(ctx, c)
	}
	if err := f.notLeading(); err != nil {
		return state.Result{}, err
	}
	c.Now = time.Now().UnixNano()
	return f.apply(c), nil
}

func (f *fakeCluster) ReadBarrier(ctx context.Context) error {
	f.mu.Lock()
	hook := f.barrier
	f.mu.Unlock()
	if hook != nil {
		return hook(ctx)
	}
	return f.notLeading()
}

func (f *fakeCluster) LeaseReadBarrier(ctx context.Context) error { return f.ReadBarrier(ctx) }
func (f *fakeCluster) View() *state.View                          { return f.state.View() }
func (f *fakeCluster) Feed() *state.Feed                          { return f.state.Feed() }

// Those up to ReadIndex are for calls to the leader.
func (f *fakeCluster) Applied() uint64                            { return f.View().AppliedIndex() }
func (f *fakeCluster) AwaitApplied(context.Context, uint64) error { return nil }

func (f *fakeCluster) Asker() cluster.Asker { return cluster.Asker{Applied: f.Applied()} }

func (f *fakeCluster) ReadIndex(ctx context.Context, _ cluster.Asker) (uint64, error) {
	return f.Applied(), f.ReadBarrier(ctx)
}

func (f *fakeCluster) RoleFeed() *state.Feed { return f.state.RoleFeed() }
func (f *fakeCluster) NodeFeed() *state.Feed { return f.state.NodeFeed() }

func (f *fakeCluster) Status() cluster.NodeStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.st
}

func (f *fakeCluster) Peers() []cluster.PeerStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.peers
}

func (f *fakeCluster) LeaderChanged() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fakeCluster) admin(call string) error {
	if err := f.notLeading(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = append(f.members, call)
	return f.fail
}

func (f *fakeCluster) AwaitAppliedEverywhere(context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaitApplied++
}

func (f *fakeCluster) ChangeMember(_ context.Context, ch cluster.MemberChange) error {
	planned := ""
	if ch.Membership != "" {
		planned = " as planned for " + ch.Membership
	}
	switch m, _ := f.View().Member(ch.ID); {
	case ch.Add != nil && ch.Add.ByNode && m.Removed:
		return cluster.Errorf(cluster.CodeForbidden, "only an operator may add it again")
	case ch.Add != nil:
		return f.admin("add " + text(ch.Add) + planned)
	case ch.Patch != nil:
		return f.admin("patch " + string(ch.ID) + " " + text(ch.Patch) + planned)
	}
	return f.admin("remove " + string(ch.ID) + planned)
}

// PlanChange rejects every change of n3, and its plans name n1 as the leader.
func (f *fakeCluster) PlanChange(_ context.Context, ch cluster.MemberChange) (cluster.Plan, error) {
	if err := f.notLeading(); err != nil {
		return cluster.Plan{}, err
	}
	p := cluster.Plan{
		Action: ch.Action(), Term: f.Status().Term, Membership: "m", Leader: "n1", Target: ch.ID,
		Params: text(ch), Summary: "it is done", MovesLeader: ch.ID == "n1",
	}
	if ch.ID == "n3" {
		p.Refusal = cluster.Errorf(cluster.CodeQuorumAtRisk, "too few")
	}
	return p, nil
}

func (f *fakeCluster) PlanRecovery(_ context.Context, o cluster.RecoveryRequest) (cluster.RecoveryPlan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in := cluster.RecoveryInputs{
		Identity: f.st.Identity, Servers: f.st.Servers,
		Responses: map[cluster.NodeID]cluster.Survivor{},
	}
	for _, s := range f.left {
		in.Responses[s.ID] = s
	}
	return cluster.PlanRecovery(o, in)
}

func (f *fakeCluster) ResumeRecovery(o cluster.RecoveryRequest) (cluster.RecoveryPlan, cluster.Generation, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	plan := cluster.RecoveryPlan{ClusterID: o.Confirm, Generation: 2, Chosen: f.resume, Survivors: f.left}
	return plan, cluster.Generation{Number: 2, RecoveryID: "r"}, f.resume != ""
}

func (f *fakeCluster) Recover(_ context.Context, o cluster.RecoveryRequest) (cluster.Generation, error) {
	f.mu.Lock()
	f.members = append(f.members, "recover "+text(o))
	f.st.Generation = cluster.Generation{Number: f.st.Generation.Number + 1, RecoveryID: "r"}
	g := f.st.Generation
	f.mu.Unlock()
	f.lead(f.st.NodeID, 1000002)
	return g, nil
}

func (f *fakeCluster) SetAside(_ context.Context, clusterID string, leader cluster.NodeID, g cluster.Generation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = append(f.members, "aside "+clusterID+" "+string(leader)+" "+text(g))
	return f.fail
}

func (f *fakeCluster) Backup(_ context.Context, w io.Writer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := io.WriteString(w, f.backup); err != nil {
		return err
	}
	return f.fail
}

func (f *fakeCluster) Restore(_ context.Context, r io.Reader) error {
	if err := f.notLeading(); err != nil {
		return err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(data), "backup") {
		return problem.BadRequest("backup: damaged")
	}
	return f.admin("restore " + string(data[:min(len(data), 20)]))
}

func (f *fakeCluster) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.members...)
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// fakeTransfer answers as the test says.
type fakeTransfer func(context.Context, cluster.NodeID) (cluster.TransferOutcome, error)

func (f fakeTransfer) Execute(ctx context.Context, _ cluster.LeadershipRequest,
	p cluster.Plan,
) (cluster.TransferOutcome, error) {
	return f(ctx, p.Target)
}

// Plan is that of a leader n1 of term 2 whose best successor is n2.
func (f fakeTransfer) Plan(_ context.Context, o cluster.LeadershipRequest) (cluster.Plan, error) {
	p := cluster.Plan{
		Action: o.Action, Term: 2, Membership: "m", Leader: "n1", Target: o.Target, Summary: "it is moved",
		Risk: cluster.RiskLow,
		Candidates: []cluster.TargetOption{
			{ID: "n2", Eligible: true, Voter: true, Priority: 100, LagEntries: 3},
			{ID: "n3", Reason: "it is draining"},
		},
		Gap:      cluster.Gap{Expected: 4200 * time.Microsecond, Worst: 9 * time.Millisecond, Samples: 7},
		Warnings: []string{"careful"},
	}
	switch o.Target {
	case "":
		p.Target = "n2"
	case "n7":
		p.Refusal = problem.Status(404, "target_leader_id: n7 is no member")
	case "n3":
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "node n3 is draining")
	}
	return p, nil
}

func noTransfer(context.Context, cluster.NodeID) (cluster.TransferOutcome, error) {
	return cluster.TransferOutcome{}, errors.New("no transfer is expected")
}

// newSessionManager keeps the clocks of a fake cluster's sessions, once Lead is called.
func newSessionManager(f *fakeCluster) *roles.SessionManager {
	start := time.Now()
	return roles.New(roles.Deps{
		Consensus: f, Clock: func() time.Duration { return time.Since(start) },
		Event: func(cluster.Event) {}, NodeRetention: time.Hour, Logger: hclog.NewNullLogger(),
	})
}

func (f *fakeCluster) Watched() (bool, <-chan struct{}) { return false, nil }

func (f *fakeCluster) Subscribe(cluster.NodeID) error { return nil }

// testDeps are dependencies of a node that everybody may operate.
func testDeps(f *fakeCluster) Deps {
	return Deps{
		Reads:      f,
		Proposals:  f,
		Membership: f,
		Recovery:   f,
		Backups:    f,
		Leader:     f,
		Consensus:  f,
		Renewals:   func(r *attach.Server) attach.Renewals { return roles.NewAttachments(r, 300*time.Millisecond) },
		Leadership: fakeTransfer(noTransfer),
		Sessions:   newSessionManager(f),
		SplitBrain: &fakeSplitBrain{},
		EventLog:   telemetry.NewEventLog(f.st.NodeID, "boot1", 64, hclog.NewNullLogger()),
		Metrics:    telemetry.New(),
		Logger:     hclog.NewNullLogger(),
		Node: NodeInfo{
			ID: f.st.NodeID, BootID: "boot1", ClusterName: "test", HTTPAddress: "127.0.0.1:7701",
			RaftAddress: "127.0.0.1:7700",
			Version:     "v0", StartedAt: time.Now().Add(-72 * time.Hour), Priority: 100, Eligible: true,
		},
		TimeoutMax:        300 * time.Millisecond,
		TransferTimeout:   30 * time.Second,
		Audit:             &fakeAuditor{},
		Entropy:           rand.Reader,
		AddressOf:         func(cluster.NodeID) string { return "" },
		LeaderProcessDead: func(cluster.NodeID, uint64) bool { return false },
		Warnings:          func() []string { return nil },
		ElectionObstacle:  func() string { return "" },
		Restart:           func() {},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
	}
}

// node is a Server behind a real listener.
type node struct {
	*Server
	t    *testing.T
	fake *fakeCluster
	addr string
	http *http.Client
}

// startServer runs a server on deps until the test ends.
func startServer(t *testing.T, f *fakeCluster, change ...func(*Deps)) *node {
	t.Helper()
	l := listen(t)
	d := testDeps(f)
	d.Node.HTTPAddress = l.Addr().String()
	_, memory := l.(*memoryListener)
	if memory {
		d.Dial = dialMemory
	}
	for _, c := range change {
		c(&d)
	}
	s, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	hs := s.HTTPServer()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	wg.Go(func() { _ = hs.Serve(s.Listener(l, nil)) })
	tr := &http.Transport{DisableCompression: true}
	if memory {
		tr.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) { return dialMemory(ctx, addr) }
	}
	n := &node{Server: s, t: t, fake: f, addr: l.Addr().String(), http: &http.Client{
		Transport:     tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		cancel()
		_ = hs.Close()
		wg.Wait()
		if memory {
			time.Sleep(time.Second) // net/http waits before it closes a connection with unread bytes
		}
	})
	n.waitForLeaderView()
	return n
}

// verifyPlan waits until the server knows of the leader what the cluster knows.
func (n *node) waitForLeaderView() {
	n.t.Helper()
	eventually(n.t, func() bool {
		v, st := n.leader.Current(), n.fake.Status()
		return v.ID == st.LeaderID && v.Term == st.Term
	})
}

// reply is an answer, read.
type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request. Headers come as pairs.
func (n *node) do(method, path, body string, headers ...string) reply {
	n.t.Helper()
	req, err := http.NewRequest(method, "http://"+n.addr+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	if body == "" {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp, err := n.http.Do(req)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, path, err)
	}
	return reply{resp.StatusCode, resp.Header, string(data)}
}

// problem checks that the answer is a whole problem document, and returns it.
func (r reply) problem(t *testing.T) apiv1.Problem {
	t.Helper()
	if got := r.header.Get("Content-Type"); got != apiv1.TypeProblem {
		t.Fatalf("status %d: Content-Type %q, body %q", r.status, got, r.body)
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(r.body), &fields); err != nil {
		t.Fatalf("body %q: %v", r.body, err)
	}
	for _, name := range []string{"type", "title", "status", "detail", "code", "name", "retryable"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("problem %s has no %s", r.body, name)
		}
	}
	var p apiv1.Problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatal(err)
	}
	if p.Status != r.status {
		t.Errorf("problem says %d, the answer is %d", p.Status, r.status)
	}
	return p
}

// is checks status and code of a problem.
func (r reply) is(t *testing.T, status int, code cluster.Code) apiv1.Problem {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d: %s", r.status, status, r.body)
	}
	p := r.problem(t)
	if p.Code != int(code) || p.Name != code.Name() {
		t.Fatalf("code %d %s, want %d: %s", p.Code, p.Name, code, p.Detail)
	}
	return p
}
