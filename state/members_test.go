package state

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

func member(id cluster.NodeID) Command {
	return Command{Kind: KindMember, Member: &cluster.Member{
		ID: id, RaftAddress: "h:1", Priority: 100,
		Lifecycle: cluster.Joining,
	}}
}

func patch(p MemberPatch) Command { return Command{Kind: KindMemberPatch, MemberPatch: &p} }

func remove(id cluster.NodeID) Command {
	return Command{Kind: KindMemberRemove, MemberRemove: &MemberRemove{ID: id}}
}

func TestMembers(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, member("n2"), member("n1"), patch(MemberPatch{
		ID: "n1", SupportedVersion: ptr(uint32(3)),
		Priority: ptr(0), Zone: ptr("z"),
	}))
	old := s.View()
	want := cluster.Member{ID: "n1", RaftAddress: "h:1", Lifecycle: cluster.Joining, Reads: 3, Zone: "z"}
	if m, ok := old.Member("n1"); !ok || m != want {
		t.Fatalf("n1: %+v", m)
	}
	mustApply(t, s, remove("n1"))
	if rec := s.View().Record("n1"); !rec.Removed {
		t.Fatal("no tombstone")
	}
	if m, _ := old.Member("n1"); m.Removed {
		t.Fatal("an older view has changed")
	}
	for name, c := range map[string]Command{
		"patch removed": patch(MemberPatch{ID: "n1", Zone: ptr("y")}), "patch unknown": patch(MemberPatch{ID: "n9"}),
		"remove removed": remove("n1"), "remove unknown": remove("n9"),
	} {
		if r := apply(s, c)[0]; r.Err == nil || r.Err.HTTPStatus() != http.StatusNotFound {
			t.Errorf("%s: %+v", name, r)
		}
	}
	var views []*View
	var shown [][]cluster.Member
	for i := range 20 { // each before the others
		mustApply(t, s, member(cluster.NodeID(fmt.Sprintf("m%02d", 50-i))))
		views = append(views, s.View())
		shown = append(shown, s.View().Members())
	}
	for i := range views {
		if !reflect.DeepEqual(views[i].Members(), shown[i]) {
			t.Fatalf("view %d has changed", i)
		}
	}
	for i := range 20 {
		mustApply(t, s, remove(cluster.NodeID(fmt.Sprintf("m%02d", 50-i))))
	}
	mustApply(t, s, member("n1")) // taken back in
	if ids := s.View().Members(); len(ids) != 22 || ids[20].ID != "n1" || ids[20].Removed || ids[21].ID != "n2" {
		t.Fatalf("members %+v", ids)
	}
	if s.View().Revision() != 0 {
		t.Fatal("members have no revisions")
	}
}

func TestIncarnationIsRecordedOnce(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, member("n1"), patch(MemberPatch{ID: "n1", Incarnation: ptr("i1")}),
		patch(MemberPatch{ID: "n1", Incarnation: ptr("i1")}))
	r := apply(s, patch(MemberPatch{ID: "n1", Incarnation: ptr("i2"), Zone: ptr("z")}))[0]
	wantCode(t, r.Err, cluster.CodeConditionFailed)
	if m, _ := s.View().Member("n1"); m.Incarnation != "i1" || m.Zone != "" {
		t.Fatalf("got %+v", m)
	}
	mustApply(t, s, patch(MemberPatch{ID: "n1", Incarnation: ptr("")}),
		patch(MemberPatch{ID: "n1", Incarnation: ptr("i2")}))
	if rec := s.View().Record("n1"); rec.Incarnation != "i2" {
		t.Fatalf("got %+v", rec)
	}
}

func TestMemberLimits(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxText+1)
	for name, c := range map[string]Command{
		"bad ID":        member("N1"),
		"priority":      patch(MemberPatch{ID: "n1", Priority: ptr(256)}),
		"low priority":  patch(MemberPatch{ID: "n1", Priority: ptr(-1)}),
		"address":       patch(MemberPatch{ID: "n1", RaftAddress: &long}),
		"zone":          {Kind: KindMember, Member: &cluster.Member{ID: "n1", Zone: long}},
		"removed":       {Kind: KindMember, Member: &cluster.Member{ID: "n1", Removed: true}},
		"remove bad ID": remove(""),
		"init no ID":    {Kind: KindClusterInit, ClusterInit: &ClusterInit{}},
		"init member": {Kind: KindClusterInit, ClusterInit: &ClusterInit{
			ClusterID: "c",
			Members:   []cluster.Member{{}},
		}},
		"init roster": {Kind: KindClusterInit, ClusterInit: &ClusterInit{
			ClusterID: "c",
			Roster:    map[cluster.NodeID]string{"": ""},
		}},
		"init gen": {Kind: KindClusterInit, ClusterInit: &ClusterInit{
			ClusterID:  "c",
			Generation: cluster.Generation{Number: 1 << 13},
		}},
		"init members": {Kind: KindClusterInit, ClusterInit: &ClusterInit{
			ClusterID: "c",
			Members:   make([]cluster.Member, MaxMembers+1),
		}},
		"leader no node": {Kind: KindLeaderStart, LeaderStart: &LeaderStart{Term: 1}},
	} {
		s := New(Options{})
		mustApply(t, s, member("n1"))
		before, _ := s.View().Member("n1")
		r := apply(s, c)[0]
		wantCode(t, r.Err, cluster.CodeBadRequest)
		if m, _ := s.View().Member("n1"); m != before || s.View().ClusterID() != "" {
			t.Errorf("%s took effect", name)
		}
	}
	s := New(Options{})
	for i := range MaxMembers {
		mustApply(t, s, member(cluster.NodeID(fmt.Sprint("n", i))))
	}
	wantCode(t, apply(s, member("one-more"))[0].Err, cluster.CodeBadRequest)
	mustApply(t, s, member("n0"))
}

func TestMinSupportedVersion(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, member("n1"), member("n2"), member("n3"),
		patch(MemberPatch{ID: "n1", SupportedVersion: ptr(CommandVersion)}),
		patch(MemberPatch{ID: "n2", SupportedVersion: ptr(CommandVersion + 7)}))
	v := s.View()
	for _, c := range []struct {
		ids  []cluster.NodeID
		want uint32
	}{
		{nil, CommandVersion},
		{[]cluster.NodeID{"n1", "n2"}, CommandVersion},
		{[]cluster.NodeID{"n2"}, CommandVersion},
		{[]cluster.NodeID{"n1", "n3"}, 1},
		{[]cluster.NodeID{"n1", "unknown"}, 1},
	} {
		if got := v.MinSupportedVersion(c.ids); got != c.want {
			t.Errorf("%v: %d", c.ids, got)
		}
	}
}

func TestClusterInitOnce(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	first := &ClusterInit{
		ClusterID: "c1", Generation: cluster.Generation{Number: 1, RecoveryID: "r"}, AutoFailover: true,
		Members: []cluster.Member{{ID: "n1", Zone: "z"}}, Roster: map[cluster.NodeID]string{"n1": "i1", "n2": "i2"},
	}
	if r := apply(s, Command{Kind: KindClusterInit, ClusterInit: first})[0]; r.Err != nil || !r.Created {
		t.Fatalf("first: %+v", r)
	}
	before := s.View().Members()
	r := apply(s, Command{
		Kind:        KindClusterInit,
		ClusterInit: &ClusterInit{ClusterID: "c2", Roster: map[cluster.NodeID]string{"n3": "i3"}},
	})[0]
	if r.Err != nil || r.Created {
		t.Fatalf("second: %+v", r)
	}
	v := s.View()
	if v.ClusterID() != "c1" || v.Generation() != first.Generation || !reflect.DeepEqual(v.Members(), before) {
		t.Fatalf("the second took effect: %s %+v", v.ClusterID(), v.Members())
	}
	want := []cluster.Member{
		{ID: "n1", Zone: "z", Incarnation: "i1"},
		{ID: "n2", Priority: cluster.DefaultPriority, Eligible: true, Lifecycle: cluster.Joining, Incarnation: "i2"},
	}
	if !reflect.DeepEqual(before, want) {
		t.Fatalf("members %+v", before)
	}
	if !v.AutoFailover(time.Unix(0, 0)) {
		t.Fatal("auto failover is off")
	}
}

func TestLeaderStart(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	start := func(term uint64, node cluster.NodeID) Command {
		return Command{
			Kind: KindLeaderStart, Now: int64(term),
			LeaderStart: &LeaderStart{Term: term, Node: node, Trigger: "timeout"},
		}
	}
	if term, node := s.View().LeaderStart(); term != 0 || node != "" {
		t.Fatalf("at first: %d %s", term, node)
	}
	s.Apply(1, 4, []Command{start(4, "n1")})
	if term, node := s.View().LeaderStart(); term != 4 || node != "n1" {
		t.Fatalf("got %d %s", term, node)
	}
	// Proposed in term 4, but committed when the node led again in term 6.
	wantCode(t, s.Apply(2, 6, []Command{start(4, "n1")})[0].Err, cluster.CodeTermStale)
	if got := len(s.View().Elections()); got != 1 {
		t.Fatalf("%d elections", got)
	}
	// Texts for human readers never keep a leader from starting.
	wordy := &LeaderStart{
		Term: 6, Node: "n1", Trigger: "t\xff", Reason: strings.Repeat("ä", maxText),
		Votes: make([]byte, maxVotes+1),
	}
	if r := s.Apply(3, 6, []Command{{Kind: KindLeaderStart, LeaderStart: wordy}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	if e := s.View().Elections()[1]; e.Trigger != "t" || e.Reason != strings.Repeat("ä", maxText/2) || e.Votes != nil {
		t.Fatalf("got %d bytes of reason, %d of votes", len(e.Reason), len(e.Votes))
	}
	for term := uint64(7); term < 7+MaxElections; term++ {
		s.Apply(term, term, []Command{start(term, "n2")})
	}
	all := s.View().Elections()
	if len(all) != MaxElections || all[0].Term != 7 || all[len(all)-1].Term != 6+MaxElections || all[0].LedAt != 7 {
		t.Fatalf("%d elections from %+v", len(all), all[0])
	}
}

func TestAutoFailover(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		set  SettingsChange
		want bool
	}{
		{SettingsChange{AutoFailover: true}, true},
		{SettingsChange{}, false},
		{SettingsChange{PausedUntil: now.UnixNano() + 1}, false},
		{SettingsChange{PausedUntil: now.UnixNano()}, true},
	} {
		mustApply(t, s, Command{Kind: KindSettings, Settings: &c.set})
		if got := s.View().AutoFailover(now); got != c.want || s.View().Settings() != Settings(c.set) {
			t.Errorf("%+v: %v", c.set, got)
		}
	}
}
