package election

import (
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

// polled is what n2 knows of n1, which leads in term 5, itself and n3, all
// voters, and n4, which is none.
func polled() ClusterPoll {
	s := ClusterPoll{
		Params:    Params{TimeoutMin: 150 * time.Millisecond},
		Responses: map[cluster.NodeID]cluster.ReceivedClaim{},
	}
	for _, id := range []cluster.NodeID{"n1", "n2", "n3", "n4"} {
		c := cluster.Claim{
			NodeID: id, Term: 5, Role: cluster.Follower, LeaderID: "n1", LastLogTerm: 5, LastLogIndex: 44,
			Priority: 100, Eligible: true, IsVoter: id != "n4", Lifecycle: cluster.Active,
		}
		sv := cluster.Server{ID: id, Suffrage: cluster.Voter}
		if id == "n4" {
			sv.Suffrage = cluster.NonVoter
		}
		if id == "n1" {
			c.Role = cluster.Leader
		}
		s.Servers = append(s.Servers, sv)
		if id == "n2" {
			s.Mine = c
		} else {
			s.Responses[id] = cluster.ReceivedClaim{Claim: c}
		}
	}
	return s
}

// edit changes the claim of one node.
func (s *ClusterPoll) edit(id cluster.NodeID, change func(*cluster.Claim)) {
	if id == s.Mine.NodeID {
		change(&s.Mine)
		return
	}
	seen := s.Responses[id]
	change(&seen.Claim)
	s.Responses[id] = seen
}

func TestClusterPoll_Leader(t *testing.T) {
	silent := func(c *cluster.Claim) { c.LeaderSilence = 150 * time.Millisecond }
	for _, tt := range []struct {
		name   string
		change func(*ClusterPoll)
		leader cluster.NodeID
		why    string
	}{
		{name: "it leads", change: func(*ClusterPoll) {}, leader: "n1"},
		{name: "this node leads", change: func(s *ClusterPoll) {
			s.edit("n1", func(c *cluster.Claim) { c.Role, c.LeaderID = cluster.Follower, "n2" })
			s.edit("n2", func(c *cluster.Claim) { c.Role, c.LeaderID = cluster.Leader, "n2" })
		}, leader: "n2"},
		{
			name: "it does not answer", change: func(s *ClusterPoll) { delete(s.Responses, "n1") },
			why: "no node that answers leads",
		},
		{name: "another is in a later term", change: func(s *ClusterPoll) {
			s.edit("n3",
				func(c *cluster.Claim) { c.Term = 6 })
		}, why: "no node that answers leads"},
		{name: "its disk is stalled", change: func(s *ClusterPoll) {
			s.edit("n1",
				func(c *cluster.Claim) { c.Disk.Stalled = true })
		}, why: "stalled"},
		{name: "it yields", change: func(s *ClusterPoll) {
			s.edit("n1", func(c *cluster.Claim) { c.Yields = cluster.YieldUnheard })
		}, why: "it hears no majority"},
		{name: "its disk is full", change: func(s *ClusterPoll) {
			s.edit("n1",
				func(c *cluster.Claim) { c.Disk.ReadOnly = true })
		}, leader: "n1"},
		{name: "one voter does not hear it", change: func(s *ClusterPoll) { s.edit("n2", silent) }, leader: "n1"},
		{
			name:   "a non-voter does not count",
			change: func(s *ClusterPoll) { s.edit("n2", silent); s.edit("n4", silent) },
			leader: "n1",
		},
		{
			name:   "a majority does not hear it",
			change: func(s *ClusterPoll) { s.edit("n2", silent); s.edit("n3", silent) },
			why:    "2 of 3 voters do not hear",
		},
		{name: "a majority knows no leader", change: func(s *ClusterPoll) {
			for _, id := range []cluster.NodeID{"n2", "n3"} {
				s.edit(id, func(c *cluster.Claim) { c.LeaderID = "" })
			}
		}, why: "2 of 3 voters do not hear"},
	} {
		s := polled()
		tt.change(&s)
		if id, why := s.Leader(); id != tt.leader || !strings.Contains(why, tt.why) {
			t.Errorf("%s: %q, %q", tt.name, id, why)
		}
	}
}

func TestPredictVotes(t *testing.T) {
	ahead := func(c *cluster.Claim) { c.LastLogIndex = 46 }
	for _, tt := range []struct {
		name         string
		change       func(*ClusterPoll)
		enough, lost bool
		reason       string // of n1
		granted      bool
	}{
		{name: "equal logs", change: func(*ClusterPoll) {}, enough: true, granted: true, reason: "would grant"},
		{
			name: "behind one of three", change: func(s *ClusterPoll) { s.edit("n1", ahead) }, enough: true,
			reason: "log behind: 44 < 46",
		},
		{
			name: "behind both", change: func(s *ClusterPoll) { s.edit("n1", ahead); s.edit("n3", ahead) }, lost: true,
			reason: "log behind: 44 < 46",
		},
		{name: "behind in term", change: func(s *ClusterPoll) {
			for _, id := range []cluster.NodeID{"n1", "n3"} {
				s.edit(id, func(c *cluster.Claim) { c.LastLogTerm, c.LastLogIndex = 6, 40 })
			}
		}, lost: true, reason: "log behind: term 5 < 6"},
		{
			name:   "behind one, the other does not answer",
			change: func(s *ClusterPoll) { s.edit("n1", ahead); delete(s.Responses, "n3") },
			reason: "log behind: 44 < 46",
		},
		{
			name: "nobody answers", change: func(s *ClusterPoll) { delete(s.Responses, "n1"); delete(s.Responses, "n3") },
			reason: "does not respond",
		},
		{
			name: "a non-voter is ahead", change: func(s *ClusterPoll) { s.edit("n4", ahead) }, enough: true,
			granted: true,
			reason:  "would grant",
		},
	} {
		s := polled()
		tt.change(&s)
		votes, enough, lost := s.PredictVotes("n2")
		if enough != tt.enough || lost != tt.lost || len(votes) != 3 ||
			votes[0] != (cluster.Vote{Voter: "n1", Granted: tt.granted, Reason: tt.reason}) || !votes[1].Granted {
			t.Errorf("%s: enough %v, lost %v, %+v", tt.name, enough, lost, votes)
		}
	}
	s := polled()
	delete(s.Responses, "n3")
	if votes, enough, lost := s.PredictVotes("n3"); !enough || lost || !votes[2].Granted {
		t.Errorf("a candidate that does not answer: %v %v %+v", enough, lost, votes)
	}
}

func TestTargetOptions(t *testing.T) {
	first := func(s ClusterPoll) cluster.TargetOption { return s.TargetOptions()[0] }
	s := polled()
	delete(s.Responses, "n1")
	if got := s.TargetOptions(); len(got) != 4 || got[0].ID != "n3" || got[1].ID != "n2" || !got[0].Eligible ||
		!got[1].Eligible ||
		got[2].Reason+"; "+got[3].Reason != "node n4 is not a voter; node n1 does not respond" {
		t.Errorf("%+v", got)
	}
	s.edit("n2", func(c *cluster.Claim) { c.Priority = 200 })
	if got := first(s); got.ID != "n2" || got.Priority != 200 {
		t.Errorf("priority: %+v", got)
	}
	s.edit("n3", func(c *cluster.Claim) { c.LastLogIndex = 50 })
	if got := s.TargetOptions(); got[0].ID != "n3" || got[1].ID != "n2" || got[1].LagEntries != 6 ||
		!strings.Contains(got[1].Reason, "a majority would not vote") {
		t.Errorf("the better log: %+v", got)
	}
	s.edit("n3", func(c *cluster.Claim) { c.Draining = true })
	if got := s.TargetOptions(); got[0].Eligible || !strings.Contains(got[0].Reason+got[1].Reason, "draining") {
		t.Errorf("draining: %+v", got)
	}
}

// A leader that cannot take part in a transfer cannot be elected either, although it has the newest log.
func TestTargetOptions_LeaderThatYields(t *testing.T) {
	s := polled()
	s.edit("n1", func(c *cluster.Claim) { c.Yields, c.LastLogIndex = cluster.YieldUnheard, 46 })
	all := s.TargetOptions()
	i := slices.IndexFunc(all, func(c cluster.TargetOption) bool { return c.ID == "n1" })
	if all[0].ID != "n3" || !all[0].Eligible || all[i].Eligible || all[i].Reason != "node n1 leads" {
		t.Errorf("%+v", all)
	}
}

// A voter that is drained or not eligible starts an election only when no other node can be elected.
func TestClusterPoll_LastResort(t *testing.T) {
	const long = 6 * 150 * time.Millisecond
	behind := func(c *cluster.Claim) { c.LastLogIndex = 40 }
	drained := func(c *cluster.Claim) { c.Draining = true }
	for _, tt := range []struct {
		name       string
		change     func(*ClusterPoll)
		leaderless time.Duration
		want       bool
	}{
		{"the other that answers is behind", func(s *ClusterPoll) { s.edit("n3", behind) }, long, true},
		{"too early", func(s *ClusterPoll) { s.edit("n3", behind) }, long - 1, false},
		{"the other can win", func(*ClusterPoll) {}, long, false},
		{"the other could have won by now", func(*ClusterPoll) {}, 4*long - 1, false},
		{"the other could win, and has not", func(*ClusterPoll) {}, 4 * long, true},
		{"the other is ahead", func(s *ClusterPoll) { s.edit("n2", behind) }, long, false},
		{"the other is drained too", func(s *ClusterPoll) { s.edit("n3", drained) }, long, true},
		{
			"the other may not lead", func(s *ClusterPoll) { s.edit("n3", func(c *cluster.Claim) { c.Eligible = false }) },
			long, true,
		},
		{"nobody answers", func(s *ClusterPoll) { delete(s.Responses, "n3") }, long, true},
		{"the others win without its vote", func(s *ClusterPoll) {
			s.edit("n3", behind)
			s.Servers = append(s.Servers, cluster.Server{ID: "n5", Suffrage: cluster.Voter},
				cluster.Server{ID: "n6", Suffrage: cluster.Voter})
			for _, id := range []cluster.NodeID{"n5", "n6"} {
				c := s.Responses["n3"].Claim
				c.NodeID = id
				s.Responses[id] = cluster.ReceivedClaim{Claim: c}
			}
		}, long, false},
	} {
		s := polled()
		delete(s.Responses, "n1")
		s.edit("n2", drained)
		tt.change(&s)
		if got := s.LastResort(tt.leaderless); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	for name, ineligible := range map[string]func(*cluster.Claim){
		"not eligible": func(c *cluster.Claim) { c.Eligible = false },
		"priority 0":   func(c *cluster.Claim) { c.Priority = 0 },
	} {
		s := polled()
		delete(s.Responses, "n1")
		s.edit("n2", ineligible)
		if s.LastResort(long) || s.LastResort(100*long) {
			t.Errorf("%s: it starts an election although the other can win", name)
		}
		s.edit("n3", behind)
		if s.LastResort(long-1) || !s.LastResort(long) {
			t.Errorf("%s: no election after %v, though the other is behind", name, long)
		}
		s.edit("n3", func(c *cluster.Claim) { c.Draining = true })
		if s.LastResort(100 * long) {
			t.Errorf("%s: it starts an election although it could transfer to no node", name)
		}
		s.edit("n3", func(c *cluster.Claim) { c.Draining = false })
		s.Servers = append(s.Servers, cluster.Server{ID: "n5", Suffrage: cluster.Voter})
		if s.LastResort(100 * long) {
			t.Errorf("%s: it starts an election although it cannot win", name)
		}
		s.Servers = []cluster.Server{{ID: "n2", Suffrage: cluster.Voter}, {ID: "n4", Suffrage: cluster.NonVoter}}
		if !s.LastResort(long) {
			t.Errorf("%s: the only voter starts no election", name)
		}
	}
}
