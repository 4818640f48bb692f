package state

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"northstar/cluster"
)

// etcdState has everything that commands of txnVersion add to a snapshot.
func etcdState(t testing.TB) *State {
	t.Helper()
	s := New(Options{HistoryRevisions: 8})
	restore(t, s, snapshotOf(t, richState(t)))
	mustApply(t, s, put("e", "before"), grant(3, 10), grant(-5, 60), leasePut("leased", 3), put("e", "after"))
	long := put(strings.Repeat("k", MaxKey), "long")
	long.Idempotency = &Idempotency{Key: "client/4"}
	mustApply(t, s, long)
	mustTxn(t, s, Txn{Success: []Op{
		putOp("a", "5"), delOp("c", "d"), putOp("new", "1"), {Put: &TxnPut{Key: "leased", Lease: -5, PrevKV: true}},
	}})
	mustTxn(t, s, Txn{Success: []Op{delOp("new", "\x00"), putOp("new", "2")}})
	mustApply(t, s, Command{Kind: KindCompact, Compact: &Compact{Revision: int64(s.View().Revision()) - 2}})
	missing := leasePut("x", 99)
	missing.Idempotency = &Idempotency{Key: "client/5"}
	apply(s, missing)
	return s
}

// The encoding of a snapshot with transactions and leases never changes. A node that reads it decides as the others do.
func TestEtcdSnapshotGolden(t *testing.T) {
	t.Parallel()
	s := etcdState(t)
	raw := snapshotOf(t, s)
	compareGolden(t, "snapshot_etcd.golden", []byte(hex.Dump(raw)))
	again := New(Options{HistoryRevisions: 8})
	restore(t, again, raw)
	if !bytes.Equal(snapshotOf(t, again), raw) {
		t.Fatal("read and written differently")
	}
	if _, err := Inspect(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	a, b := s.View(), again.View()
	if a.CompactRevision() != b.CompactRevision() || a.leaseSeq != b.leaseSeq || a.stateBytes != b.stateBytes ||
		!reflect.DeepEqual(leaseIDs(a), leaseIDs(b)) || !reflect.DeepEqual(a.LeaseKeys(-5), b.LeaseKeys(-5)) {
		t.Errorf("%+v\n%+v", a, b)
	}
	missing := leasePut("x", 99)
	missing.Idempotency = &Idempotency{Key: "client/5"}
	wantRefusal(t, apply(again, missing)[0].Err, LeaseNotFound) // as recorded
}

// A cluster that uses nothing of txnVersion writes what it wrote before: no previous values, no new fields.
func TestOlderVersionsKeepNoPreviousValues(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("a", "old value"), put("a", "new value"), del("a"))
	if raw := snapshotOf(t, s); strings.Count(string(raw), "old value") != 1 || s.View().version != 1 {
		t.Error("a previous value is kept")
	}
	if got := s.View().CompactRevision(); got != 3 {
		t.Errorf("compact revision %d: earlier values are not known", got)
	}
	mustApply(t, s, grant(1, 1), put("a", "1"), put("a", "2"))
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		v := s.View()
		if v.CompactRevision() != 3 || allKeys(t, v, 3) != "" || allKeys(t, v, 4) != "a=1@4/4/1" {
			t.Errorf("compacted %d: %q, %q", v.CompactRevision(), allKeys(t, v, 3), allKeys(t, v, 4))
		}
	}
}

// Nodes that read only older versions refuse a long key, so a command with one needs txnVersion.
func TestLongKeysNeedTheVersion(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]uint32{maxShortKey: 1, maxShortKey + 1: txnVersion, MaxKey: txnVersion} {
		key := strings.Repeat("k", n)
		for _, c := range []Command{put(key, ""), del(key)} {
			if err := c.Validate(); err != nil || c.MinVersion() != want {
				t.Errorf("%d bytes: version %d, %v", n, c.MinVersion(), err)
			}
		}
	}
	if long := put(strings.Repeat("k", MaxKey+1), ""); long.Validate() == nil {
		t.Error("a key over the limit is accepted")
	}
}

// A backup of a state with leases, restored to an older state: leases end with their keys, and reads at a revision
// begin with the restored state.
func TestMergeBackupWithLeases(t *testing.T) {
	t.Parallel()
	backup := snapshotOf(t, etcdState(t))
	s := New(Options{})
	mustApply(t, s, put("own", "1"))
	merged, err := mergeBackup(s.Snapshot(), backup)
	if err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	if _, err := merged.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	restore(t, s, raw.Bytes())
	v := s.View()
	now := int64(v.Revision())
	if leaseIDs(v) != nil || v.CompactRevision() != now || strings.Contains(allKeys(t, v, now), "leased") ||
		!strings.Contains(allKeys(t, v, now), "new=2") {
		t.Errorf("leases %v, compacted %d at %d: %s", leaseIDs(v), v.CompactRevision(), now, allKeys(t, v, now))
	}
	mustApply(t, s, put("a", "after"))
	if got := allKeys(t, s.View(), now); strings.Contains(got, "a=after@") {
		t.Errorf("at the restored revision: %.200s", got)
	}
}

// A recovery ends leases, and what was before it cannot be read.
func TestRecoveryEndsLeases(t *testing.T) {
	t.Parallel()
	s := etcdState(t)
	mustApply(t, s, Command{Kind: KindRecovery, Recovery: &Recovery{
		Generation: cluster.Generation{Number: 2}, Voters: []cluster.NodeID{"n1"},
	}})
	v := s.View()
	if leaseIDs(v) != nil || v.CompactRevision() != int64(v.Revision()) {
		t.Errorf("leases %v, compacted %d at %d", leaseIDs(v), v.CompactRevision(), v.Revision())
	}
	r := apply(s, grant(3, 10))[0]
	if r.Err != nil || r.Session.ID <= leaseSession(v.Revision()-1, 99, 3) {
		t.Errorf("%+v", r)
	}
	c, err := s.Feed().RangeCursor("a", "z", v.CompactRevision())
	if err != nil {
		t.Fatal(err)
	}
	mustApply(t, s, put("b", "1"))
	wantNext(t, c, 10, fmt.Sprintf("%d:b", v.Revision()+1))
}

// The history drops whole transactions, and never the newest one.
func TestHistoryDropsWholeTransactions(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryRevisions: 5})
	txn := func(n int) Txn {
		var p Txn
		for i := range n {
			p.Success = append(p.Success, putOp(fmt.Sprint("k", i), strings.Repeat("v", n)))
		}
		return p
	}
	for i, c := range []struct {
		keys  int
		floor uint64
	}{{3, 0}, {3, 0}, {2, 1}, {20, 3}, {1, 3}, {4, 4}, {1, 5}, {1, 5}} {
		mustTxn(t, s, txn(c.keys))
		if got := s.View().history.floor; got != c.floor {
			t.Errorf("after transaction %d of %d keys: floor %d, want %d", i+1, c.keys, got, c.floor)
		}
	}
	bytes := 0
	for c := range s.View().history.changes.all {
		bytes += c.size()
	}
	if got := s.View().history.bytes; got != bytes {
		t.Errorf("the history counts %d bytes of %d", got, bytes)
	}
}

// Previous values count in the bytes of the history: a deletion of a large value keeps it in memory.
func TestHistoryCountsPreviousValues(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryBytes: 10_000})
	mustApply(t, s, grant(1, 1))
	for i := range 50 {
		mustApply(t, s, put("a", strings.Repeat("v", 1000)), del("a"))
		held := 0
		for c := range s.View().history.changes.all {
			held += c.size()
		}
		if held > 12_000 {
			t.Fatalf("after %d: %d bytes are held", i, held)
		}
	}
}

// Leases and transactions count in the quotas.
func TestQuotaOfTransactionsAndLeases(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, limits(MinStateBytes, 2))
	owned := func(id int64) Command {
		c := grant(id, 10)
		c.LeaseGrant.Owner = "client alice"
		return c
	}
	mustApply(t, s, owned(1), owned(2))
	wantCode(t, apply(s, owned(3))[0].Err, cluster.CodeQuotaExceeded)
	mustApply(t, s, revoke(1), owned(3))
	before := s.View().StateBytes()
	mustApply(t, s, leasePut("k", 3))
	plain := s.View().StateBytes() - before
	mustApply(t, s, leasePut("k", 0))
	if without := s.View().StateBytes() - before; plain <= without {
		t.Errorf("a key with a lease counts %d, one without %d", plain, without)
	}
	full := strings.Repeat("x", MinStateBytes/2)
	mustTxn(t, s, Txn{Success: []Op{putOp("one", full)}})
	two := Txn{Success: []Op{putOp("one", ""), putOp("two", full), putOp("three", full)}}
	wantCode(t, apply(s, txnCommand(two))[0].Err, cluster.CodeQuotaExceeded)
	mustTxn(t, s, Txn{Success: []Op{putOp("one", ""), putOp("two", full)}}) // it grows by little
	mustTxn(t, s, Txn{Success: []Op{delOp("\x00", "\x00")}})
	if n := s.View().Keys(); n != 0 {
		t.Errorf("%d keys", n)
	}
	mustApply(t, s, revoke(2), revoke(3))
	if got := s.View().StateBytes(); got != 0 {
		t.Errorf("an empty state counts %d bytes", got)
	}
}
