package state

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"northstar/cluster"
)

// nodeEvents returns the events of the nodes in order.
func nodeEvents(t *testing.T, s *State) (events []string) {
	t.Helper()
	c, err := s.NodeFeed().Cursor("", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for {
		changes, err := c.Next(ctx, 10)
		if errors.Is(err, context.Canceled) {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range changes {
			n, err := DecodeAppNode(ch.Value)
			if err != nil {
				t.Fatal(err)
			}
			if ch.Deleted {
				events = append(events, ch.Key+" removed")
			} else {
				events = append(events, n.ID+" "+string(n.Status))
			}
		}
	}
}

func TestAppNodes(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, b := newSession(t, s, "a"), newSession(t, s, "b")
	wantCode(t, apply(s, appNode("w1", "none", AppActive))[0].Err, cluster.CodeSessionEnded)
	mustApply(t, s, appNode("w1", a, AppJoining))
	rev := s.View().Revision()
	if r := apply(s, appNode("w1", a, AppJoining))[0]; r.Err != nil || r.Revision != 0 || s.View().Revision() != rev {
		t.Fatalf("an unchanged registration must have no effect: %+v", r)
	}
	// w2 changes its session
	mustApply(t, s, appNode("w1", a, AppActive), appNode("w2", a, AppActive), appNode("w2", b, AppDraining))
	dying := end(CauseExpired, a)
	dying.Now = 100
	mustApply(t, s, dying)
	w1, _ := s.View().AppNode("w1")
	w2, _ := s.View().AppNode("w2")
	if w1.Status != AppDead || w1.Session != "" || w2.Status != AppDraining || w2.Session != b {
		t.Fatalf("%+v, %+v", w1, w2)
	}
	remove := func(since int64, ids ...string) Command {
		return Command{Kind: KindAppNodeRemove, AppNodeRemove: &AppNodeRemove{IDs: ids, DeadSince: since}}
	}
	mustApply(t, s, remove(w1.ChangedAt, "w1", "w2")) // dead too recently, and live
	if _, ok := s.View().AppNode("w1"); !ok {
		t.Fatal("removed too early")
	}
	mustApply(t, s, remove(w1.ChangedAt+1, "w1", "w2"), remove(0, "w2"))
	wantCode(t, apply(s, remove(0, "w2"))[0].Err, cluster.CodeBadRequest)
	want := []string{"w1 joining", "w1 active", "w2 active", "w2 draining", "w1 dead", "w1 removed", "w2 removed"}
	got := nodeEvents(t, s)
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%q", got)
		}
	}
	if s.View().ownership.len() != 0 {
		t.Fatal("the ownership index is not empty")
	}
	for name, bad := range map[string]Command{
		"id":     appNode("counts", b, AppActive),
		"status": appNode("w", b, AppDead),
		"http_port": {Kind: KindAppNodePut, AppNodePut: &AppNodePut{Node: AppNode{
			ID: "w", Session: b, Status: AppActive,
			HTTPPort: 70000,
		}}},
		"capabilities": {Kind: KindAppNodePut, AppNodePut: &AppNodePut{Node: AppNode{
			ID: "w", Session: b, Status: AppActive,
			Capabilities: []string{""},
		}}},
	} {
		err := bad.Validate()
		wantCode(t, err, cluster.CodeBadRequest)
		if !bytes.HasPrefix([]byte(err.Detail), []byte(name+":")) {
			t.Errorf("%s: %s", name, err.Detail)
		}
	}
}

// After a restore every node is dead until it registers again. A waiting cursor is notified.
func TestRestore_MarksAppNodesDead(t *testing.T) {
	t.Parallel()
	s := richState(t)
	upgraded(t, s)
	from, err := ReadBackup(bytes.NewReader(snapshotOf(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	waiting, err := s.RoleFeed().Cursor("", s.View().Revision())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := waiting.Next(t.Context(), 1)
		done <- err
	}()
	merged, err := MergeBackup(s.Snapshot(), from, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	if _, err := merged.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	restore(t, s, raw.Bytes())
	if n, _ := s.View().AppNode("w1"); n.Status != AppDead || n.Session != "" {
		t.Fatalf("%+v", n)
	}
	if err := <-done; !cluster.IsCode(err, cluster.CodeHistoryCompacted) {
		t.Fatal(err)
	}
}

// A restore keeps the registry of the cluster: an application node that only the backup has is not added, and one that
// it does not have stays.
func TestRestore_KeepsAppNodesOfTheCluster(t *testing.T) {
	t.Parallel()
	with, without := clusterOf(t, "with"), clusterOf(t, "without")
	mustApply(t, with, appNode("w1", newSession(t, with, "a"), AppActive))
	backups := map[*State][]byte{with: snapshotOf(t, without), without: snapshotOf(t, with)}
	for s, backup := range backups {
		restored(t, s, backup)
	}
	if n, ok := with.View().AppNode("w1"); !ok || n.Status != AppDead {
		t.Errorf("of the cluster: %+v", n)
	}
	if n, ok := without.View().AppNode("w1"); ok {
		t.Errorf("of the backup: %+v", n)
	}
}
