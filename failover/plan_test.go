package failover

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/election"
)

// planning is what leader n1 of three voters plans from. Nodes n2 and n3 say
// that they follow it.
func planning(o cluster.LeadershipRequest) planInput {
	in := planInput{
		Request: o,
		Status: cluster.NodeStatus{
			Identity: cluster.Identity{NodeID: "n1"}, Role: cluster.Leader, LeaderID: "n1", Term: 5,
			Servers: []cluster.Server{
				{ID: "n1", Suffrage: cluster.Voter},
				{ID: "n2", Suffrage: cluster.Voter},
				{ID: "n3", Suffrage: cluster.Voter},
				{ID: "n4"},
			},
		},
		Choices: []cluster.TargetOption{
			{ID: "n3", Eligible: true, Voter: true, Priority: 200, LagEntries: 2},
			{ID: "n2", Eligible: true, Voter: true, Priority: 100, LagEntries: 40},
			{ID: "n4", Reason: "node n4 is not a voter"},
		},
		Transfers: []time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 40 * time.Millisecond},
		Elections: []time.Duration{100 * time.Millisecond},
	}
	in.Poll = election.ClusterPoll{
		Servers: in.Status.Servers, Mine: claimOf("n1"),
		Responses: map[cluster.NodeID]cluster.ReceivedClaim{}, Params: election.Params{TimeoutMin: timeoutMin},
	}
	in.Poll.Mine.Role = cluster.Leader
	for _, id := range []cluster.NodeID{"n2", "n3", "n4"} {
		c := claimOf(id)
		c.IsVoter = id != "n4"
		in.Poll.Responses[id] = cluster.ReceivedClaim{Claim: c}
	}
	return in
}

// follower makes n2 plan, which has not got an answer of leader n1.
func (in *planInput) follower() {
	in.Status.NodeID, in.Status.Role, in.Choices = "n2", cluster.Follower, nil
	in.Poll.Mine = in.Poll.Responses["n2"].Claim
	delete(in.Poll.Responses, "n2")
}

// alive lets leader n1 answer n2.
func (in *planInput) alive() {
	c := claimOf("n1")
	c.Role = cluster.Leader
	in.Poll.Responses["n1"] = cluster.ReceivedClaim{Claim: c}
}

func (in *planInput) edit(id cluster.NodeID, change func(*cluster.Claim)) {
	if id == in.Poll.Mine.NodeID {
		change(&in.Poll.Mine)
		return
	}
	s := in.Poll.Responses[id]
	change(&s.Claim)
	in.Poll.Responses[id] = s
}

// zoned puts the nodes into zones.
func zoned(in *planInput) {
	for id, zone := range map[cluster.NodeID]string{"n1": "north", "n2": "west", "n3": "east", "n4": "north"} {
		in.Members = append(in.Members, cluster.Member{ID: id, Zone: zone, Priority: 100, Eligible: true})
	}
	slices.SortFunc(in.Members, func(a, b cluster.Member) int { return cmp.Compare(a.ID, b.ID) })
	in.Choices[0].Priority = 100
}

func TestPlan(t *testing.T) {
	behind := func(in *planInput) {
		in.follower()
		in.edit("n2", func(c *cluster.Claim) { c.LastLogIndex = 40 })
	}
	for _, c := range []struct {
		name    string
		request cluster.LeadershipRequest
		change  func(*planInput)
		chosen  cluster.NodeID
		actor   cluster.NodeID
		how     cluster.Method
		code    cluster.Code // 0: possible
		status  int
		says    string // of summary and warnings
	}{
		{
			name: "transfer to the best", request: cluster.LeadershipRequest{Action: "transfer"}, chosen: "n3", actor: "n1",
			how: "transfer", says: "n1 transfers leadership to node n3",
		},
		{
			name: "to one that lags", request: cluster.LeadershipRequest{Action: "transfer", Target: "n2"}, chosen: "n2",
			actor: "n1", how: "transfer", says: "40 entries behind and must catch up first",
		},
		{
			name: "to a non-voter", request: cluster.LeadershipRequest{Action: "transfer", Target: "n4"}, chosen: "n4",
			actor: "n1", how: "transfer", code: 4003, status: 409, says: "not a voter",
		},
		{
			name: "to itself", request: cluster.LeadershipRequest{Action: "transfer", Target: "n1"}, chosen: "n1",
			actor: "n1",
			how:   "transfer", code: 4003, status: 409, says: "leads already",
		},
		{
			name: "to a stranger", request: cluster.LeadershipRequest{Action: "transfer", Target: "n9"}, chosen: "n9",
			actor: "n1", how: "transfer", code: 4400, status: 404, says: "not a member",
		},
		{
			name: "nobody can", request: cluster.LeadershipRequest{Action: "transfer"},
			change: func(in *planInput) { in.Choices = in.Choices[2:] }, actor: "n1", how: "transfer", code: 4003,
			status: 409, says: "no node can take over: node n4 is not a voter",
		},
		{
			name: "alone", request: cluster.LeadershipRequest{Action: "transfer"},
			change: func(in *planInput) { in.Choices = nil }, actor: "n1", how: "transfer", code: 4003, status: 409,
			says: "no node can take over: there is no other node",
		},
		{
			name: "to a zone", request: cluster.LeadershipRequest{Action: "transfer", Zone: "west"}, change: zoned,
			chosen: "n2", actor: "n1", how: "transfer", says: "transfers leadership to node n2",
		},
		{
			name: "to a node of another zone", request: cluster.LeadershipRequest{
				Action: "transfer", Zone: "west", Target: "n3",
			}, change: zoned, chosen: "n3", actor: "n1", how: "transfer", code: 4003, status: 409,
			says: `node n3 is in zone "east"`,
		},
		{
			name: "to the leader's zone", request: cluster.LeadershipRequest{Action: "transfer", Zone: "north"},
			change: zoned, actor: "n1", how: "transfer", code: 4003, status: 409,
			says: `node n1 leads already in zone "north"`,
		},
		{
			name: "to an unknown zone", request: cluster.LeadershipRequest{Action: "transfer", Zone: "moon"},
			change: zoned, actor: "n1", how: "transfer", code: 4003, status: 409, says: `node n2 is in zone "west"`,
		},
		{
			name: "it will not stay in that zone", request: cluster.LeadershipRequest{Action: "transfer", Zone: "west"},
			change: func(in *planInput) { zoned(in); in.Zones = []string{"north", "west"} }, chosen: "n2", actor: "n1",
			how: "transfer", says: `node n1 is in zone "north", which is preferred to "west" of node n2`,
		},
		{
			name: "nothing recorded", request: cluster.LeadershipRequest{Action: "transfer"},
			change: func(in *planInput) { in.Transfers = nil }, chosen: "n3", actor: "n1", how: "transfer",
			says: "expected write gap is unknown",
		},
		{
			name: "it will not stay there", request: cluster.LeadershipRequest{Action: "transfer", Target: "n2"},
			change: func(in *planInput) {
				in.Members = []cluster.Member{{ID: "n1", Priority: 200, Eligible: true}}
			}, chosen: "n2", actor: "n1", how: "transfer",
			says: "node n1 has priority 200, node n2 100: it takes leadership over again",
		},
		{
			name: "it will, while paused", request: cluster.LeadershipRequest{Action: "transfer", Target: "n3"},
			change: func(in *planInput) {
				in.Paused, in.Members = true, []cluster.Member{{ID: "n1", Priority: 255, Eligible: true}}
			}, chosen: "n3", actor: "n1", how: "transfer",
		},

		{
			name: "failover by the leader", request: cluster.LeadershipRequest{Action: "failover"}, chosen: "n3",
			actor: "n1",
			how:   "transfer", says: "n1 transfers leadership to node n3",
		},
		{
			name: "failover by another that leads", request: cluster.LeadershipRequest{Action: "failover", Target: "n3"},
			change: func(in *planInput) { in.follower(); in.alive() }, chosen: "n3", actor: "n1", how: "transfer",
		},
		{
			name: "the leader hangs", request: cluster.LeadershipRequest{Action: "failover"}, change: (*planInput).follower,
			chosen: "n3", actor: "n3", how: "election", says: "no node that answers leads",
		},
		{
			name: "to a named node", request: cluster.LeadershipRequest{Action: "failover", Target: "n2"},
			change: (*planInput).follower, chosen: "n2", actor: "n2", how: "election",
			says: "node n2 starts an election",
		},
		{
			name: "to the one that hangs", request: cluster.LeadershipRequest{Action: "failover", Target: "n1"},
			change: (*planInput).follower, chosen: "n1", actor: "n1", how: "election", code: 4003, status: 409,
			says: "does not respond",
		},
		{
			name: "emergency, to a leader whose disk is stalled", request: cluster.LeadershipRequest{
				Action: "emergency", Target: "n1",
			}, change: func(in *planInput) {
				in.follower()
				in.alive()
				in.edit("n1", func(c *cluster.Claim) { c.Disk.Stalled = true })
			}, chosen: "n1", actor: "n1", how: "election", code: 4003, status: 409, says: "leads already",
		},
		{
			name: "to a non-voter, by election", request: cluster.LeadershipRequest{Action: "failover", Target: "n4"},
			change: (*planInput).follower, chosen: "n4", actor: "n4", how: "election", code: 4003, status: 409,
			says: "not a voter",
		},
		{
			name: "to a stranger, by election", request: cluster.LeadershipRequest{Action: "failover", Target: "n9"},
			change: (*planInput).follower, chosen: "n9", actor: "n9", how: "election", code: 4400, status: 404,
			says: "not a member",
		},
		{
			name: "the leader's own disk hangs", request: cluster.LeadershipRequest{Action: "failover"},
			change: func(in *planInput) {
				in.edit("n1", func(c *cluster.Claim) { c.Disk.Stalled = true })
			}, chosen: "n3", actor: "n3", how: "election", says: "the disk of the leader n1 is stalled",
		},
		{
			name: "another has found this node, whatever it hears of a leader",
			request: cluster.LeadershipRequest{
				Action: "failover", Target: "n2",
				Forwarded: true,
			}, change: func(in *planInput) { in.follower(); in.alive() }, chosen: "n2", actor: "n2",
			how: "election",
		},
		{
			name: "no quorum", request: cluster.LeadershipRequest{Action: "failover", Target: "n2"},
			change: func(in *planInput) {
				in.follower()
				delete(in.Poll.Responses,
					"n3")
			}, chosen: "n2", actor: "n2", how: "election", code: 4001, status: 503,
			says: "1 of 3 voters answer, and 2 are needed",
		},
		{
			name: "behind the others", request: cluster.LeadershipRequest{Action: "failover", Target: "n2"}, change: behind,
			chosen: "n2", actor: "n2", how: "election", code: 4006, status: 409, says: "n3: log behind: 40 < 44",
		},
		{
			name: "draining", request: cluster.LeadershipRequest{Action: "failover", Target: "n3"},
			change: func(in *planInput) {
				in.follower()
				in.edit("n3",
					func(c *cluster.Claim) { c.Draining = true })
			}, chosen: "n3", actor: "n3", how: "election", code: 4003, status: 409, says: "draining",
		},
		{
			name: "by lease", request: cluster.LeadershipRequest{Action: "failover"},
			change: func(in *planInput) { in.follower(); in.LeaseWait = 148 * time.Millisecond }, chosen: "n3",
			actor: "n3", how: "election", says: "serves nothing for 148ms",
		},
		{
			name: "paused", request: cluster.LeadershipRequest{Action: "failover"},
			change: func(in *planInput) { in.follower(); in.Paused = true }, chosen: "n3", actor: "n3", how: "election",
			says: "automatic failover is paused",
		},

		{
			name: "emergency beside a leader", request: cluster.LeadershipRequest{Action: "emergency", Target: "n3"},
			change: func(in *planInput) { in.follower(); in.alive() }, chosen: "n3", actor: "n3", how: "election",
			says: "node n1 leads and can transfer leadership",
		},
		{
			name: "emergency, not eligible", request: cluster.LeadershipRequest{Action: "emergency", Target: "n2"},
			change: func(in *planInput) {
				in.follower()
				in.edit("n2",
					func(c *cluster.Claim) { c.Eligible = false })
			}, chosen: "n2", actor: "n2", how: "election",
			says: "not eligible to lead: not eligible: this check is skipped",
		},
		{
			name: "emergency, kept from leading", request: cluster.LeadershipRequest{Action: "emergency", Target: "n2"},
			change: func(in *planInput) {
				in.follower()
				in.Members = []cluster.Member{{ID: "n2", Priority: 100}}
			}, chosen: "n2", actor: "n2", how: "election",
			says: "node n2 is not eligible by its record: it transfers leadership again",
		},
		{
			name: "emergency, refused by some process", request: cluster.LeadershipRequest{Action: "emergency", Target: "n2"},
			change: func(in *planInput) {
				in.follower()
				in.edit("n2", func(c *cluster.Claim) { c.Lifecycle = cluster.Dead })
			}, chosen: "n2", actor: "n2", how: "election", says: "refused by the cluster: this check is skipped",
		},
		{
			name: "emergency, it does not answer", request: cluster.LeadershipRequest{Action: "emergency", Target: "n3"},
			change: func(in *planInput) {
				in.follower()
				delete(in.Poll.Responses,
					"n3")
			}, chosen: "n3", actor: "n3", how: "election", says: "does not respond: this check is skipped",
		},
		{name: "emergency, behind, and nobody else answers", request: cluster.LeadershipRequest{
			Action: "emergency",
			Target: "n2",
		}, change: func(in *planInput) {
			behind(in)
			delete(in.Poll.Responses,
				"n3")
		}, chosen: "n2", actor: "n2", how: "election"},
		{
			name: "emergency, behind all", request: cluster.LeadershipRequest{Action: "emergency", Target: "n2"},
			change: func(in *planInput) { behind(in); in.alive() }, chosen: "n2", actor: "n2", how: "election",
			code: 4006, status: 409, says: "n1: log behind: 40 < 44; n3: log behind: 40 < 44",
		},
		{
			name: "emergency, the leader itself", request: cluster.LeadershipRequest{Action: "emergency", Target: "n1"},
			change: func(in *planInput) { in.follower(); in.alive() }, chosen: "n1", actor: "n1", how: "election",
			code: 4003, status: 409, says: "leads already",
		},
		{
			name: "emergency, of an earlier generation", request: cluster.LeadershipRequest{
				Action: "emergency", Target: "n2",
			}, change: func(in *planInput) {
				in.follower()
				in.edit("n2", func(c *cluster.Claim) { c.Superseded = true })
			}, chosen: "n2", actor: "n2", how: "election", code: 4003, status: 409, says: "newer generation",
		},
		{
			name: "emergency, in a split brain", request: cluster.LeadershipRequest{Action: "emergency", Target: "n3"},
			change: func(in *planInput) {
				in.follower()
				in.edit("n3", func(c *cluster.Claim) { c.ServiceRefused = true })
			}, chosen: "n3", actor: "n3", how: "election", code: 4003, status: 409, says: "part of a split brain",
		},
		{
			name: "emergency, a non-voter", request: cluster.LeadershipRequest{Action: "emergency", Target: "n4"},
			chosen: "n4",
			actor:  "n4", how: "election", code: 4003, status: 409, says: "not a voter",
		},
		{
			name: "emergency, a stranger", request: cluster.LeadershipRequest{Action: "emergency", Target: "n9"},
			chosen: "n9",
			actor:  "n9", how: "election", code: 4400, status: 404, says: "not a member",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := planning(c.request)
			if c.change != nil {
				c.change(&in)
			}
			p := plan(in)
			if p.Target != c.chosen || p.Executor != c.actor || p.Method != c.how || p.Term != 5 || p.Leader != "n1" ||
				p.Action != c.request.Action || p.Risk == "" {
				t.Errorf("%+v", p)
			}
			if (p.Refusal == nil) != (c.code == 0) || p.Refusal != nil &&
				(p.Refusal.Code != c.code || p.Refusal.HTTPStatus() != c.status) {
				t.Errorf("refusal: %v", p.Refusal)
			}
			if c.code == cluster.CodeVoteDenied && len(p.Refusal.Votes) != 3 {
				t.Errorf("votes: %+v", p.Refusal.Votes)
			}
			if said := p.Summary + "; " + strings.Join(p.Warnings, "; "); !strings.Contains(said, c.says) {
				t.Errorf("says %q, want %q", said, c.says)
			}
		})
	}
}

// A node that does not answer has the priority of its replicated member record.
func TestPlanShowsPriorities(t *testing.T) {
	in := planning(cluster.LeadershipRequest{Action: "failover"})
	in.follower()
	in.Members = []cluster.Member{{ID: "n1", Priority: 140, Eligible: true}}
	for _, c := range plan(in).Candidates {
		if c.ID == "n1" && c.Priority != 140 {
			t.Errorf("%+v", c)
		}
	}
}

// TestPlanWarnsOfNoTakeoverFromTheLeader: a target that leads already is among no candidates, and so has no priority
// there. The plan must not say that nodes of equal priority take over from it.
func TestPlanWarnsOfNoTakeoverFromTheLeader(t *testing.T) {
	in := planning(cluster.LeadershipRequest{Action: "transfer", Target: "n1"})
	in.Members = []cluster.Member{{ID: "n1", Priority: 100, Eligible: true}, {ID: "n2", Priority: 100, Eligible: true}}
	p := plan(in)
	if p.Refusal == nil || strings.Contains(strings.Join(p.Warnings, "\n"), "takes leadership over again") {
		t.Errorf("refused with %v, warnings %q", p.Refusal, p.Warnings)
	}
}

func TestPlanGaps(t *testing.T) {
	in := planning(cluster.LeadershipRequest{Action: "transfer"})
	if got := plan(in).Gap; got != (cluster.Gap{
		Expected: 5 * time.Millisecond, Worst: 40 * time.Millisecond,
		Samples: 3,
	}) {
		t.Errorf("transfer: %+v", got)
	}
	in = planning(cluster.LeadershipRequest{Action: "failover"})
	in.follower()
	in.LeaseWait = 150 * time.Millisecond
	if got := plan(in).Gap; got != (cluster.Gap{
		Expected: 250 * time.Millisecond, Worst: 250 * time.Millisecond,
		Samples: 1,
	}) {
		t.Errorf("election with a lease: %+v", got)
	}
}

// A plan is of one way: should the leader not be able to take part any more, it
// is another.
func TestPlanIDDependsOnTheWay(t *testing.T) {
	in := planning(cluster.LeadershipRequest{Action: "failover", Target: "n3"})
	by := plan(in)
	in.follower()
	if err := plan(in).Check(by.ID()); err == nil || err.Code != cluster.CodeTermStale {
		t.Errorf("%v", err)
	}
}
