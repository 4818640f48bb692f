package raftnode

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTransferWatchdog(t *testing.T) {
	now := time.Unix(1000, 0)
	trips := 0
	w := &transferWatchdog{after: time.Second, trip: func() { trips++ }}
	note := func(ms int, err error) { w.note(now.Add(time.Duration(ms)*time.Millisecond), err) }
	note(0, raft.ErrLeadershipTransferInProgress)
	note(900, raft.ErrLeadershipTransferInProgress)
	note(950, nil) // a transfer that failed
	note(1000, raft.ErrLeadershipTransferInProgress)
	note(1500, raft.ErrNotLeader) // says nothing about the flag
	note(2000, raft.ErrLeadershipTransferInProgress)
	if trips != 0 {
		t.Fatal("tripped by a transfer that ended")
	}
	note(2001, raft.ErrLeadershipTransferInProgress)
	if trips != 1 {
		t.Error("not tripped by a flag that outlives every transfer")
	}
}

func TestTransferAttempt(t *testing.T) {
	var none *TransferAttempt
	if none.stuckIn(5) {
		t.Error("no attempt is stuck")
	}
	a := newTransferAttempt("n2", 5)
	if a.Revoke() {
		t.Error("told without being asked")
	}
	if !a.stuckIn(5) || a.stuckIn(6) {
		t.Error("given up before it came to the point of telling: may be stuck, in that term only")
	}
	if a.allowTimeoutNow() {
		t.Error("told although given up")
	}
	if a.stuckIn(5) {
		t.Error("the library is through with it")
	}
	b := newTransferAttempt("n2", 5)
	if !b.allowTimeoutNow() || !b.Revoke() {
		t.Error("told, and the one who gives up must know")
	}
}

// A transfer that was given up must not fire when the library comes to it late.
func TestRevokedTransferIsNotSent(t *testing.T) {
	trans := &raftTransport{} // sends nothing: it would panic
	a := newTransferAttempt("n2", 5)
	trans.transfer.Store(a)
	a.Revoke()
	for _, target := range []raft.ServerID{"n2", "n3"} {
		if err := trans.TimeoutNow(target, "", &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{}); err == nil {
			t.Errorf("%s was told", target)
		}
	}
}

// TestRaftConfig checks the library's configuration against the table of hazards. Each of its values has caused a
// fault when it was different.
func TestRaftConfig(t *testing.T) {
	c := Config{
		Self: "n1", TimeoutMin: 150 * time.Millisecond, TimeoutMax: 300 * time.Millisecond, TrailingLogs: 1000,
		SnapshotThreshold: 100, SnapshotInterval: time.Second,
	}
	rc := c.raftConfig(hclog.NewNullLogger())
	if rc.RestoreCommittedLogs || rc.BatchApplyCh || rc.PreVoteDisabled || rc.NotifyCh != nil || rc.ShutdownOnRemove {
		t.Errorf("%+v", rc)
	}
	if rc.LeaderLeaseTimeout < rc.HeartbeatTimeout/2 || rc.LeaderLeaseTimeout > rc.HeartbeatTimeout {
		t.Errorf("leader lease %v of heartbeats %v", rc.LeaderLeaseTimeout, rc.HeartbeatTimeout)
	}
	if rc.TrailingLogs < MinTrailingLogs {
		t.Errorf("%d trailing logs", rc.TrailingLogs)
	}
	if err := raft.ValidateConfig(rc); err != nil {
		t.Error(err)
	}
}

// A snapshot that the log does not reach back to must not be fallen back to: the library would panic at the next
// commit.
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
		s := &Snapshots{
			SnapshotStore: snaps, log: log, fsm: NewFSM(FSMConfig{}), ownRecordSem: make(chan struct{}, 1),
		}
		if _, _, err := s.Open(sink.ID()); (err == nil) != ok {
			t.Errorf("log from %d: %v", first, err)
		}
	}
}

// TestPanicAtStart: a panic of the library during its start is returned as an error.
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
