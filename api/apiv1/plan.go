package apiv1

// Plan is the response to an operator's call with dry_run: the effects of the call. The same call with plan_id
// executes exactly this plan. It is refused with 4005 if the term or the membership has changed.
type Plan struct {
	DryRun        bool              `json:"dry_run" doc:"always true: nothing was done"`
	PlanID        string            `json:"plan_id"`
	Action        string            `json:"action"`
	Term          uint64            `json:"term"`
	Membership    string            `json:"membership" doc:"stands for everything about the members that the plan depends on"`
	LeaderID      string            `json:"leader_id" doc:"empty: no leader is known"`
	TargetID      string            `json:"target_id" doc:"whom the call is about: of a move of leadership, the node that would lead; empty: nobody"`
	How           string            `json:"how,omitempty" enum:"transfer,election" doc:"of a move of leadership: the leader hands it over, or the target is elected without its help"`
	Summary       string            `json:"summary" doc:"what would be done, in one sentence"`
	Possible      bool              `json:"possible" doc:"false: the call would be refused, as refusal says"`
	Refusal       *PlannedError     `json:"refusal,omitempty"`
	Candidates    []TargetCandidate `json:"candidates"`
	Affected      Affected          `json:"affected"`
	ExpectedGapMS *int64            `json:"expected_gap_ms" doc:"how long writes would wait: the median of like cases in this cluster's own history; null: there were none"`
	WorstGapMS    *int64            `json:"worst_gap_ms" doc:"the longest of them"`
	GapSamples    int               `json:"gap_samples" doc:"how many there were"`
	Risk          string            `json:"risk" enum:"low,medium,high" doc:"low: a pause of writes; medium: an election that may take several rounds; high: the quorum, or data, may be lost"`
	Warnings      []string          `json:"warnings"`
	Survivors     []Survivor        `json:"survivors,omitempty" doc:"of a recovery: the nodes that are left, freshest first"`
}

// PlannedError is the error that the call would return.
type PlannedError struct {
	Code   int    `json:"code"`
	Name   string `json:"name"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Votes  []Vote `json:"votes,omitempty" doc:"with code 4006: what each voter would answer"`
}

// TargetCandidate is a node considered as the target.
type TargetCandidate struct {
	ID         string `json:"id"`
	Eligible   bool   `json:"eligible"`
	Reason     string `json:"reason" doc:"the check that rules it out; empty: none does"`
	Voter      bool   `json:"voter"`
	Priority   int    `json:"priority"`
	LagEntries uint64 `json:"lag_entries" doc:"behind the end of the log, as far as the answering node knows"`
}

// Affected is what a plan affects in addition to the leader.
type Affected struct {
	Roles    int `json:"roles" doc:"that are held; they stay so"`
	Sessions int `json:"sessions"`
}
