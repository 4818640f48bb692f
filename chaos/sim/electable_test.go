package sim

import "testing"

func TestElectable(t *testing.T) {
	for name, tt := range map[string]struct {
		voters int
		all    []liveNode
		want   bool
		lacks  bool // a node could win if its vote requests arrived
	}{
		"nevertheless":                     {3, []liveNode{{2, 9, true}, {2, 9, false}}, true, false},
		"only the muted one has the last":  {3, []liveNode{{2, 10, true}, {2, 9, false}}, false, true},
		"it has the last of an older term": {3, []liveNode{{1, 10, true}, {2, 9, false}}, true, false},
		"two others are a majority without it": {
			3,
			[]liveNode{{2, 10, true}, {2, 9, false}, {2, 8, false}},
			true,
			false,
		},
		"of five, three others are": {5, []liveNode{
			{2, 10, true},
			{2, 9, false},
			{2, 8, false},
			{2, 9, false},
		}, true, false},
		"of five, two others are not": {
			5,
			[]liveNode{{2, 10, true}, {2, 9, false}, {2, 8, false}},
			false,
			true,
		},
		"too few run":                           {3, []liveNode{{2, 9, false}}, false, false},
		"nobody can ask":                        {3, []liveNode{{2, 9, true}, {2, 9, true}}, false, true},
		"one that runs alone, and is the whole": {1, []liveNode{{2, 9, false}}, true, false},
	} {
		if got := electable(tt.voters, tt.all); got != tt.want {
			t.Errorf("%s: electable = %v, want %v", name, got, tt.want)
		}
		if got := unelectableByDrops(tt.voters, tt.all); got != tt.lacks {
			t.Errorf("%s: wanting = %v, want %v", name, got, tt.lacks)
		}
	}
}
