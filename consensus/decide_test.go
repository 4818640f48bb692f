package consensus

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

func TestDecideFirstStart(t *testing.T) {
	t.Parallel()
	three := []FirstMember{{"n1", "h1:1", "w1"}, {"n2", "h2:1", "w2"}, {"n3", "h3:1", "w3"}}
	five := append(three[:3:3], FirstMember{"n4", "h4:1", "w4"}, FirstMember{"n5", "h5:1", "w5"})
	bootstrapped := identityFile{Bootstrap: BootstrapDigest("c", three)}
	named := identityFile{Identity: cluster.Identity{ClusterID: "c1"}, Bootstrap: "other"}
	met := func(ids ...cluster.NodeID) identityFile {
		f := identityFile{Identity: cluster.Identity{ClusterID: "c1"}, Roster: map[cluster.NodeID]cluster.Record{}}
		for _, id := range ids {
			f.Roster[id] = cluster.Record{Incarnation: "i"}
		}
		return f
	}
	one := func(rosterIndex uint64) identityFile {
		f := met("n1")
		f.Bootstrap, f.RosterIndex = BootstrapDigest("c", three[:1]), rosterIndex
		return f
	}
	for _, tt := range []struct {
		name string
		in   startInputs
		want bootstrapDecision
		err  string
	}{
		{"alone", startInputs{first: three[:1]}, bootstrap, ""},
		{"nobody answers", startInputs{first: three}, keepProbing, ""},
		{"one of three without an ID", startInputs{first: three, answers: answers("n2", "")}, bootstrap, ""},
		{"one of five without an ID", startInputs{first: five, answers: answers("n2", "")}, keepProbing, ""},
		{"two of five without an ID", startInputs{first: five, answers: answers("n2", "", "n5", "")}, bootstrap, ""},
		{"one has an ID", startInputs{first: three, answers: answers("n2", "c1")}, joinOnly, ""},
		{
			"an ID beats a majority without",
			startInputs{first: five, answers: answers("n2", "", "n3", "", "n4", "c1")},
			joinOnly, "",
		},
		{"it has adopted an ID", startInputs{first: three, identity: met("n1", "n2")}, joinOnly, ""},
		{
			"an adopted ID beats a majority without",
			startInputs{first: three, identity: met("n1", "n2"), answers: answers("n2", "", "n3", "")},
			joinOnly, "",
		},
		{
			"it has adopted an ID, list of another cluster",
			startInputs{first: three, identity: met("n1", "n8", "n9")},
			keepProbing, "belongs to cluster c1 (n1, n8, n9)",
		},
		{"its own answer does not count twice", startInputs{first: three, answers: answers("n1", "")}, keepProbing, ""},
		{
			"one has started with this one",
			startInputs{first: three, answers: answers("n2", "started with")},
			bootstrap,
			"",
		},
		{
			"one has started without this one",
			startInputs{first: three, answers: answers("n2", "started without")},
			keepProbing, "",
		},
		{
			"one has started without this one, one is new",
			startInputs{first: three, answers: answers("n2", "started without", "n3", "")},
			bootstrap, "",
		},
		{
			"all others have started without this one",
			startInputs{first: three, answers: answers("n2", "started without", "n3", "started without")},
			bootstrap,
			"",
		},
		{"all others of five, and nobody objects", startInputs{first: five, answers: answers("n2", "started without",
			"n3", "started without", "n4", "started without", "n5", "waits")}, bootstrap, ""},
		{"three of five have started, one knows this one", startInputs{
			first:   five,
			answers: answers("n2", "started without", "n3", "started without", "n4", "started with"),
		}, keepProbing, ""},
		{"one that others have started with", startInputs{
			first:    three,
			identity: identityFile{BootstrapIncarnations: map[cluster.NodeID]string{"n2": "i"}},
			answers:  answers("n2", ""),
		}, bootstrap, ""},
		// two of two others, and one does not count
		{"one that others have started with, wiped since", startInputs{
			first:    three,
			identity: identityFile{BootstrapIncarnations: map[cluster.NodeID]string{"n2": "i0"}},
			answers:  answers("n2", "", "n3", "started without"),
		}, keepProbing, ""},
		{"one waits", startInputs{first: three, answers: answers("n2", "waits")}, keepProbing, ""},
		{"join", startInputs{join: true}, joinOnly, ""},
		{"waits since an earlier start", startInputs{
			first: three, identity: identityFile{JoinOnly: true},
			answers: answers("n2", "", "n3", ""),
		}, startExisting, ""},
		{"has data", startInputs{hasData: true, first: three}, startExisting, ""},
		{
			"has data and a cluster ID, other list",
			startInputs{hasData: true, identity: named, first: three},
			startExisting, "",
		},
		{
			"has data, list of the first start",
			startInputs{hasData: true, identity: met("n1", "n2", "n4"), first: three},
			startExisting, "",
		},
		{"has data, nobody met yet", startInputs{hasData: true, identity: met("n1"), first: three}, startExisting, ""},
		{
			"has data, list of another cluster",
			startInputs{hasData: true, identity: met("n1", "n8", "n9"), first: three},
			keepProbing, "belongs to cluster c1 (n1, n8, n9)",
		},
		{
			"cluster of one, longer list",
			startInputs{hasData: true, identity: one(7), first: three},
			keepProbing,
			"cluster c1 of this data directory has no member but this one",
		},
		{
			"cluster of one, its own list",
			startInputs{hasData: true, identity: one(7), first: three[:1]},
			startExisting,
			"",
		},
		{"cluster of one, no list", startInputs{hasData: true, identity: one(7)}, startExisting, ""},
		{
			"an ID adopted, and no roster yet",
			startInputs{hasData: true, identity: one(0), first: three},
			startExisting,
			"",
		},
		{"crashed while bootstrapping", startInputs{identity: bootstrapped, first: three}, bootstrap, ""},
		{"crashed while bootstrapping, an ID adopted", startInputs{
			first:    three,
			identity: identityFile{Identity: named.Identity, Bootstrap: bootstrapped.Bootstrap},
		}, bootstrap, ""},
		{
			"crashed while bootstrapping, another list since",
			startInputs{identity: bootstrapped, first: five},
			keepProbing, "is not what this data directory was bootstrapped with",
		},
		{
			"bootstrapped with another list",
			startInputs{hasData: true, identity: bootstrapped, first: five},
			keepProbing,
			"is not what this data directory was bootstrapped with",
		},
		{"nothing configured", startInputs{}, keepProbing, "set initial-cluster"},
		{"not in the list", startInputs{self: "n9", first: three}, keepProbing, "n9, is not in the list"},
		{"listed twice", startInputs{first: append(three[:2:2], three[0])}, keepProbing, "n1 is listed twice"},
		{
			"same address",
			startInputs{first: []FirstMember{three[0], {"n2", "h1:1", ""}}},
			keepProbing,
			"same raft address h1:1",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.in.self == "" {
				tt.in.self = "n1"
			}
			tt.in.digest = BootstrapDigest("c", tt.in.first)
			got, err := decideFirstStart(tt.in)
			if got != tt.want || fmt.Sprint(err) != fmt.Sprint(error(nil)) && tt.err == "" || tt.err != "" &&
				(err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %v, %v; want %v, %q", got, err, tt.want, tt.err)
			}
		})
	}
}

// answers returns the peers' responses. Each pair is a node ID, and its cluster ID or one of the words below.
func answers(pairs ...string) map[cluster.NodeID]probeAnswer {
	recorded := cluster.Admission{MayAdoptClusterID: true}
	words := map[string]probeAnswer{
		"started with":    {peer: cluster.Peer{Start: cluster.StartBootstrapped}, reply: recorded},
		"started without": {peer: cluster.Peer{Start: cluster.StartBootstrapped}},
		"waits":           {peer: cluster.Peer{Start: cluster.StartJoinOnly}, reply: recorded},
	}
	m := map[cluster.NodeID]probeAnswer{}
	for i := 0; i < len(pairs); i += 2 {
		a, ok := words[pairs[i+1]]
		if !ok {
			a.peer.ClusterID = pairs[i+1]
		}
		a.peer.Incarnation = "i"
		m[cluster.NodeID(pairs[i])] = a
	}
	return m
}

func TestProbeAnswers(t *testing.T) {
	t.Parallel()
	peer := func(id cluster.NodeID, clusterID string) cluster.Peer {
		return cluster.Peer{Identity: cluster.Identity{NodeID: id, ClusterID: clusterID}}
	}
	refused := errors.New("refused")
	for _, tt := range []struct {
		name   string
		a      probeAnswer
		counts bool
	}{
		{"fresh", probeAnswer{listed: "n2", peer: peer("n2", "")}, true},
		{"has a cluster", probeAnswer{listed: "n2", peer: peer("n2", "c1")}, true},
		{"has a cluster, and refuses this wiped node", probeAnswer{
			listed: "n2", peer: peer("n2", "c1"),
			refusal: refused,
		}, true},
		{"rival bootstrap, or it knows this node with another disk", probeAnswer{
			listed: "n2", peer: peer("n2", ""),
			refusal: refused,
		}, false},
		{"another node at that address", probeAnswer{listed: "n2", peer: peer("n7", "c1")}, false},
	} {
		in := startInputs{answers: answers()}
		err := in.addResponse(tt.a)
		if got, counted := in.answers["n2"]; counted != tt.counts || counted && got.peer.ClusterID != tt.a.peer.ClusterID ||
			(err == nil) != tt.counts {
			t.Errorf("%s: counted %v as %+v, %v", tt.name, counted, got, err)
		}
	}
}

func TestBootstrapDigest(t *testing.T) {
	t.Parallel()
	a := []FirstMember{{"n1", "h1", "w1"}, {"n2", "h2", "w2"}}
	b := []FirstMember{a[1], a[0]}
	if BootstrapDigest("c", a) != BootstrapDigest("c", b) {
		t.Error("depends on the order of the list")
	}
	if BootstrapDigest("c", a) == BootstrapDigest("d", a) || BootstrapDigest("c", a) == BootstrapDigest("c", a[:1]) {
		t.Error("does not depend on name and list")
	}
	if BootstrapDigest("c", nil) != "" {
		t.Error("a digest of no list")
	}
}

func TestPlanMembers(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	voters := []cluster.Server{
		{ID: "n1", Address: "h1", Suffrage: cluster.Voter},
		{ID: "n2", Address: "h2", Suffrage: cluster.Voter},
	}
	joining := append(voters[:2:2], cluster.Server{ID: "n3", Address: "h3", Suffrage: cluster.NonVoter})
	record := func(id cluster.NodeID, addr string, l cluster.Lifecycle) cluster.Member {
		return cluster.Member{
			ID: id, RaftAddress: addr, HTTPAddress: "w", Priority: 7, Incarnation: "i" + string(id),
			Lifecycle: l, Version: "v1", Reads: 1,
		}
	}
	hello := func(id cluster.NodeID) cluster.Peer {
		return cluster.Peer{
			Identity: cluster.Identity{NodeID: id, Incarnation: "i" + string(id)}, HTTPAddress: "w",
			Priority: 9, Eligible: true, Zone: "z", Version: "v1", CommandVersion: 1,
		}
	}
	base := func() memberInputs {
		return memberInputs{
			servers: joining,
			records: map[cluster.NodeID]cluster.Member{
				"n1": record("n1", "h1", cluster.Active),
				"n2": record("n2", "h2", cluster.Active), "n3": record("n3", "h3", cluster.Joining),
			},
			hellos:        map[cluster.NodeID]cluster.Peer{"n1": hello("n1"), "n2": hello("n2"), "n3": hello("n3")},
			contact:       map[cluster.NodeID]bool{"n1": true, "n2": true, "n3": true},
			lag:           map[cluster.NodeID]uint64{},
			caughtUpSince: map[cluster.NodeID]time.Time{"n3": now.Add(-promoteAfter)},
		}
	}
	for _, tt := range []struct {
		name     string
		change   func(*memberInputs)
		promote  cluster.NodeID
		commands string
		complete string
	}{
		{"caught up and stable", func(*memberInputs) {}, "n3", "", ""},
		{"caught up just now", func(in *memberInputs) { in.caughtUpSince = nil }, "", "", ""},
		{"lags", func(in *memberInputs) { in.lag["n3"] = promoteLag + 1 }, "", "", ""},
		{"silent", func(in *memberInputs) { in.contact["n3"] = false }, "", "", ""},
		{
			"not to be promoted", func(in *memberInputs) { in.records["n3"] = record("n3", "h3", cluster.Active) },
			"", "",
			"",
		},
		{"another change is in progress", func(in *memberInputs) { in.changeInProgress = true }, "", "", ""},
		{"never met", func(in *memberInputs) {
			m := record("n3", "h3", cluster.Joining)
			m.Incarnation = ""
			in.records["n3"] = m
			delete(in.hellos, "n3")
		}, "", "", ""},
		{"first contact records the data directory and first values", func(in *memberInputs) {
			in.records["n3"] = cluster.Member{
				ID: "n3", RaftAddress: "h3", HTTPAddress: "w", Priority: 100,
				Eligible: true, Lifecycle: cluster.Joining,
			}
		}, "", "n3:incarnation,priority,version,reads,zone", ""},
		{"started with, and not back yet", func(in *memberInputs) {
			in.records["n3"] = cluster.Member{
				ID: "n3", RaftAddress: "h3", HTTPAddress: "w", Priority: 100,
				Lifecycle: cluster.Joining,
			}
			in.bootstrapIncarnations = map[cluster.NodeID]string{"n3": "in3", "n2": "in2"}
			delete(in.hellos, "n3")
		}, "", "n3:incarnation", ""},
		{"recorded without having been met: first values still count", func(in *memberInputs) {
			in.records["n3"] = cluster.Member{
				ID: "n3", RaftAddress: "h3", HTTPAddress: "w", Priority: 100,
				Eligible: true, Incarnation: "in3", Lifecycle: cluster.Active,
			}
		}, "", "n3:priority,version,reads,zone", ""},
		{"an operator has set values before the first contact", func(in *memberInputs) {
			in.records["n3"] = cluster.Member{
				ID: "n3", RaftAddress: "h3", HTTPAddress: "w", Priority: 3, Zone: "of the operator",
				Lifecycle: cluster.Joining,
			}
		}, "", "n3:incarnation,version,reads", ""},
		{"re-admitted: only the data directory is new", func(in *memberInputs) {
			m := record("n3", "h3", cluster.Active)
			m.Incarnation = ""
			in.records["n3"] = m
		}, "", "n3:incarnation", ""},
		{"changed address and version", func(in *memberInputs) {
			p := hello("n2")
			p.HTTPAddress, p.Version, p.CommandVersion = "w2", "v2", 2
			in.hellos["n2"] = p
		}, "n3", "n2:http,version,reads", ""},
		{"its address was changed after it stopped", func(in *memberInputs) {
			m := record("n2", "h2", cluster.Active)
			m.HTTPAddress = "w2"
			in.records["n2"], in.contact["n2"] = m, false
		}, "n3", "", ""},
		{"its address was changed, and it says otherwise", func(in *memberInputs) {
			m := record("n2", "h2", cluster.Active)
			m.HTTPAddress = "w2"
			in.records["n2"] = m
		}, "n3", "n2:http", ""},
		{"no record, and out of contact", func(in *memberInputs) {
			delete(in.records, "n2")
			in.contact["n2"] = false
		}, "n3", "n2:record http=w", ""},
		{"another data directory changes nothing", func(in *memberInputs) {
			p := hello("n2")
			p.Incarnation, p.HTTPAddress = "x", "w2"
			in.hellos["n2"] = p
		}, "n3", "", ""},
		{"no record", func(in *memberInputs) { delete(in.records, "n2") }, "n3", "n2:record http=w", ""},
		{
			"a promotion that broke off",
			func(in *memberInputs) { in.servers = withSuffrage(joining, "n3", cluster.Voter) },
			"", "", "n3",
		},
		{"moved", func(in *memberInputs) {
			in.servers = append(voters[:1:1], cluster.Server{ID: "n2", Address: "h9", Suffrage: cluster.Voter})
		}, "", "n2:raft", "n3"},
		{"an addition that broke off", func(in *memberInputs) {
			in.servers = voters
			in.records["n4"] = record("n4", "h4", cluster.Joining)
		}, "", "", "n3 n4"},
		{
			"an addition that is under way", func(in *memberInputs) { in.servers, in.changeInProgress = voters, true }, "",
			"", "",
		},
		{"a removal that broke off", func(in *memberInputs) {
			in.servers = voters
			in.records["n3"] = record("n3", "h3", cluster.Active)
		}, "", "", "n3"},
		{"a removal that is under way", func(in *memberInputs) {
			in.servers, in.changeInProgress = voters, true
			in.records["n3"] = record("n3", "h3", cluster.Active)
		}, "", "", ""},
		{"a non-voter's removal that broke off", func(in *memberInputs) {
			m := record("n3", "h3", cluster.Joining)
			m.Removed, m.RaftAddress = true, "h7"
			in.records["n3"] = m
		}, "", "", "n3"},
		{"a re-admission that broke off before the demotion", func(in *memberInputs) {
			in.servers = withSuffrage(joining, "n3", cluster.Voter)
			in.records["n3"] = record("n3", "h3", cluster.Dead)
		}, "", "", "n3"},
		{"the same, and a demotion would lose the quorum", func(in *memberInputs) {
			in.servers = withSuffrage(joining, "n3", cluster.Voter)
			in.records["n3"] = record("n3", "h3", cluster.Dead)
			in.contact["n2"] = false
		}, "", "", ""},
		{"a re-admission that broke off after the demotion", func(in *memberInputs) {
			in.records["n3"] = record("n3", "h3", cluster.Dead)
		}, "", "", "n3"},
		{"removed", func(in *memberInputs) {
			m := record("n3", "h3", cluster.Joining)
			m.Removed = true
			in.servers, in.records["n3"] = voters, m
		}, "", "", ""},
		{"its address is another's by now", func(in *memberInputs) {
			in.servers = voters
			in.records["n3"] = record("n3", "h2", cluster.Joining)
		}, "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := base()
			tt.change(&in)
			plan := decideMemberChanges(now, in)
			if plan.promote != tt.promote {
				t.Errorf("promotes %q, want %q", plan.promote, tt.promote)
			}
			if got := fmt.Sprint(plan.complete); got != "["+tt.complete+"]" {
				t.Errorf("completes the changes of %s, want %q", got, tt.complete)
			}
			if got := describe(plan.commands); got != tt.commands {
				t.Errorf("writes %q, want %q", got, tt.commands)
			}
		})
	}
}

func describe(cmds []state.Command) string {
	var all []string
	for _, c := range cmds {
		if c.Kind == state.KindMember {
			all = append(all, string(c.Member.ID)+":record http="+c.Member.HTTPAddress)
			continue
		}
		p := c.MemberPatch
		var fields []string
		add := func(name string, set bool) {
			if set {
				fields = append(fields, name)
			}
		}
		add("incarnation", p.Incarnation != nil)
		add("lifecycle", p.Lifecycle != nil)
		add("raft", p.RaftAddress != nil)
		add("http", p.HTTPAddress != nil)
		add("priority", p.Priority != nil)
		add("eligible", p.Eligible != nil)
		add("version", p.Version != nil)
		add("reads", p.SupportedVersion != nil)
		add("zone", p.Zone != nil)
		all = append(all, string(p.ID)+":"+strings.Join(fields, ","))
	}
	return strings.Join(all, " ")
}

func TestQuorumAtRisk(t *testing.T) {
	t.Parallel()
	servers := func(spec string) (all []cluster.Server) {
		for i, c := range spec {
			s := cluster.Server{ID: cluster.NodeID(fmt.Sprint("n", i+1)), Suffrage: cluster.Voter}
			if c == '-' {
				s.Suffrage = cluster.NonVoter
			}
			all = append(all, s)
		}
		return all
	}
	contact := func(ids ...cluster.NodeID) map[cluster.NodeID]bool {
		m := map[cluster.NodeID]bool{}
		for _, id := range ids {
			m[id] = true
		}
		return m
	}
	for _, tt := range []struct {
		spec    string
		contact map[cluster.NodeID]bool
		risk    bool
	}{
		{"v", contact("n1"), false},
		{"vv", contact("n1"), true},
		{"vvv", contact("n1", "n3"), false},
		{"vv-", contact("n1", "n3"), true},
		{"vvvv", contact("n1", "n2"), true},
		{"-", contact("n1"), true},
	} {
		if why := quorumAtRisk(servers(tt.spec), tt.contact); (why != "") != tt.risk {
			t.Errorf("%s with %v: %q", tt.spec, tt.contact, why)
		}
	}
}

func TestPlanPatch(t *testing.T) {
	t.Parallel()
	voter, nonVoter := cluster.Server{ID: "n2", Address: "h2", Suffrage: cluster.Voter},
		cluster.Server{ID: "n2", Address: "h2", Suffrage: cluster.NonVoter}
	asVoter, asNonVoter, addr, prio := cluster.Voter, cluster.NonVoter, "h9", 3
	dead := func(s cluster.Server) cluster.Server { s.ID = "dead"; return s }
	joining := func(s cluster.Server) cluster.Server { s.ID = "joining"; return s }
	draining := func(s cluster.Server) cluster.Server { s.ID = "draining"; return s }
	drain, undrain := true, false
	for _, tt := range []struct {
		name   string
		server cluster.Server
		patch  cluster.MemberPatch
		want   string
	}{
		{"nothing", voter, cluster.MemberPatch{}, ""},
		{"priority", voter, cluster.MemberPatch{Priority: &prio}, "write"},
		{"promote", nonVoter, cluster.MemberPatch{Suffrage: &asVoter}, "promote write:active"},
		{"promote a voter", voter, cluster.MemberPatch{Suffrage: &asVoter}, ""},
		{"demote", voter, cluster.MemberPatch{Suffrage: &asNonVoter}, "demote write:active"},
		{"demote a non-voter", nonVoter, cluster.MemberPatch{Suffrage: &asNonVoter}, "write:active"},
		{"demote one that joins", joining(nonVoter), cluster.MemberPatch{Suffrage: &asNonVoter}, "write:active"},
		{
			"demote one whose promotion is unfinished", joining(voter),
			cluster.MemberPatch{Suffrage: &asNonVoter},
			"write:active demote",
		},
		{
			"demote and move it", joining(voter),
			cluster.MemberPatch{Suffrage: &asNonVoter, RaftAddress: &addr, Priority: &prio},
			"write:active demote move write",
		},
		{"demote a drained one", draining(voter), cluster.MemberPatch{Suffrage: &asNonVoter}, "demote"},
		{"promote a drained one", draining(nonVoter), cluster.MemberPatch{Suffrage: &asVoter}, "promote"},
		{
			"promote a drained one and end its drain", draining(nonVoter),
			cluster.MemberPatch{Suffrage: &asVoter, Drain: &undrain},
			"promote write:active",
		},
		{
			"demote and drain", voter,
			cluster.MemberPatch{Suffrage: &asNonVoter, Drain: &drain},
			"demote write:draining",
		},
		{"re-admit a drained non-voter", draining(nonVoter), cluster.MemberPatch{Readmit: true}, "write"},
		{"re-admit a voter", voter, cluster.MemberPatch{Readmit: true}, "dead demote write:joining"},
		{"re-admit a non-voter", nonVoter, cluster.MemberPatch{Readmit: true}, "write"},
		{"complete it before the demotion", dead(voter), cluster.MemberPatch{Readmit: true}, "demote write:joining"},
		{"complete it after the demotion", dead(nonVoter), cluster.MemberPatch{Readmit: true}, "write:joining"},
		{"move", voter, cluster.MemberPatch{RaftAddress: &addr}, "move write"},
	} {
		var got []string
		rec := cluster.Member{ID: tt.server.ID, Lifecycle: cluster.Active}
		switch rec.ID {
		case "dead":
			rec.Lifecycle = cluster.Dead
		case "joining":
			rec.Lifecycle = cluster.Joining
		case "draining":
			rec.Lifecycle = cluster.Draining
		}
		for _, s := range planPatch(rec, tt.server, tt.patch) {
			switch s.action {
			case recordDead:
				got = append(got, "dead")
			case demote:
				got = append(got, "demote")
			case promote:
				got = append(got, "promote")
			case moveAddress:
				got = append(got, "move")
			case writeRecord:
				w := "write"
				if s.record.Lifecycle != nil {
					w += ":" + string(*s.record.Lifecycle)
				}
				got = append(got, w)
			}
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, s, tt.want)
		}
	}
}

func TestDeadReason(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	refused := func(ago time.Duration) map[cluster.NodeID]refusal {
		return map[cluster.NodeID]refusal{"n2": {why: cluster.RefusedRemoved, reason: "removed", at: now.Add(-ago)}}
	}
	outdated := func(ago time.Duration) map[cluster.NodeID]refusal {
		all := refused(refusalFreshness)
		all["n3"] = refusal{why: cluster.RefusedGeneration, reason: "generation", at: now.Add(-ago)}
		return all
	}
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, tt := range []struct {
		name     string
		refusing map[cluster.NodeID]refusal
		good     acceptance
		dead     bool
	}{
		{"never refused", nil, acceptance{}, false},
		{"refused", refused(time.Second), acceptance{}, true},
		{"admitted by another", refused(time.Second), acceptance{admitted: ago(2 * time.Second)}, false},
		{"admitted by another long ago", refused(time.Second), acceptance{admitted: ago(refusalFreshness + 1)}, true},
		{"has a leader", refused(time.Second), acceptance{led: now}, false},
		{"refused long ago", refused(refusalFreshness + 1), acceptance{}, false},
		{"of an old generation", outdated(time.Second), acceptance{}, true},
		{"of an old generation, as others are", outdated(time.Second), acceptance{admitted: now}, true},
		{"of an old generation that has a leader", outdated(time.Second), acceptance{led: now}, false},
		{"of an old generation long ago", outdated(refusalFreshness + 1), acceptance{}, false},
	} {
		if got := deadReason(now, tt.refusing, tt.good); (got != "") != tt.dead {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

func TestLeaseLeft(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	const length = 135 * time.Millisecond
	for _, tt := range []struct {
		name             string
		now, sent, floor time.Time
		want             time.Duration
	}{
		{"fresh", at(100), at(100), time.Time{}, length},
		{"counts from the send, not from its answer", at(100), at(40), time.Time{}, 75 * time.Millisecond},
		{"over", at(300), at(100), time.Time{}, -65 * time.Millisecond},
		{"no quorum", at(100), time.Time{}, time.Time{}, 0},
		{"sent before it was revoked", at(100), at(90), at(95), 0},
		{"sent after it was revoked", at(100), at(96), at(95), 131 * time.Millisecond},
		{"a send time from the future", at(100), at(400), time.Time{}, length},
	} {
		if got := leaseLeft(tt.now, tt.sent, tt.floor, length); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	mono, boot := time.Unix(1000, 0), time.Duration(0)
	advance := func(d time.Duration) { mono, boot = mono.Add(d), boot+d }
	l := newLease(135*time.Millisecond, func() time.Duration { return boot }, func() time.Time { return mono })
	if MayVoteAfter(l.running(), 150*time.Millisecond) {
		t.Error("may vote immediately")
	}
	advance(300 * time.Millisecond)
	if !MayVoteAfter(l.running(), 150*time.Millisecond) {
		t.Error("may still not vote")
	}
	sent := mono
	advance(35 * time.Millisecond)
	if got := l.left(5, sent); got != 100*time.Millisecond {
		t.Errorf("left %v", got)
	}
	boot += time.Second // suspended: the monotonic clock stood still
	if got := l.left(5, sent); got != 0 {
		t.Errorf("left %v over a suspension", got)
	}
	advance(time.Millisecond)
	if l.left(5, mono) <= 0 {
		t.Error("does not come back after a suspension")
	}
	l.revoke()
	if l.left(5, mono) != 0 {
		t.Error("left although revoked")
	}
	advance(time.Millisecond)
	l.revokeTerm(5)
	if l.left(5, mono) != 0 || l.left(6, mono) <= 0 {
		t.Error("revoked for a term")
	}
	restore := l.revokeTerm(6)
	if restore(); l.left(6, mono) <= 0 || l.left(5, mono) != 0 {
		t.Error("revoked for a term, and restored")
	}
	l.revokeTerm(6)
	if l.revokeTerm(6)(); l.left(6, mono) != 0 {
		t.Error("the second of two revocations is undone, and not the first")
	}
	var off *lease
	off.revoke()
	off.revokeTerm(1)()
}

type index uint64

func (i index) Index() uint64 { return uint64(i) }

func TestProposalError(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err   error
		index index
		code  cluster.Code
	}{
		{raft.ErrNotLeader, 0, cluster.CodeNoLeader},
		{raft.ErrEnqueueTimeout, 0, cluster.CodeNoLeader},
		{raft.ErrLeadershipTransferInProgress, 0, cluster.CodeNoLeader},
		{raft.ErrRaftShutdown, 0, cluster.CodeNoLeader},
		{raft.ErrRaftShutdown, 7, cluster.CodeOutcomeUnknown},
		{raft.ErrLeadershipLost, 7, cluster.CodeOutcomeUnknown},
		{raft.ErrAbortedByRestore, 7, cluster.CodeOutcomeUnknown},
		{errors.New("disk full"), 7, cluster.CodeOutcomeUnknown},
	} {
		got := proposalError(tt.err, tt.index)
		if got.Code != tt.code || got.Retryable() != (tt.code == cluster.CodeNoLeader) {
			t.Errorf("%v at %d: %v", tt.err, tt.index, got)
		}
	}
}

// The library rolls back to an old snapshot with fewer trailing entries.
func TestTrailingLogs(t *testing.T) {
	t.Parallel()
	c := Config{TrailingLogs: raftnode.MinTrailingLogs - 1}
	if err := c.validate(); err == nil || !strings.Contains(err.Error(), "trailing-logs") {
		t.Errorf("too few trailing logs: %v", err)
	}
}

// What a restarted node has found in its log counts until it is applied or overwritten. The commit index of a leader
// does not change that.
func TestCheckAhead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		applied, logTerm uint64
		want             aheadState
	}{
		{"in the log", 0, 3, aheadPending},
		{"an earlier entry is applied", 6, 3, aheadPending},
		{"applied", 7, 3, aheadApplied},
		{"applied, and in a snapshot only", 9, 0, aheadApplied},
		{"of a later leader", 6, 4, aheadOverwritten},
		{"deleted", 6, 0, aheadOverwritten},
	} {
		if got := checkAhead(tt.applied, 7, 3, tt.logTerm); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}
