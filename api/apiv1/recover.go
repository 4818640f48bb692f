package apiv1

// Recover is the body of POST /admin/recover.
type Recover struct {
	Survivors []string       `json:"survivors" doc:"every node that is left; the one with the freshest log becomes the only voter of a new generation"`
	Confirm   string         `json:"confirm" doc:"the cluster's ID"`
	Force     bool           `json:"force" doc:"must be true, but for a dry run: what the survivors never received is lost"`
	Reason    string         `json:"reason" doc:"required, but for a dry run"`
	DryRun    bool           `json:"dry_run,omitempty"`
	PlanID    string         `json:"plan_id,omitempty"`
	Follow    *RecoverFollow `json:"follow,omitempty" doc:"sets this node's data aside, to come back as a member of that generation; the recovered node sends it to the other survivors"`
}

// RecoverFollow names an existing generation of the cluster.
type RecoverFollow struct {
	LeaderID   string `json:"leader_id" doc:"the node that was recovered"`
	Generation uint64 `json:"generation"`
	RecoveryID string `json:"recovery_id"`
}

// RecoverResult is the response to POST /admin/recover.
type RecoverResult struct {
	RecoveredID string     `json:"recovered_id" doc:"the only voter of the new generation"`
	ClusterID   string     `json:"cluster_id"`
	Generation  uint64     `json:"generation"`
	RecoveryID  string     `json:"recovery_id"`
	Term        uint64     `json:"term"`
	Revision    uint64     `json:"revision" doc:"every revision of the generations before is below those of the new one"`
	Survivors   []Survivor `json:"survivors" doc:"freshest first"`
	LostIDs     []string   `json:"lost_ids" doc:"members that are to be wiped and re-admitted, or removed"`
	Message     string     `json:"message"`
	Warnings    []string   `json:"warnings" doc:"what can have been lost, and what can still go wrong"`
}

// Survivor is a surviving node and the end of its log.
type Survivor struct {
	ID        string `json:"id"`
	Voter     bool   `json:"voter" doc:"it was one"`
	LastTerm  uint64 `json:"last_term"`
	LastIndex uint64 `json:"last_index"`
	Outcome   string `json:"outcome,omitempty" doc:"what became of it: recovered, set aside, or why its data was not set aside"`
}

// PathRecover is the path of the recovery of a lost quorum.
const PathRecover = "/admin/recover"
