package consensus

import (
	"strings"
	"testing"

	"northstar/cluster"
)

func TestPlanChange(t *testing.T) {
	t.Parallel()
	voter, nonVoter := cluster.Voter, cluster.NonVoter
	yes, no, addr, taken, priority := true, false, "h9:1", "n2:2", 7
	server := func(id cluster.NodeID, s cluster.Suffrage) cluster.Server {
		return cluster.Server{ID: id, Address: string(id) + ":1", Suffrage: s}
	}
	three := []cluster.Server{
		server("n1", voter), server("n2", voter), server("n3", voter), server("n4", nonVoter),
		server("behind", nonVoter), server("empty", nonVoter),
	}
	var members []cluster.Member
	for _, id := range []cluster.NodeID{"n1", "n2", "n3", "n4", "behind", "empty"} {
		members = append(members, cluster.Member{
			ID: id, HTTPAddress: string(id) + ":2", Lifecycle: cluster.Active, Priority: 100, Eligible: true,
		})
	}
	members = append(members, cluster.Member{ID: "gone", HTTPAddress: "gone:2", Removed: true},
		cluster.Member{ID: "late", Lifecycle: cluster.Active})
	patch := func(id cluster.NodeID, p cluster.MemberPatch) cluster.MemberChange {
		return cluster.MemberChange{ID: id, Patch: &p}
	}
	addHTTP := func(raft, http string) cluster.MemberChange {
		return cluster.MemberChange{ID: "n5", Add: &cluster.MemberAdd{ID: "n5", RaftAddress: raft, HTTPAddress: http}}
	}
	add := func(id cluster.NodeID, at string) cluster.MemberChange {
		return cluster.MemberChange{ID: id, Add: &cluster.MemberAdd{
			ID: id, RaftAddress: at, HTTPAddress: string(id) + ":2", Promote: true,
		}}
	}
	addSelf := func(id cluster.NodeID) cluster.MemberChange {
		ch := add(id, string(id)+":1")
		ch.Add.ByNode = true
		return ch
	}
	for name, tc := range map[string]struct {
		change cluster.MemberChange
		down   string
		want   string // in the summary
		code   cluster.Code
		moves  bool
		risk   cluster.Risk
		warns  int
	}{
		"add": {
			add("n5", "h5:1"), "", "added as non-voter, and becomes a voter", 0, false,
			cluster.RiskLow, 1,
		},
		"add a member": {
			add("n2", "n2:1"), "", "nothing: node n2 is a member already", 0, false,
			cluster.RiskLow, 0,
		},
		"add at another's address": {
			add("n5", "n2:1"), "", "nothing: raft_address", cluster.CodeBadRequest, false,
			cluster.RiskLow, 0,
		},
		"add at another's HTTP address": {
			addHTTP("h5:1", "n2:2"), "", "nothing: http_address: n2:2: is that of member n2",
			cluster.CodeBadRequest, false, cluster.RiskLow, 0,
		},
		"add at the HTTP address of one that is removed": {
			addHTTP("h5:1", "gone:2"), "", "added as non-voter", 0, false, cluster.RiskLow, 0,
		},
		"add who is removed": {add("gone", "gone:1"), "", "added as non-voter", 0, false, cluster.RiskLow, 1},
		"a node adds itself": {addSelf("n5"), "", "added as non-voter", 0, false, cluster.RiskLow, 1},
		"a member adds itself": {
			addSelf("n2"), "", "nothing: node n2 is a member already", 0, false, cluster.RiskLow, 0,
		},
		"a removed node adds itself": {
			addSelf("gone"), "", "only an operator may add it again", cluster.CodeForbidden, false, cluster.RiskLow, 0,
		},
		"a node whose removal broke off adds itself": {
			addSelf("late"), "", "only an operator may add it again", cluster.CodeForbidden, false, cluster.RiskLow, 0,
		},
		"HTTP address of another": {
			patch("n3", cluster.MemberPatch{HTTPAddress: &taken}), "",
			"nothing: http_address: n2:2: is that of member n2", cluster.CodeBadRequest, false, cluster.RiskLow, 0,
		},
		"the same HTTP address": {
			patch("n2", cluster.MemberPatch{HTTPAddress: &taken}), "",
			"the record of node n2 is changed", 0, false, cluster.RiskLow, 0,
		},
		"remove": {
			cluster.MemberChange{ID: "n3"},
			"", "n3 is removed permanently", 0, false,
			cluster.RiskHigh, 1,
		},
		"remove, quorum lost": {
			cluster.MemberChange{ID: "n3"},
			"n2", "nothing: of the resulting 2 voters",
			cluster.CodeQuorumAtRisk, false, cluster.RiskHigh, 0,
		},
		"remove who is down": {
			cluster.MemberChange{ID: "n2"},
			"n2", "n2 is removed", 0, false,
			cluster.RiskHigh, 1,
		},
		"remove the leader": {
			cluster.MemberChange{ID: "n1"},
			"",
			"n1, which leads, transfers leadership; then node n1 is removed", 0, true, cluster.RiskHigh, 1,
		},
		"remove a non-voter": {
			cluster.MemberChange{ID: "n4"},
			"", "n4 is removed", 0, false, cluster.RiskLow,
			0,
		},
		"remove who is only recorded": {
			cluster.MemberChange{ID: "late"},
			"", "late is removed", 0, false,
			cluster.RiskLow, 0,
		},
		"remove who is gone": {
			cluster.MemberChange{ID: "gone"},
			"", "nothing", cluster.CodeBadRequest, false,
			cluster.RiskLow, 0,
		},
		"patch nobody": {
			patch("n9", cluster.MemberPatch{Eligible: &no}), "", "nothing",
			cluster.CodeBadRequest, false, cluster.RiskLow, 0,
		},
		"demote": {
			patch("n2", cluster.MemberPatch{Suffrage: &nonVoter}), "",
			"n2 becomes a non-voter", 0, false, cluster.RiskHigh, 1,
		},
		"demote, quorum lost": {
			patch("n2", cluster.MemberPatch{Suffrage: &nonVoter}), "n3",
			"nothing: of the resulting 2 voters", cluster.CodeQuorumAtRisk, false, cluster.RiskHigh, 0,
		},
		"demote the leader": {
			patch("n1", cluster.MemberPatch{Suffrage: &nonVoter}), "",
			"transfers leadership; then node n1 becomes", 0, true, cluster.RiskHigh, 1,
		},
		"promote": {
			patch("n4", cluster.MemberPatch{Suffrage: &voter}), "", "n4 becomes a voter", 0,
			false, cluster.RiskMedium, 0,
		},
		"promote who lags": {
			patch("behind", cluster.MemberPatch{Suffrage: &voter}), "",
			"nothing: node behind is 65 entries behind: it can become a voter when it is at most 64 behind",
			cluster.CodeQuorumAtRisk, false, cluster.RiskHigh, 0,
		},
		"promote who has nothing": {
			patch("empty", cluster.MemberPatch{Suffrage: &voter}), "",
			"nothing: node empty has acknowledged no entry", cluster.CodeQuorumAtRisk, false, cluster.RiskHigh, 0,
		},
		"promote who is down": {
			patch("n4", cluster.MemberPatch{Suffrage: &voter}), "n4", "n4 becomes a voter",
			0, false, cluster.RiskHigh, 1,
		},
		"readmit": {
			patch("n2", cluster.MemberPatch{Readmit: true}), "",
			"n2 may come back with another", 0, false, cluster.RiskHigh, 1,
		},
		"address": {
			patch("n2", cluster.MemberPatch{RaftAddress: &addr}), "",
			"the address of node n2 becomes h9:1", 0, false, cluster.RiskLow, 0,
		},
		"address, quorum lost": {
			patch("n2", cluster.MemberPatch{RaftAddress: &addr}), "n3",
			"new address of node n2: of the resulting 3 voters, 2 are needed and 1 are in contact (silent: n2 n3)",
			cluster.CodeQuorumAtRisk, false, cluster.RiskHigh, 0,
		},
		"address of the leader, quorum lost": {
			patch("n1", cluster.MemberPatch{RaftAddress: &addr}), "n3",
			"nothing: no node may answer at the new address of node n1: of", cluster.CodeQuorumAtRisk, false, cluster.RiskHigh, 0,
		},
		"address of who is down": {
			patch("n3", cluster.MemberPatch{RaftAddress: &addr}), "n3",
			"the address of node n3 becomes h9:1", 0, false, cluster.RiskLow, 0,
		},
		"address of a non-voter": {
			patch("n4", cluster.MemberPatch{RaftAddress: &addr}), "n3",
			"the address of node n4 becomes h9:1", 0, false, cluster.RiskLow, 0,
		},
		"priority": {
			patch("n2", cluster.MemberPatch{Priority: &priority}), "",
			"the record of node n2", 0, false, cluster.RiskLow, 0,
		},
		"keep the leader from it": {
			patch("n1", cluster.MemberPatch{Eligible: &no}), "",
			"transfers leadership; then the record of node n1", 0, true, cluster.RiskLow, 0,
		},
		"priority 0 for the leader": {
			patch("n1", cluster.MemberPatch{Priority: new(int)}), "",
			"transfers leadership; then the record of node n1", 0, true, cluster.RiskLow, 0,
		},
		"priority 0 for another": {
			patch("n2", cluster.MemberPatch{Priority: new(int)}), "",
			"the record of node n2", 0, false, cluster.RiskLow, 0,
		},
		"drain": {
			patch("n2", cluster.MemberPatch{Drain: &yes}), "", "n2 is set to drain", 0,
			false, cluster.RiskLow, 0,
		},
		"drain the leader": {
			patch("n1", cluster.MemberPatch{Drain: &yes}), "",
			"transfers leadership; then node n1 is set to drain", 0, true, cluster.RiskLow, 0,
		},
		"undrain who is not drained": {
			patch("n2", cluster.MemberPatch{Drain: &no}), "",
			"nothing: node n2 is like that already", 0, false, cluster.RiskLow, 0,
		},
	} {
		in := changeInputs{
			change: tc.change, self: "n1", term: 4, servers: three, members: members,
			contact: map[cluster.NodeID]bool{},
		}
		in.lag = map[cluster.NodeID]uint64{"n4": promoteLag, "behind": promoteLag + 1, "empty": lagUnknown}
		for _, s := range three {
			in.contact[s.ID] = string(s.ID) != tc.down
		}
		p := planChange(in)
		code := cluster.Code(0)
		if p.Refusal != nil {
			code = p.Refusal.Code
		}
		if !strings.Contains(p.Summary, tc.want) || code != tc.code || p.MovesLeader != tc.moves && code == 0 ||
			p.Risk != tc.risk || len(p.Warnings) != tc.warns {
			t.Errorf("%s: %+v, refused with %d", name, p, code)
		}
		if p.Target != tc.change.ID || p.Leader != "n1" || p.Term != 4 || p.Membership == "" {
			t.Errorf("%s: %+v", name, p)
		}
		if again := planChange(in); again.ID() != p.ID() {
			t.Errorf("%s: %s, then %s", name, p.ID(), again.ID())
		}
	}
	one := planChange(changeInputs{
		change: patch("n2", cluster.MemberPatch{Priority: &priority}), self: "n1",
		servers: three, members: members,
	})
	other := planChange(changeInputs{
		change: patch("n2", cluster.MemberPatch{Eligible: &no}), self: "n1",
		servers: three, members: members,
	})
	if one.ID() == other.ID() {
		t.Error("plans of two changes have one ID")
	}
}

// TestPlanChange_ReadmitDrained: the plan of a re-admission says when it ends a drain.
func TestPlanChange_ReadmitDrained(t *testing.T) {
	t.Parallel()
	in := changeInputs{
		change: cluster.MemberChange{ID: "n4", Patch: &cluster.MemberPatch{Readmit: true}}, self: "n1",
		members: []cluster.Member{{ID: "n4", Lifecycle: cluster.Draining}},
	}
	for suffrage, warned := range map[cluster.Suffrage]bool{cluster.Voter: true, cluster.NonVoter: false} {
		in.servers = []cluster.Server{{ID: "n1", Suffrage: cluster.Voter}, {ID: "n4", Suffrage: suffrage}}
		in.contact = map[cluster.NodeID]bool{"n1": true, "n4": true}
		if p := planChange(in); strings.Contains(strings.Join(p.Warnings, ""), "its drain ends") != warned {
			t.Errorf("%s: %q", suffrage, p.Warnings)
		}
	}
}

// TestReadMembers_Demotion: a voter is demoted between the reads of the servers and the records. The plan must not make
// its record active.
func TestReadMembers_Demotion(t *testing.T) {
	t.Parallel()
	server := cluster.Server{ID: "n2", Address: "a", Suffrage: cluster.Voter}
	rec := cluster.Member{ID: "n2", RaftAddress: "a", Lifecycle: cluster.Active}
	servers, members := readMembers(
		func() []cluster.Server { return []cluster.Server{server} },
		func() []cluster.Member {
			server.Suffrage, rec.Lifecycle = cluster.NonVoter, cluster.Joining
			return []cluster.Member{rec}
		})
	if len(servers) != 1 || len(members) != 1 {
		t.Fatalf("servers %v, records %v", servers, members)
	}
	if cmd, due := planRecord(servers[0], members[0], true, cluster.Peer{}, false, nil); due {
		t.Errorf("it writes %+v", cmd.MemberPatch)
	}
}
