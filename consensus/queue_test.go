package consensus

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/state"
)

func newProposal(size int, own bool) *proposal {
	return &proposal{cmd: state.Command{}, size: size, own: own, done: make(chan outcome, 1)}
}

func mustAdd(t *testing.T, q *queue, p *proposal) *proposal {
	t.Helper()
	if err := q.add(p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestQueueGate(t *testing.T) {
	t.Parallel()
	q := newQueue()
	user, own := mustAdd(t, q, newProposal(10, false)), mustAdd(t, q, newProposal(10, true))
	if b := q.nextBatch(); len(b) != 1 || b[0] != own {
		t.Fatalf("took %v before the gate opened, want this package's own", b)
	}
	q.done()
	if b := q.nextBatch(); b != nil {
		t.Fatal("took a user's proposal before the gate opened")
	}
	q.setGate(true)
	q.freeze(true)
	if q.nextBatch() != nil {
		t.Fatal("took from a frozen queue")
	}
	q.freeze(false)
	if b := q.nextBatch(); len(b) != 1 || b[0] != user {
		t.Fatalf("took %v", b)
	}
}

func TestQueueBatches(t *testing.T) {
	t.Parallel()
	q := newQueue()
	q.setGate(true)
	for range 3 {
		mustAdd(t, q, newProposal(maxBatchBytes/2, false))
	}
	mustAdd(t, q, newProposal(4*maxBatchBytes, false))
	withdrawn := mustAdd(t, q, newProposal(1, false))
	if !withdrawn.withdraw() {
		t.Fatal("not withdrawn from the queue")
	}
	var sizes []int
	for b := q.nextBatch(); b != nil; b = q.nextBatch() {
		sizes = append(sizes, len(b))
		q.done()
	}
	if len(sizes) != 3 || sizes[0] != 2 || sizes[1] != 1 || sizes[2] != 1 {
		t.Errorf("batches of %v, want 2 that fit, 1, and 1 that is too large for any", sizes)
	}
	if q.bytes != 0 || withdrawn.withdraw() {
		t.Errorf("%d bytes left", q.bytes)
	}
}

// Writes of keys go with a leader-start that leads them, and directly behind it; everything else waits for the gate.
func TestQueue_PiggybackedWrites(t *testing.T) {
	t.Parallel()
	command := func(p *proposal, kind state.Kind) *proposal {
		p.cmd.Kind = kind
		p.needs = p.cmd.MinVersion()
		return p
	}
	session := command(newProposal(10, false), state.KindSessionCreate)
	txn := command(newProposal(10, false), state.KindTxn) // needs a newer version than an audited write
	member := command(newProposal(10, false), state.KindMemberPatch)
	write, remove := command(newProposal(10, false), state.KindPut), command(newProposal(10, false), state.KindDelete)
	audited := command(newProposal(10, false), state.KindPut)
	audited.cmd.Audit = &state.AuditRecord{}
	audited.needs = audited.cmd.MinVersion()
	start := command(newProposal(10, true), state.KindLeaderStart)
	for _, tt := range []struct {
		piggybackVersion uint32
		want             []*proposal
	}{
		{0, []*proposal{start}},
		{1, []*proposal{start, write, remove}},
		{state.CommandVersion, []*proposal{start, write, audited, remove, txn}},
	} {
		q := newQueue()
		for _, p := range []*proposal{session, write, member, audited, remove, txn, start} {
			p.stage.Store(queued)
			mustAdd(t, q, p)
		}
		start.piggybackVersion = tt.piggybackVersion
		if got := q.nextBatch(); !slices.Equal(got, tt.want) {
			t.Errorf("piggyback version %v: took %d, want %d", tt.piggybackVersion, len(got), len(tt.want))
		}
		if tt.piggybackVersion < state.CommandVersion {
			continue
		}
		if got := q.dequeuePiggybacked(start, 0); got != nil {
			t.Errorf("behind it went %d, want none", len(got))
		}
		late := mustAdd(t, q, command(newProposal(10, false), state.KindPut))
		if got := q.dequeuePiggybacked(start, 0); len(got) != 1 || got[0] != late || len(q.inFlight) != 6 {
			t.Errorf("behind it went %d, and %d are in flight", len(got), len(q.inFlight))
		}
		q.done()
		if q.inFlight != nil || q.nextBatch() != nil || q.bytes != 20 {
			t.Errorf("%d in flight, %d bytes wait", len(q.inFlight), q.bytes)
		}
		q.setGate(true)
		if got := q.nextBatch(); !slices.Equal(got, []*proposal{session, member}) {
			t.Errorf("behind the gate: %d", len(got))
		}
		mustAdd(t, q, write)
		q.freeze(true)
		if q.dequeuePiggybacked(start, 0) != nil {
			t.Error("taken from a frozen queue")
		}
	}
}

// A leader-start waits for as many writes as were held, and not for longer than it may.
func TestAwaitHeldWrites(t *testing.T) {
	t.Parallel()
	write := func() *proposal { p := newProposal(10, false); p.cmd.Kind = state.KindPut; return p }
	large := func() *proposal { p := newProposal(maxBatchBytes/2-10, false); p.cmd.Kind = state.KindPut; return p }
	other := func() *proposal { p := newProposal(10, false); p.cmd.Kind = state.KindSessionCreate; return p }
	for _, tt := range []struct {
		name  string
		held  int
		there int         // in the batch already
		come  []*proposal // 0.1 ms apart
		want  int
		took  time.Duration
	}{
		{"none is held", 0, 0, nil, 0, 0},
		{"it is in the batch", 1, 1, nil, 0, 0},
		{"two come", 2, 0, []*proposal{write(), write()}, 2, 200 * time.Microsecond},
		{"one that does not ride is counted, too", 2, 0, []*proposal{other(), write()}, 1, 200 * time.Microsecond},
		{"one does not come", 2, 0, []*proposal{write()}, 1, heldWritesWait},
		{"one entry has no room for all", 4, 0, []*proposal{large(), large(), large(), write()}, 2, 400 * time.Microsecond},
		{"a start is little", 2, 0, []*proposal{large(), write()}, 2, 200 * time.Microsecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &Node{
					queue: newQueue(), state: state.New(state.Options{}),
					deps: Deps{HeldWrites: func() int { return tt.held }},
				}
				start := &proposal{piggybackVersion: 1, size: 10}
				batch := []*proposal{start}
				for range tt.there {
					batch = append(batch, write())
				}
				go func() {
					for _, p := range tt.come {
						time.Sleep(100 * time.Microsecond)
						mustAdd(t, n.queue, p)
					}
				}()
				began := time.Now()
				got := n.awaitHeldWrites(start, batch)
				if added := len(got) - len(batch); added != tt.want || time.Since(began) != tt.took {
					t.Errorf("%d after %v, want %d after %v", added, time.Since(began), tt.want, tt.took)
				}
				if size := sizeOf(got); size > maxBatchBytes {
					t.Errorf("%d bytes in one entry, want at most %d", size, maxBatchBytes)
				}
			})
		})
	}
}

func TestLeavesMembers(t *testing.T) {
	t.Parallel()
	batch := func(kinds ...state.Kind) []byte {
		commands := map[state.Kind]state.Command{
			state.KindPut:         {Kind: state.KindPut, Put: &state.Put{Key: "k"}},
			state.KindMemberPatch: {Kind: state.KindMemberPatch, MemberPatch: &state.MemberPatch{ID: "n1"}},
		}
		var cmds []state.Command
		for _, k := range kinds {
			cmds = append(cmds, commands[k])
		}
		data, err := state.EncodeBatch(cmds)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, tt := range []struct {
		name  string
		entry raft.Log
		want  bool
	}{
		{"the library's own", raft.Log{Type: raft.LogNoop}, true},
		{"a barrier", raft.Log{Type: raft.LogBarrier}, true},
		{"who the members are", raft.Log{Type: raft.LogConfiguration}, false},
		{"writes", raft.Log{Type: raft.LogCommand, Data: batch(state.KindPut, state.KindPut)}, true},
		{
			"a member's record among writes",
			raft.Log{Type: raft.LogCommand, Data: batch(state.KindPut, state.KindMemberPatch)},
			false,
		},
		{"nothing that can be read", raft.Log{Type: raft.LogCommand, Data: []byte{0xff}}, false},
	} {
		if got := keepsMembership(&tt.entry); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	q := newQueue()
	for range maxQueued {
		mustAdd(t, q, newProposal(1, false))
	}
	err := q.add(newProposal(1, false))
	if err == nil || err.Code != cluster.CodeBusy || !err.Retryable() {
		t.Fatalf("count: %v", err)
	}
	if !q.users[5].withdraw() {
		t.Fatal("not withdrawn")
	}
	mustAdd(t, q, newProposal(1, false)) // in its place
	mustAdd(t, q, newProposal(1, true))  // own ones are not bounded by users'

	q = newQueue()
	mustAdd(t, q, newProposal(maxQueuedBytes+1, false)) // one always fits
	if err := q.add(newProposal(1, false)); err == nil || err.Code != cluster.CodeBusy {
		t.Fatalf("bytes: %v", err)
	}
}

func TestQueueRefuse(t *testing.T) {
	t.Parallel()
	q := newQueue()
	q.setGate(true)
	flying := mustAdd(t, q, newProposal(1, false))
	q.nextBatch()
	waiting := mustAdd(t, q, newProposal(1, false))
	q.refuse(notLeader("lost"))
	if o := <-waiting.done; !cluster.IsCode(o.err, cluster.CodeNoLeader) {
		t.Errorf("waiting: %v", o.err)
	}
	select {
	case o := <-flying.done:
		t.Errorf("in flight: answered %v although Raft may still commit it", o.err)
	default:
	}
	q.abandon(errors.New("stalled"))
	if o := <-flying.done; !cluster.IsCode(o.err, cluster.CodeOutcomeUnknown) {
		t.Errorf("abandoned: %v", o.err)
	}
	flying.finish(outcome{}) // the late answer of Raft goes nowhere
	q.done()
	mustAdd(t, q, newProposal(1, false))
	if q.nextBatch() != nil {
		t.Error("the gate is open after a refusal")
	}
	q.stop()
	if err := q.add(newProposal(1, true)); err == nil || err.Code != cluster.CodeNoLeader {
		t.Errorf("after stop: %v", err)
	}
}

func TestQueueIdle(t *testing.T) {
	t.Parallel()
	q := newQueue()
	if err := q.idle(context.Background()); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, q, newProposal(1, true))
	q.nextBatch()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if q.idle(gone) == nil {
		t.Error("idle with a batch in flight")
	}
	done := make(chan error, 1)
	go func() { done <- q.idle(context.Background()) }()
	q.done()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A transaction counts with the values in all its operations: the queue is bounded in bytes.
func TestQueuedBytesOfTransactions(t *testing.T) {
	t.Parallel()
	value := make([]byte, 1000)
	put := func(key string) state.Op { return state.Op{Put: &state.TxnPut{Key: key, Value: value}} }
	cmd := state.Command{Kind: state.KindTxn, Txn: &state.Txn{
		Compare: []state.Compare{{Key: "a", Target: state.CompareValue, Value: value}},
		Success: []state.Op{put("a"), {Txn: &state.Txn{Success: []state.Op{put("b")}, Failure: []state.Op{put("c")}}}},
		Failure: []state.Op{put("d")},
	}}
	raw, err := state.EncodeBatch([]state.Command{cmd})
	if n := queuedBytes(&cmd); err != nil || n < 5000 || n < len(raw)-100 || n > len(raw)+500 {
		t.Errorf("%d bytes in the queue, %d in the log, %v", n, len(raw), err)
	}
}

// Commands of every kind count with what they need in the log: followers refuse an entry that is too large.
func TestBatchesAreBoundedInTheLog(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 4096)
	audited := state.Command{
		Kind: state.KindPut, Put: &state.Put{Key: "k"}, Fence: &state.FencingToken{Role: long[:1024], Token: 1},
		Audit: &state.AuditRecord{What: long[:2048], From: long[:64], Who: "a", Request: long[:2048]},
	}
	for name, cmd := range map[string]state.Command{
		"put": audited,
		"session": {Kind: state.KindSessionCreate, SessionCreate: &state.SessionCreate{
			Nonce: "abcdefgh", TTL: time.Second, Meta: map[string]string{"m": long[:4000]},
		}},
		"campaign": {Kind: state.KindRoleCampaign, RoleCampaign: &state.RoleCampaign{
			Role: "r", Session: "s", Value: long,
		}},
		"node":   largeRegistration(),
		"member": {Kind: state.KindMemberPatch, MemberPatch: &state.MemberPatch{ID: "n1", Zone: &long}},
		"audit": {Kind: state.KindAudit, AuditBatch: &state.AuditBatch{
			Producer: "n1", First: 1, Records: []state.AuditRecord{{What: long[:2048]}, {What: long[:2048]}},
		}},
	} {
		raw, err := state.EncodeBatch([]state.Command{cmd})
		if err != nil {
			t.Fatal(err)
		}
		q := newQueue()
		q.setGate(true)
		for range maxQueued {
			if q.add(newProposal(queuedBytes(&cmd), false)) != nil {
				break
			}
		}
		if batch := q.nextBatch(); len(batch)*len(raw) > maxBatchBytes {
			t.Errorf("%s: a batch has %d commands of %d bytes", name, len(batch), len(raw))
		}
	}
}

// largeRegistration returns the registration of an application node that is as large as one may be.
func largeRegistration() state.Command {
	node := state.AppNode{ID: "web", Session: "s", Status: state.AppActive}
	for range 64 {
		node.Roles = append(node.Roles, strings.Repeat("r", 256))
		node.Capabilities = append(node.Capabilities, strings.Repeat("c", 256))
	}
	return state.Command{Kind: state.KindAppNodePut, AppNodePut: &state.AppNodePut{Node: node}}
}
