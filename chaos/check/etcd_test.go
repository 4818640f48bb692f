package check

import "testing"

// transactions is a watch of three transactions on a and b, and a change of c.
func transactions() *Watch {
	return &Watch{Name: "w", Changes: []Change{
		{Revision: 2, Key: "a", Value: "1", More: true},
		{Revision: 2, Key: "b", Value: "1"},
		{Revision: 3, Key: "c", Value: "x"},
		{Revision: 5, Key: "a", More: true},
		{Revision: 5, Key: "b"},
		{Revision: 6, Key: "a", Value: "2", More: true},
		{Revision: 6, Key: "b", Value: "2"},
	}}
}

func TestCheckObservations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		s    Observation
		want int
	}{
		{Observation{Key: "a", At: 1}, 0},
		{Observation{Key: "a", At: 2, Value: "1", Revision: 2}, 0},
		{Observation{Key: "a", At: 4, Value: "1", Revision: 2}, 0},
		{Observation{Key: "a", At: 5}, 0},
		{Observation{Key: "a", At: 6, Value: "2", Revision: 6}, 0},
		{Observation{Key: "a", At: 7, Value: "9", Revision: 7}, 0}, // the watch has not come so far
		{Observation{Key: "a", At: 1, Value: "1", Revision: 2}, 1},
		{Observation{Key: "a", At: 4}, 1},
		{Observation{Key: "a", At: 5, Value: "1", Revision: 2}, 1},
		{Observation{Key: "a", At: 6, Value: "2", Revision: 5}, 1},
		{Observation{Key: "d", At: 6, Value: "2", Revision: 5}, 1},
	} {
		if got := CheckObservations(transactions(), []Observation{tt.s}); len(got) != tt.want {
			t.Errorf("%v: %v", tt.s, got)
		}
	}
}

func TestCheckTogether(t *testing.T) {
	t.Parallel()
	if got := CheckTogether(transactions(), "a", "b"); len(got) != 0 {
		t.Error(got)
	}
	for i, change := range []Change{
		{Revision: 6, Key: "b", Value: "1"}, // another value
		{Revision: 6, Key: "d", Value: "2"}, // another key
	} {
		w := transactions()
		w.Changes[len(w.Changes)-1] = change
		if got := CheckTogether(w, "a", "b"); len(got) != 1 {
			t.Errorf("%d: %v", i, got)
		}
	}
	cut := transactions()
	cut.Changes = cut.Changes[:len(cut.Changes)-1] // the last revision is not complete
	if got := CheckTogether(cut, "a", "b"); len(got) != 0 {
		t.Error(got)
	}
}
