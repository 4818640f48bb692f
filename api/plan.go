package api

import (
	"cmp"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/cluster"
	"northstar/state"
)

type planParams struct {
	dryRun bool
	id     string // of the plan to execute; "": none
}

// verifyPlan compares a call with the plan just made for it. It answers a dry run, also for a call that would be
// refused, and returns ErrResponseWritten; only an invalid call is another error then. Otherwise an error means that
// the plan is refused, or differs from the one that the call names.
func (c *request) verifyPlan(p planParams, plan cluster.Plan) error {
	if p.id != "" {
		if err := plan.Check(p.id); err != nil {
			return err
		}
	}
	if r := plan.Refusal; r != nil && (!p.dryRun || r.Code == cluster.CodeBadRequest) {
		return r
	}
	if !p.dryRun {
		return nil
	}
	switch plan.Action {
	case cluster.ActionTransfer, cluster.ActionFailover, cluster.ActionEmergency, cluster.ActionRecover:
		plan.MovesLeader = true
	}
	if plan.MovesLeader {
		plan.Affected = countAffected(c.s.reads.View())
	}
	return cmp.Or(c.reply(wirePlan(plan)), forward.ErrResponseWritten)
}

// countAffected counts the roles, sessions and clients that a leadership move affects.
func countAffected(v *state.View) cluster.Affected {
	a := cluster.Affected{Sessions: v.Sessions()}
	for r := range v.RolesAfter("") {
		if r.Held() {
			a.Roles++
		}
	}
	return a
}

// plannedTarget returns the node in a call's field, or, if that is empty, the node that its plan chose.
func plannedTarget(field, value, planID string) (cluster.NodeID, error) {
	if value != "" {
		id, err := cluster.ParseNodeID(value)
		if err != nil {
			return "", problem.BadRequest("%s: %w", field, err)
		}
		return id, nil
	}
	if planID == "" {
		return "", nil
	}
	_, _, target, err := cluster.ParsePlanID(planID)
	if err != nil {
		return "", err
	}
	return target, nil
}

func wirePlan(p cluster.Plan) apiv1.Plan {
	w := apiv1.Plan{
		DryRun: true, PlanID: p.ID(), Action: p.Action, Term: p.Term, Membership: p.Membership,
		LeaderID: string(p.Leader), TargetID: string(p.Target), How: string(p.Method),
		Summary: p.Summary, Possible: p.Refusal == nil, Candidates: make([]apiv1.TargetCandidate, 0, len(p.Candidates)),
		Affected: apiv1.Affected(p.Affected), Risk: string(p.Risk), Warnings: append([]string{}, p.Warnings...),
	}
	if r := p.Refusal; r != nil {
		w.Refusal = &apiv1.PlannedError{
			Code: int(r.Shown()), Name: r.Shown().Name(), Status: r.HTTPStatus(),
			Detail: r.Detail, Votes: problem.EncodeVotes(r.Votes),
		}
	}
	for _, c := range p.Candidates {
		w.Candidates = append(w.Candidates, apiv1.TargetCandidate{
			ID: string(c.ID), Eligible: c.Eligible,
			Reason: c.Reason, Voter: c.Voter, Priority: c.Priority, LagEntries: c.LagEntries,
		})
	}
	for _, s := range p.Survivors {
		w.Survivors = append(w.Survivors, apiv1.Survivor{
			ID: string(s.ID), Voter: s.Voter, LastTerm: s.LastTerm,
			LastIndex: s.LastIndex,
		})
	}
	if w.GapSamples = p.Gap.Samples; p.Gap.Samples > 0 {
		w.ExpectedGapMS, w.WorstGapMS = new(ceilMS(p.Gap.Expected)), new(ceilMS(p.Gap.Worst))
	}
	return w
}
