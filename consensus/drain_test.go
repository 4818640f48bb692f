package consensus

import (
	"testing"

	"northstar/cluster"
)

func TestPlanDrain(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	server := cluster.Server{ID: "n2", Address: "h2", Suffrage: cluster.Voter}
	for _, tt := range []struct {
		name  string
		from  cluster.Lifecycle
		drain *bool
		to    cluster.Lifecycle // "": nothing is written
		fails bool
	}{
		{"drain", cluster.Active, &yes, cluster.Draining, false},
		{"drain again", cluster.Draining, &yes, "", false},
		{"undrain", cluster.Draining, &no, cluster.Active, false},
		{"undrain what is not drained", cluster.Active, &no, "", false},
		{"drain a node on its way in", cluster.Joining, &yes, "", true},
		{"drain a node that is being re-admitted", cluster.Dead, &yes, "", true},
		{"undrain a node on its way in", cluster.Joining, &no, "", false},
	} {
		rec, p := cluster.Member{ID: "n2", Lifecycle: tt.from}, cluster.MemberPatch{Drain: tt.drain}
		if err := checkDrain(p, rec); (err != nil) != tt.fails {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.fails {
			plan := planChange(changeInputs{
				change: cluster.MemberChange{ID: "n2", Patch: &p}, self: "n1",
				servers: []cluster.Server{server}, members: []cluster.Member{rec},
			})
			if r := plan.Refusal; r == nil || r.Code != cluster.CodeQuorumAtRisk || r.HTTPStatus() != 409 {
				t.Errorf("%s: the plan is refused with %+v", tt.name, r)
			}
			continue
		}
		var got cluster.Lifecycle
		for _, step := range planPatch(rec, server, p) {
			if step.action != writeRecord || step.record.Lifecycle == nil {
				t.Fatalf("%s: step %+v", tt.name, step)
			}
			got = *step.record.Lifecycle
		}
		if got != tt.to {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.to)
		}
	}
}
