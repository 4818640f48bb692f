package consensus

import (
	"bytes"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A snapshot that the log does not reach back to must not be fallen back to: the
// library would panic at the next commit.
func TestSnapshotsBeforeAGap(t *testing.T) {
	snaps := raft.NewInmemSnapshotStore()
	_, trans := raft.NewInmemTransport("")
	sink, err := snaps.Create(1, 10, 2, raft.Configuration{}, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(sink, bytes.NewReader([]byte("state"))); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	for first, ok := range map[uint64]bool{11: true, 12: false} {
		log := raft.NewInmemStore()
		if err := log.StoreLog(&raft.Log{Index: first, Term: 2}); err != nil {
			t.Fatal(err)
		}
		s := &checkedSnapshots{SnapshotStore: snaps, log: log, config: new(atomic.Uint64)}
		if _, _, err := s.Open(sink.ID()); (err == nil) != ok {
			t.Errorf("log from %d: %v", first, err)
		}
	}
}

// What the library panics with while it starts must come out as an error.
func TestPanicAtStart(t *testing.T) {
	start := func() (err error) {
		defer recoverTo(&err)
		log, stable, snaps := raft.NewInmemStore(), raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		for _, i := range []uint64{1, 3} {
			if err := log.StoreLog(&raft.Log{Index: i, Term: 1, Type: raft.LogNoop}); err != nil {
				return err
			}
		}
		_, trans := raft.NewInmemTransport("")
		conf := raft.DefaultConfig()
		conf.LocalID, conf.LogOutput = "n1", io.Discard
		_, err = raft.NewRaft(conf, &raft.MockFSM{}, log, stable, snaps, trans)
		return err
	}
	if err := start(); err == nil || !strings.Contains(err.Error(), "start raft") {
		t.Errorf("got %v", err)
	}
}

// With the lease on, a node that may have acknowledged one before it started
// votes for nobody until that has run out on every clock.
func TestMayVoteAfterStart(t *testing.T) {
	var clock time.Duration
	n := &Node{cfg: Config{TimeoutMin: 150 * time.Millisecond}, peers: newPeerBook(), now: time.Now}
	if n.MayVote() {
		t.Error("before it has asked the others")
	}
	n.peersProbed.Store(true)
	if !n.MayVote() {
		t.Error("without a lease")
	}
	n.lease = newLease(100*time.Millisecond, func() time.Duration { return clock }, time.Now)
	for _, tt := range []struct {
		at  time.Duration
		may bool
	}{{0, false}, {299 * time.Millisecond, false}, {300 * time.Millisecond, true}} {
		clock = tt.at
		if n.MayVote() != tt.may {
			t.Errorf("after %v: %v", tt.at, !tt.may)
		}
	}
}
