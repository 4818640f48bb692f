package transport

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// TestAppendAfterTheNewestSnapshot: raft looks for the previous entry in its log. If that is the end of the newest
// snapshot, the log may lack it, or have another one.
func TestAppendAfterTheNewestSnapshot(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*raft.AppendEntriesRequest, *end)
		kept   bool // the previous entry
		commit uint64
	}{
		"continues it":              {nil, false, 11},
		"without entries":           {func(a *raft.AppendEntriesRequest, _ *end) { a.Entries = nil }, false, 10},
		"an entry of another term":  {func(a *raft.AppendEntriesRequest, _ *end) { a.PrevLogTerm = 3 }, true, 11},
		"an older snapshot":         {func(_ *raft.AppendEntriesRequest, e *end) { e.snapshotEnd.Store(9) }, true, 11},
		"a newer snapshot":          {func(_ *raft.AppendEntriesRequest, e *end) { e.snapshotEnd.Store(11) }, true, 11},
		"installed and not applied": {func(_ *raft.AppendEntriesRequest, e *end) { e.applied.Store(9) }, true, 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
			got := n2.bind()
			n2.snapshotEnd.Store(10)
			_, err := n1.append(n2, func(a *raft.AppendEntriesRequest) {
				a.LeaderCommitIndex = 500
				if tt.change != nil {
					tt.change(a, n2)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			a := (<-got).(*raft.AppendEntriesRequest)
			if kept := a.PrevLogEntry == 10 && a.PrevLogTerm != 0; kept != tt.kept ||
				!kept && (a.PrevLogEntry != 0 || a.PrevLogTerm != 0) {
				t.Errorf("raft gets previous entry %d of term %d", a.PrevLogEntry, a.PrevLogTerm)
			}
			if a.LeaderCommitIndex != tt.commit {
				t.Errorf("raft gets commit index %d, want %d", a.LeaderCommitIndex, tt.commit)
			}
		})
	}
}

// TestRepeatedInstallIsDelayed: raft sends a snapshot again immediately when the follower refuses what comes after it.
func TestRepeatedInstallIsDelayed(t *testing.T) {
	t.Parallel()
	var reported []int
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		n1.bindOnly()
		n2.bind()
		if _, err := n1.heartbeat(n2); err != nil { // connects
			t.Fatal(err)
		}
		took := func(index, term uint64) time.Duration {
			t.Helper()
			start := time.Now()
			req := raft.InstallSnapshotRequest{
				RPCHeader: n1.header(), SnapshotVersion: 1, Term: term, LastLogIndex: index, LastLogTerm: 4,
				Configuration: raft.EncodeConfiguration(raft.Configuration{}),
			}
			var resp raft.InstallSnapshotResponse
			if err := n1.raft.InstallSnapshot("n2", raft.ServerAddress(n2.addr), &req, &resp, &bytes.Buffer{}); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		for _, want := range []time.Duration{0, testMin, 2 * testMin, 4 * testMin} {
			if got := took(200, 5); got != want {
				t.Errorf("sent after %v, want %v", got, want)
			}
		}
		if got := took(201, 5); got != 0 {
			t.Errorf("another snapshot is sent after %v", got)
		}
		took(201, 5)
		n1.term.Store(6)
		n2.term.Store(6)
		if got := took(201, 6); got != 0 {
			t.Errorf("in the leader's next term it is sent after %v", got)
		}
		n1.term.Store(7)
		if got := took(201, 6); got > testMin {
			t.Errorf("a deposed leader waits %v", got)
		}
		n1.stop()
		n2.stop()
	}, func(_ *Config, e *end) {
		e.installRepeated = func(peer cluster.NodeID, index uint64, times int) {
			if peer != "n2" || index < 200 {
				t.Errorf("reported %s, %d", peer, index)
			}
			reported = append(reported, times)
		}
	})
	if want := []int{1, 2, 3, 1, 1}; !slices.Equal(reported, want) {
		t.Errorf("reported repetitions %v, want %v", reported, want)
	}
	if d := installDelay(100, testMin); d != maxInstallDelay {
		t.Errorf("the delay grows to %v", d)
	}
}

// conflictingLog has entries that a leader does not have: one at 10, and those from the end of a snapshot on.
type conflictingLog struct {
	*end
	asked chan [3]uint64
}

func (conflictingLog) CheckEntry(_, index, _ uint64) error {
	if index == 10 {
		return errors.New("another history")
	}
	return nil
}

func (c conflictingLog) CheckSnapshot(leader, index, term uint64) error {
	c.asked <- [3]uint64{leader, index, term}
	if leader != c.CurrentTerm() {
		return errors.New("a leader that raft does not follow yet")
	}
	return errors.New("entries to delete")
}

// TestConflictingPreviousEntry: the entry before those of an append is of the leader's log, too.
func TestConflictingPreviousEntry(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	n2.raft.Bind(conflictingLog{end: n2})
	if _, err := n1.append(n2, nil); err == nil || !strings.Contains(err.Error(), "another history") {
		t.Errorf("after entry 10: %v", err)
	}
	if n := reached(got); n != 0 {
		t.Errorf("%d reached raft", n)
	}
	_, err := n1.append(n2, func(a *raft.AppendEntriesRequest) { a.PrevLogEntry, a.Entries = 9, nil })
	if err != nil || reached(got) != 1 {
		t.Errorf("after entry 9: %v", err)
	}
}

// TestSnapshotWaitsForItsEntries: raft follows the sender of a snapshot first, so that it adds no entries of its own
// when the log has been compared. The snapshot does not reach it while the log conflicts.
func TestSnapshotWaitsForItsEntries(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n2.bindOnly()
	var got []any
	n2.serve(func(rpc raft.RPC) {
		if a, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
			n2.term.Store(a.Term)
		}
		got = append(got, rpc.Command)
		answer(&rpc, n2.term.Load())
	})
	log := conflictingLog{n2, make(chan [3]uint64, 10)}
	n2.raft.Bind(log)
	n2.term.Store(4)
	if _, err := n1.install(n2, 101, []byte("x")); err == nil || !strings.Contains(err.Error(), "entries to delete") {
		t.Errorf("got %v", err)
	}
	if len(log.asked) != 1 || len(got) != 1 {
		t.Fatalf("the log was compared %d times, raft got %v", len(log.asked), got)
	}
	if asked := <-log.asked; asked != [3]uint64{5, 101, 5} {
		t.Errorf("leader, index and term: %v", asked)
	}
	if a, ok := got[0].(*raft.AppendEntriesRequest); !ok || !isHeartbeat(a) || a.Term != 5 || string(a.ID) != "n1" {
		t.Errorf("raft got %+v", got[0])
	}
	if n := n2.rejected("snapshot/contradiction"); n != 1 {
		t.Errorf("%d rejected", n)
	}
	n2.term.Store(6)
	if _, err := n1.install(n2, 101, []byte("x")); err != nil || len(log.asked) != 0 {
		t.Errorf("of a deposed leader, which raft ignores: %v", err)
	}
}
