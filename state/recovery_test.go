package state

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"northstar/cluster"
)

func recovery(number uint64, voters ...cluster.NodeID) Command {
	return Command{Kind: KindRecovery, Recovery: &Recovery{Generation: cluster.Generation{
		Number:     number,
		RecoveryID: "r",
	}, Voters: voters, Readmit: voters[:1]}}
}

// The lost nodes only used revisions below the new generation: no key, write or watch may have a revision of the
// old one.
func TestRecoveryLeavesNoOldRevision(t *testing.T) {
	t.Parallel()
	s := richState(t)
	mustApply(t, s,
		Command{Kind: KindMember, Member: &cluster.Member{ID: "n2", Incarnation: "inc2", Lifecycle: cluster.Active}},
		Command{Kind: KindMember, Member: &cluster.Member{ID: "n3", Incarnation: "inc3", Lifecycle: cluster.Draining}},
	)
	before := s.View()
	order, _ := before.List("", "", 0)
	bytes := before.bytes
	order = slices.DeleteFunc(order, func(it Item) bool {
		if it.Session != "" {
			bytes -= it.size()
		}
		return it.Session != ""
	})
	cursor, err := s.Feed().Cursor("", before.Revision())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := cursor.Next(context.Background(), 1)
		ended <- err
	}()
	mustApply(t, s, recovery(2, "n2", "n3"))
	v := s.View()
	base := firstRevision(2)
	if v.Generation() != (cluster.Generation{Number: 2, RecoveryID: "r"}) || v.ClusterID() != "c-1" {
		t.Errorf("generation %+v of cluster %s", v.Generation(), v.ClusterID())
	}
	now, _ := v.List("", "", 0)
	if len(now) != len(order) {
		t.Fatalf("%d keys, want %d", len(now), len(order))
	}
	seen := map[uint64]bool{}
	for i, it := range now {
		if it.Revision <= base || it.Revision > v.Revision() || seen[it.Revision] {
			t.Errorf("%s has revision %d", it.Key, it.Revision)
		}
		seen[it.Revision] = true
		if string(it.Value) != string(order[i].Value) || it.Version != order[i].Version ||
			it.CreateRevision != order[i].CreateRevision {
			t.Errorf("%+v was %+v", it, order[i])
		}
		for j := range i {
			if (order[j].Revision < order[i].Revision) != (now[j].Revision < it.Revision) {
				t.Errorf("%s and %s have changed places", order[j].Key, it.Key)
			}
		}
	}
	if v.bytes != bytes {
		t.Errorf("%d bytes, want %d", v.bytes, bytes)
	}
	if before.Sessions() == 0 || v.Sessions() != 0 {
		t.Errorf("%d sessions, before %d", v.Sessions(), before.Sessions())
	}
	for r := range v.RolesAfter("") {
		if old, _ := before.Role(r.Name); r.Held() || len(r.Queue) > 0 ||
			old.Held() && r.History[len(r.History)-1].Cause != CauseRecovered {
			t.Errorf("%+v, before %+v", r, old)
		}
	}
	select {
	case err := <-ended:
		wantCode(t, err, cluster.CodeHistoryCompacted)
	case <-time.After(10 * time.Second):
		t.Error("a watch continues")
	}
	if _, err := s.Feed().Cursor("", v.Revision()-1); !cluster.IsCode(err, cluster.CodeHistoryCompacted) {
		t.Errorf("a watch from before: %v", err)
	}
	if r := apply(s, put("new", "x"))[0]; r.Revision != v.Revision()+1 {
		t.Errorf("the next write has revision %d after %d", r.Revision, v.Revision())
	}
	created := apply(s, Command{
		Kind:          KindSessionCreate,
		SessionCreate: &SessionCreate{Nonce: "abcdefgh", TTL: MinSessionTTL},
	})[0]
	mustApply(t, s,
		Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{Role: "r", Session: created.Session.ID}})
	if r, ok := s.View().Role("r"); !ok || r.Current.Token <= base {
		t.Errorf("the next token is not above %d: %+v", base, r)
	}
	for _, id := range []cluster.NodeID{"n2", "n3"} {
		if m, _ := v.Member(id); m.Lifecycle != cluster.Joining {
			t.Errorf("%+v", m)
		}
	}
	if a, b := v.Record("n2").Incarnation, v.Record("n3").Incarnation; a != "" || b != "inc3" {
		t.Errorf("incarnations %q and %q", a, b)
	}
	if m, _ := v.Member("n1"); m.Lifecycle != cluster.Active || m.Incarnation != "inc1" {
		t.Errorf("%+v", m)
	}
	old, _ := before.Get("a")
	if it, _ := before.Get("a"); it.Revision != old.Revision || it.Revision > base {
		t.Error("an older view has changed")
	}
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	if again.View().Fingerprint() != s.View().Fingerprint() {
		t.Error("a snapshot restores a different state")
	}
}

func TestRecoveryOnlyGoesForward(t *testing.T) {
	t.Parallel()
	s := richState(t)
	mustApply(t, s, recovery(3, "n1"))
	want := s.View().Revision()
	for _, number := range []uint64{0, 2, 3} {
		if r := apply(s, recovery(number, "n1"))[0]; r.Err != nil || r.Created {
			t.Errorf("generation %d: %+v", number, r)
		}
	}
	if s.View().Revision() != want || s.View().Generation().Number != 3 {
		t.Errorf("revision %d, generation %d", s.View().Revision(), s.View().Generation().Number)
	}
	if r := apply(s, recovery(MaxGeneration+1, "n1"))[0]; !cluster.IsCode(r.Err, cluster.CodeBadRequest) {
		t.Errorf("a generation beyond all revisions: %+v", r)
	}
	fresh := New(Options{})
	if r := apply(fresh, recovery(2, "n1"))[0]; r.Created {
		t.Error("a cluster without an ID was recovered")
	}
}

// Keys that one transaction has changed get their new revisions in order of keys. A sort that is not stable could order
// them otherwise in another build, and nodes of two builds may apply one recovery.
func TestRecoveryOrdersKeysOfOneTransaction(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, Command{Kind: KindClusterInit, ClusterInit: &ClusterInit{
		ClusterID: "c", Generation: cluster.Generation{Number: 1},
	}})
	var even, odd Txn
	for i := range 100 {
		op := putOp(fmt.Sprintf("k%03d", i), "v")
		if i%2 == 0 {
			even.Success = append(even.Success, op)
		} else {
			odd.Success = append(odd.Success, op)
		}
	}
	mustTxn(t, s, even)
	mustTxn(t, s, odd)
	mustApply(t, s, recovery(2, "n1"))
	for i := range 100 {
		it, _ := s.View().Get(fmt.Sprintf("k%03d", i))
		if want := firstRevision(2) + uint64(1+i/2+i%2*50); it.Revision != want {
			t.Errorf("%s has revision %d, want %d", it.Key, it.Revision, want)
		}
	}
}

// A restored backup may have revisions of a later generation. The one that a recovery begins is above them.
func TestNextGeneration(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ current, revision, want uint64 }{
		{1, 0, 2},
		{1, firstRevision(2), 3},
		{2, firstRevision(2) + 7, 3},
		{1, firstRevision(3) + 7, 4},
		{5, firstRevision(3) + 7, 6},
		{1, maxRevision/2 - 1, MaxGeneration}, // the highest revision of a backup
	} {
		if got := NextGeneration(tt.current, tt.revision); got != tt.want {
			t.Errorf("after generation %d and revision %d: %d, want %d", tt.current, tt.revision, got, tt.want)
		}
	}
}
