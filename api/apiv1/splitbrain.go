package apiv1

import "time"

// SplitBrainCheck is the optional body of POST /admin/splitbrain/check.
type SplitBrainCheck struct {
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dry_run,omitempty" doc:"makes no difference: a check changes nothing but what is known"`
}

// SplitBrain is the response to it and to GET /admin/splitbrain: the responding node's assessment of the members'
// claims.
type SplitBrain struct {
	Verdict   string              `json:"verdict" enum:"ok,unreachable,stale_leader,foreign_cluster,split_brain" doc:"the gravest of the findings"`
	Findings  []SplitBrainFinding `json:"findings"`
	Claims    []SplitBrainClaim   `json:"claims"`
	CheckedAt time.Time           `json:"checked_at"`
	CheckedBy string              `json:"checked_by" doc:"the node whose view this is"`
	Refusing  bool                `json:"refusing" doc:"that node is part of a conflict, and refuses reads and writes with 4004"`
}

// SplitBrainFinding is one inconsistency.
type SplitBrainFinding struct {
	Verdict  string   `json:"verdict" enum:"unreachable,stale_leader,foreign_cluster,split_brain"`
	Detail   string   `json:"detail"`
	Nodes    []string `json:"nodes" doc:"whom it is about"`
	Refusing bool     `json:"refusing" doc:"the answering node refuses service because of it"`
}

// SplitBrainClaim is what one node reports about itself and the leader.
type SplitBrainClaim struct {
	NodeID     string    `json:"node_id"`
	Source     string    `json:"source" enum:"self,peer,http" doc:"peer: said on a connection between peers, which counts; http: its answer to GET /leader, which is only shown"`
	Address    string    `json:"address"`
	BootID     string    `json:"boot_id,omitempty"`
	ClusterID  string    `json:"cluster_id"`
	Generation uint64    `json:"generation"`
	RecoveryID string    `json:"recovery_id,omitempty"`
	Term       uint64    `json:"term" doc:"0: not said"`
	Leads      bool      `json:"leads" doc:"it says that it leads"`
	LeaderID   string    `json:"leader_id"`
	At         time.Time `json:"at" doc:"when it was said"`
	Error      string    `json:"error,omitempty" doc:"why there is no claim"`
}
