package sim

import "testing"

func TestElectable(t *testing.T) {
	for name, tt := range map[string]struct {
		voters int
		all    []survivor
		want   bool
	}{
		"all the same":                          {3, []survivor{{2, 9, true}, {2, 9, false}}, true},
		"only the hushed one has the last":      {3, []survivor{{2, 10, true}, {2, 9, false}}, false},
		"it has the last of an older term":      {3, []survivor{{1, 10, true}, {2, 9, false}}, true},
		"two others are a majority without it":  {3, []survivor{{2, 10, true}, {2, 9, false}, {2, 8, false}}, true},
		"of five, three others are":             {5, []survivor{{2, 10, true}, {2, 9, false}, {2, 8, false}, {2, 9, false}}, true},
		"of five, two others are not":           {5, []survivor{{2, 10, true}, {2, 9, false}, {2, 8, false}}, false},
		"too few run":                           {3, []survivor{{2, 9, false}}, false},
		"nobody can ask":                        {3, []survivor{{2, 9, true}, {2, 9, true}}, false},
		"one that runs alone, and is the whole": {1, []survivor{{2, 9, false}}, true},
	} {
		if got := electable(tt.voters, tt.all); got != tt.want {
			t.Errorf("%s: electable = %v, want %v", name, got, tt.want)
		}
	}
}
