package cluster

import (
	"strings"
	"testing"
)

func examplePlan() Plan {
	return Plan{Action: "transfer", Term: 7, Membership: "m1", Target: "db.eu-1_a", Params: "x=1"}
}

func TestPlanIDNamesThePlan(t *testing.T) {
	p := examplePlan()
	if err := p.Check(p.ID()); err != nil {
		t.Fatalf("its own ID: %v", err)
	}
	action, term, target, err := ParsePlanID(p.ID())
	if err != nil || action != "transfer" || term != 7 || target != "db.eu-1_a" {
		t.Errorf("%q: %q %d %q %v", p.ID(), action, term, target, err)
	}
	open := Plan{Action: "failover", Term: 1}
	if _, _, target, err = ParsePlanID(open.ID()); err != nil || target != "" || open.Check(open.ID()) != nil {
		t.Errorf("%q: target %q, %v", open.ID(), target, err)
	}
	for _, c := range []struct {
		name   string
		change func(*Plan)
		code   Code
		says   string
	}{
		{"term", func(p *Plan) { p.Term++ }, CodeTermStale, "term 7"},
		{"membership", func(p *Plan) { p.Membership = "m2" }, CodeTermStale, "membership"},
		{"parameters", func(p *Plan) { p.Params = "x=2" }, CodeTermStale, "would do"},
		{"target", func(p *Plan) { p.Target = "n2" }, CodeBadRequest, "db.eu-1_a"},
		{"action", func(p *Plan) { p.Action = "failover" }, CodeBadRequest, "plan of transfer"},
		{"fields that run into each other", func(p *Plan) { p.Membership, p.Params = "m1x", "=1" }, CodeTermStale, ""},
	} {
		now := examplePlan()
		c.change(&now)
		err := now.Check(p.ID())
		if err == nil || err.Code != c.code || !strings.Contains(err.Detail, c.says) {
			t.Errorf("%s changed: %v", c.name, err)
		}
	}
	shown := examplePlan()
	shown.Summary, shown.Candidates, shown.Warnings = "s", []TargetOption{{ID: "n2", LagEntries: 4}}, []string{"w"}
	if shown.ID() != p.ID() {
		t.Error("what changes by the moment, such as a lag, is in the ID")
	}
}

func TestBadPlanIDs(t *testing.T) {
	for _, bad := range []string{
		"", "x", "transfer.7", "transfer.x.n2.00", "transfer.7.N2.00", "transfer.-1.n2.00",
		"transfer.7.n2", "a.1.n2." + strings.Repeat("0", 200),
	} {
		if _, _, _, err := ParsePlanID(bad); err == nil || err.Code != CodeBadRequest ||
			!strings.Contains(err.Detail, "plan_id") {
			t.Errorf("%q: %v", bad, err)
		}
		if err := examplePlan().Check(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestMembershipDigest(t *testing.T) {
	servers := []Server{{ID: "n1", Address: "a:1", Suffrage: Voter}, {ID: "n2", Address: "b:1", Suffrage: Voter}}
	members := []Member{
		{ID: "n1", Priority: 100, Eligible: true, Lifecycle: Active},
		{ID: "n2", Priority: 100, Eligible: true, Lifecycle: Active},
	}
	first := MembershipDigest(servers, members)
	if again := MembershipDigest([]Server{servers[1], servers[0]}, []Member{members[1], members[0]}); again != first {
		t.Error("the order counts")
	}
	seen := map[string]string{first: "unchanged"}
	for name, change := range map[string]func(s *Server, m *Member){
		"address":     func(s *Server, _ *Member) { s.Address = "c:1" },
		"suffrage":    func(s *Server, _ *Member) { s.Suffrage = NonVoter },
		"priority":    func(_ *Server, m *Member) { m.Priority = 7 },
		"eligible":    func(_ *Server, m *Member) { m.Eligible = false },
		"lifecycle":   func(_ *Server, m *Member) { m.Lifecycle = Draining },
		"removed":     func(_ *Server, m *Member) { m.Removed = true },
		"incarnation": func(_ *Server, m *Member) { m.Incarnation = "i2" },
	} {
		s, m := append([]Server{}, servers...), append([]Member{}, members...)
		change(&s[1], &m[1])
		d := MembershipDigest(s, m)
		if other, dup := seen[d]; dup {
			t.Errorf("%s makes no difference to %s", name, other)
		}
		seen[d] = name
	}
	m := append([]Member{}, members...)
	m[0].Version, m[0].HTTPAddress = "v9", "x:1"
	if MembershipDigest(servers, m) != first {
		t.Error("what a node reports of itself makes plans stale")
	}
}
