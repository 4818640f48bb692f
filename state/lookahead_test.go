package state

import (
	"errors"
	"reflect"
	"testing"

	"northstar/cluster"
)

// LookAhead knows the members, the settings and the last leader as Apply makes them, and nothing else of a log.
func TestLookAhead(t *testing.T) {
	t.Parallel()
	start := func(term uint64, node cluster.NodeID) Command {
		return Command{Kind: KindLeaderStart, Now: int64(term), LeaderStart: &LeaderStart{Term: term, Node: node}}
	}
	settings := func(auto bool, until int64) Command {
		return Command{Kind: KindSettings, Settings: &SettingsChange{AutoFailover: auto, PausedUntil: until}}
	}
	log := [][]Command{
		{start(1, "n1")},
		{{Kind: KindClusterInit, ClusterInit: &ClusterInit{
			ClusterID: "c", Generation: cluster.Generation{Number: 1},
			Members: []cluster.Member{*member("n1").Member, *member("n2").Member},
		}}},
		{put("a", "1")},
		{put("b", "1"), settings(true, 0), put("c", "1")},
		{patch(MemberPatch{ID: "n2", Priority: ptr(0)}), patch(MemberPatch{ID: "n9", Priority: ptr(0)})},
		{start(99, "n9")}, // of another term: rejected
		{settings(false, 1000)},
		{member("n3"), patch(MemberPatch{ID: "n3", Priority: ptr(1000)})}, // the second is invalid
		{start(1, "n2")},
		{remove("n1"), put("a", "2")},
		{patch(MemberPatch{ID: "n2", Incarnation: ptr("i2"), Lifecycle: ptr(cluster.Draining)})},
		{recovery(2, "n2")},
		{patch(MemberPatch{ID: "n2", Incarnation: ptr("i3")})},
		{recovery(2, "n2")}, // a second time: no effect
	}
	s := New(Options{})
	ahead := s.View()
	for i, cmds := range log {
		batch, err := EncodeBatch(cmds)
		if err != nil {
			t.Fatal(err)
		}
		before, index := ahead, uint64(i+1)
		if ahead, err = ahead.LookAhead(index, 1, batch); err != nil {
			t.Fatal(err)
		}
		s.Apply(index, 1, cmds)
		v := s.View()
		term, leader := ahead.LeaderStart()
		if wantTerm, want := v.LeaderStart(); term != wantTerm || leader != want {
			t.Errorf("entry %d: %s leads in term %d, want %s in %d", index, leader, term, want, wantTerm)
		}
		if !reflect.DeepEqual(ahead.Members(), v.Members()) || ahead.Settings() != v.Settings() {
			t.Errorf("entry %d: %+v %+v, want %+v %+v", index, ahead.Members(), ahead.Settings(), v.Members(),
				v.Settings())
		}
		if i == 2 && ahead != before || i != 2 && ahead.AppliedIndex() != index {
			t.Errorf("entry %d: a view as of %d", index, ahead.AppliedIndex())
		}
	}
	if items, _ := ahead.List("", "", 0); len(items) != 0 || len(New(Options{}).View().Members()) != 0 {
		t.Errorf("keys: %v", items)
	}
}

// LookAhead passes over what it cannot read, unless that has a command which elections depend on.
func TestLookAhead_Unreadable(t *testing.T) {
	t.Parallel()
	v := New(Options{}).View()
	good, err := EncodeBatch([]Command{put("a", "1"), remove("n1")})
	if err != nil {
		t.Fatal(err)
	}
	newer := append([]byte{batchFormat, 1, byte(KindSettings), byte(CommandVersion) + 2}, 0, 0, 0, 0)
	unknown := append([]byte{batchFormat, 1, 99, 1}, 0, 0, 0, 0)
	for name, tt := range map[string]struct {
		batch []byte
		fails bool
	}{
		"empty": {nil, false}, "another format": {[]byte{9, 1}, false}, "no command": {good[:2], false},
		"truncated": {good[:len(good)-1], false}, "one byte more": {append(good[:len(good):len(good)], 0), true},
		"of a newer build": {newer, true}, "unknown kind": {unknown, false},
	} {
		got, err := v.LookAhead(1, 1, tt.batch)
		if got != v || (err != nil) != tt.fails {
			t.Errorf("%s: %v, another view: %v", name, err, got != v)
		}
		if unknown := new(UnknownCommandError); name == "of a newer build" && !errors.As(err, &unknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
