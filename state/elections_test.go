package state

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
	"time"
)

// Fields that are newer than the golden files: operator, reason, and start of the time without a leader.
func TestElections_KeepReasons(t *testing.T) {
	t.Parallel()
	cmds := []Command{
		{Kind: KindLeaderStart, Now: 9, LeaderStart: &LeaderStart{
			Term: 1, Node: "n1", Trigger: "manual", Reason: "why",
			StartedAt: 5, Operator: "anna", LeaderlessAt: 3,
		}},
		{Kind: KindSettings, Now: 10, Settings: &SettingsChange{PausedUntil: 99, Reason: "upgrade", Operator: "anna"}},
	}
	batch, err := EncodeBatch(cmds)
	if err != nil {
		t.Fatal(err)
	}
	read, err := DecodeBatch(batch)
	if err != nil || !reflect.DeepEqual(read, cmds) {
		t.Fatalf("read %+v, %v", read, err)
	}
	s := New(Options{})
	for _, r := range s.Apply(1, 1, read) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	restored := New(Options{})
	if _, err := restored.ReadFrom(&b); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]*View{"applied": s.View(), "restored": restored.View()} {
		want := Election{
			Term: 1, Node: "n1", Trigger: "manual", Reason: "why", StartedAt: 5, LedAt: 9, Operator: "anna",
			LeaderlessAt: 3,
		}
		if got := v.Elections(); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%s: %+v", name, got)
		}
		if got := v.Settings(); got != (Settings{PausedUntil: 99, Reason: "upgrade", Operator: "anna"}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	long := Command{Kind: KindSettings, Settings: &SettingsChange{Reason: string(make([]byte, maxText+1))}}
	if err := long.Validate(); err == nil {
		t.Error("a reason that is too long is accepted")
	}
}

// Gaps returns the gaps of the given triggers, shortest first, without unknown ones.
func TestGaps(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	add := func(term uint64, trigger string, since, led int64) {
		s.Apply(term, term, []Command{{
			Kind: KindLeaderStart, Now: led,
			LeaderStart: &LeaderStart{Term: term, Node: "n1", Trigger: trigger, LeaderlessAt: since},
		}})
	}
	add(1, "startup", 0, 10)
	add(2, "transfer", 100, 107)
	add(3, "priority", 200, 203)
	add(4, "timeout", 300, 450)
	add(5, "transfer", 0, 500)
	v := s.View()
	if got := v.Gaps("transfer", "priority"); !slices.Equal(got, []time.Duration{3, 7}) {
		t.Errorf("planned: %v", got)
	}
	if got := v.Gaps("timeout", "connection_lost"); !slices.Equal(got, []time.Duration{150}) {
		t.Errorf("after failures: %v", got)
	}
	if got := v.Gaps("manual"); len(got) != 0 {
		t.Errorf("never: %v", got)
	}
}
