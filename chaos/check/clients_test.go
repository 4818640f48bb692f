package check

import (
	"testing"
	"time"
)

func TestHolders(t *testing.T) {
	ms := time.Millisecond
	first := Tenure{Client: 1, Session: "a", Token: 1, RequestedAt: 0, GrantedAt: 10 * ms, Until: 100 * ms}
	next := Tenure{Client: 2, Session: "b", Token: 2, RequestedAt: 20 * ms, GrantedAt: 110 * ms, Until: 200 * ms}
	for name, tt := range map[string]struct {
		change func(next *Tenure)
		write  FencedWrite
		want   string
	}{
		"one after the other": {nil, FencedWrite{Token: 1, Begin: 100 * ms, End: 120 * ms}, ""},
		"asked for again":     {func(n *Tenure) { n.Session, n.Token, n.GrantedAt = "a", 1, 50*ms }, FencedWrite{}, ""},
		"two at a time":       {func(n *Tenure) { n.GrantedAt = 99 * ms }, FencedWrite{}, OneHolder},
		"the token of both":   {func(n *Tenure) { n.Token = 1 }, FencedWrite{}, OneHolder},
		"a token from before": {func(n *Tenure) { n.Token = 0 }, FencedWrite{}, OneHolder},
		"an old token":        {nil, FencedWrite{Token: 1, Begin: 111 * ms, End: 120 * ms}, Fencing},
	} {
		n := next
		if tt.change != nil {
			tt.change(&n)
		}
		var writes []FencedWrite
		if tt.write.Token != 0 {
			writes = append(writes, tt.write)
		}
		got := ""
		if v := CheckMutualExclusion([]Tenure{n, first}, writes); len(v) > 0 {
			got = v[0].Invariant
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestWatched(t *testing.T) {
	ops := []Op{
		{Kind: Put, Key: "a", Value: "0", Outcome: Done, Revision: 3}, // before the watch
		{Kind: Put, Key: "a", Value: "1", Outcome: Done, Revision: 4},
		{Kind: Put, Key: "b", Value: "2", Outcome: Unknown},
		{Kind: Get, Key: "a", Value: "1", Outcome: Done},
		{Kind: Delete, Key: "a", Outcome: Done, Revision: 6},
		{Kind: Put, Key: "a", Value: "3", Outcome: Done, Revision: 9}, // not received yet
	}
	for name, tt := range map[string]struct {
		changes []Change
		added   bool
		want    int
	}{
		"all":       {[]Change{{4, "a", "1", false}, {5, "b", "2", false}, {6, "a", "", false}}, true, 0},
		"a gap":     {[]Change{{4, "a", "1", false}, {7, "b", "2", false}}, true, 1},
		"another":   {[]Change{{4, "a", "2", false}, {6, "a", "", false}}, true, 1},
		"twice":     {[]Change{{4, "a", "1", false}, {4, "a", "1", false}}, false, 0},
		"backwards": {[]Change{{4, "a", "1", false}, {6, "a", "", false}, {5, "b", "2", false}}, false, 0},
		"together":  {[]Change{{4, "x", "0", true}, {4, "a", "1", false}, {6, "a", "", false}}, true, 0},
		"again":     {[]Change{{4, "a", "1", true}, {4, "b", "0", true}, {4, "a", "1", false}}, false, 0},
		"cut":       {[]Change{{4, "a", "1", true}, {6, "a", "", false}}, false, 0},
		"the other": {[]Change{{4, "x", "0", true}, {4, "y", "1", false}, {6, "a", "", false}}, true, 1},
	} {
		w := Watch{Name: "w", From: 3}
		added := true
		for _, c := range tt.changes {
			added = added && w.Add(c) == ""
		}
		if got := CheckWatch(&w, ops); added != tt.added || len(got) != tt.want {
			t.Errorf("%s: added %v, %v", name, added, got)
		}
	}
}

// A watcher that was cut off inside a revision receives all its events again.
func TestWatchResumes(t *testing.T) {
	w := Watch{Name: "w", From: 3}
	for _, c := range []Change{{4, "a", "1", false}, {5, "a", "2", true}, {5, "b", "2", true}} {
		if why := w.Add(c); why != "" {
			t.Fatal(why)
		}
	}
	if w.LastRevision() != 4 {
		t.Errorf("last revision %d", w.LastRevision())
	}
	w.Resume()
	for _, c := range []Change{{5, "a", "2", true}, {5, "b", "2", false}} {
		if why := w.Add(c); why != "" {
			t.Error(why)
		}
	}
	if w.LastRevision() != 5 || len(w.Changes) != 3 {
		t.Errorf("last revision %d, %d changes", w.LastRevision(), len(w.Changes))
	}
}

func TestVacancies(t *testing.T) {
	s := time.Second
	first := Tenure{Session: "a", Token: 1, GrantedAt: 0, Until: 2 * s}
	over := map[string]time.Duration{"a": 3 * s}
	for name, tt := range map[string]struct {
		next  Tenure
		waits []WaitInterval
		want  int
	}{
		"taken over in time": {
			Tenure{Session: "b", Token: 2, RequestedAt: s, GrantedAt: 4 * s},
			[]WaitInterval{{s, 5 * s}},
			0,
		},
		"taken over late": {Tenure{Session: "b", Token: 2, RequestedAt: s, GrantedAt: 4*s + 1}, nil, 1},
		"nobody waited": {
			Tenure{Session: "b", Token: 2, RequestedAt: 5 * s, GrantedAt: 5 * s},
			[]WaitInterval{{s, 2 * s}},
			0,
		},
		"waited without success": {
			Tenure{Session: "b", Token: 2, RequestedAt: 6 * s, GrantedAt: 6 * s},
			[]WaitInterval{{2 * s, 5 * s}},
			1,
		},
	} {
		if got := CheckVacancies([]Tenure{tt.next, first}, over, tt.waits); len(got) != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
