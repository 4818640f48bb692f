package consensus

import (
	"testing"
	"time"

	"northstar/cluster"
)

// TestPlanRemoval: dead voters are removed one at a time, the longest silent first. At least three voters must remain,
// and a majority of them must be in contact.
func TestPlanRemoval(t *testing.T) {
	t.Parallel()
	now := time.Unix(10000, 0)
	const limit = time.Minute
	for name, tc := range map[string]struct {
		voters, nonVoters int
		silent            map[cluster.NodeID]time.Duration // who is out of contact, and for how long
		change            func(*memberInputs)
		want              cluster.NodeID
	}{
		"all are well":    {5, 0, nil, nil, ""},
		"one of five":     {5, 0, map[cluster.NodeID]time.Duration{"n3": limit}, nil, "n3"},
		"not long enough": {5, 0, map[cluster.NodeID]time.Duration{"n3": limit - 1}, nil, ""},
		"off": {
			5, 0,
			map[cluster.NodeID]time.Duration{"n3": 9 * limit},
			func(in *memberInputs) { in.deadAfter = 0 }, "",
		},
		"the longest silent first": {5, 0, map[cluster.NodeID]time.Duration{"n3": limit, "n4": 2 * limit}, nil, "n4"},
		"the other way round":      {5, 0, map[cluster.NodeID]time.Duration{"n3": 2 * limit, "n4": limit}, nil, "n3"},
		"one of four":              {4, 0, map[cluster.NodeID]time.Duration{"n4": limit}, nil, "n4"},
		"one of three stays":       {3, 0, map[cluster.NodeID]time.Duration{"n3": 9 * limit}, nil, ""},
		"three and a non-voter":    {3, 1, map[cluster.NodeID]time.Duration{"n3": 9 * limit}, nil, ""},
		"no majority in contact": {
			5, 0,
			map[cluster.NodeID]time.Duration{"n2": limit, "n3": limit, "n4": limit},
			nil, "",
		},
		"a non-voter is no voter": {4, 1, map[cluster.NodeID]time.Duration{"n5": 9 * limit}, nil, ""},
		"a change is in progress": {
			5, 0,
			map[cluster.NodeID]time.Duration{"n3": limit},
			func(in *memberInputs) { in.changeInProgress = true }, "",
		},
		"silent for the first time": {
			5, 0,
			map[cluster.NodeID]time.Duration{"n3": limit},
			func(in *memberInputs) { in.unresponsive = nil }, "",
		},
		"the leader stood still": {
			5, 0,
			map[cluster.NodeID]time.Duration{"n3": limit},
			func(in *memberInputs) { in.evaluatedAt = now.Add(-maxPlanGap - 1) }, "",
		},
	} {
		in := memberInputs{
			contact: map[cluster.NodeID]bool{}, unresponsive: map[cluster.NodeID]time.Time{},
			deadAfter: limit, evaluatedAt: now.Add(-membersEvery),
		}
		for i := range tc.voters + tc.nonVoters {
			id := cluster.NodeID("n" + string(rune('1'+i)))
			s := cluster.Server{ID: id, Suffrage: cluster.Voter}
			if i >= tc.voters {
				s.Suffrage = cluster.NonVoter
			}
			in.servers = append(in.servers, s)
			d, out := tc.silent[id]
			in.contact[id] = !out
			if out {
				in.unresponsive[id] = now.Add(-d)
			}
		}
		if tc.change != nil {
			tc.change(&in)
		}
		silent, remove := planRemoval(now, in)
		if remove != tc.want {
			t.Errorf("%s: removes %q, want %q", name, remove, tc.want)
		}
		for id := range silent {
			if in.contact[id] {
				t.Errorf("%s: %s is in contact and counts as silent", name, id)
			}
		}
	}
}

// TestRemovable: the decision is made again under the change lock, when the membership may be another one.
func TestRemovable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		voters, nonVoters int
		silent            []cluster.NodeID
		want              bool // n1 may go
	}{
		"silent":                 {4, 0, []cluster.NodeID{"n1"}, true},
		"back":                   {4, 0, nil, false},
		"one was removed":        {3, 0, []cluster.NodeID{"n1"}, false},
		"no majority in contact": {4, 0, []cluster.NodeID{"n1", "n2", "n3"}, false},
		"demoted":                {3, 4, []cluster.NodeID{"n1"}, false},
		"removed":                {0, 0, []cluster.NodeID{"n1"}, false},
	} {
		var servers []cluster.Server
		contact := map[cluster.NodeID]bool{}
		for i := range tc.voters + tc.nonVoters {
			s := cluster.Server{ID: cluster.NodeID("n" + string(rune('1'+i))), Suffrage: cluster.NonVoter}
			if i >= tc.nonVoters {
				s.Suffrage = cluster.Voter
			}
			servers, contact[s.ID] = append(servers, s), true
		}
		for _, id := range tc.silent {
			contact[id] = false
		}
		if got := removable(servers, contact, "n1"); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
