package apiv1

import "time"

// Leader is the response to GET /leader. HeaderCluster and HeaderGeneration identify the node's cluster.
type Leader struct {
	LeaderID      string `json:"leader_id"`
	LeaderAddress string `json:"leader_address" doc:"advertised HTTP host:port of the leader"`
	RaftAddress   string `json:"raft_address"`
	Term          uint64 `json:"term"`
	ObservedBy    string `json:"observed_by" doc:"the node that answers"`
}

// Disk is the state of a node's own disk.
type Disk struct {
	FsyncP99MS int64 `json:"fsync_p99_ms" doc:"over the last minute, rounded up; 0 when nothing was synced"`
	Stalled    bool  `json:"stalled"`
	ReadOnly   bool  `json:"read_only"`
}

// Status is the response to GET /status: the node's view of itself.
type Status struct {
	NodeID           string    `json:"node_id"`
	ClusterID        string    `json:"cluster_id" doc:"empty until the node belongs to a cluster"`
	Generation       uint64    `json:"generation"`
	RecoveryID       string    `json:"recovery_id,omitempty"`
	Incarnation      string    `json:"incarnation" doc:"random, of the data directory"`
	BootID           string    `json:"boot_id" doc:"random, of the process"`
	ClusterName      string    `json:"cluster_name"`
	State            string    `json:"state" enum:"follower,candidate,leader"`
	Term             uint64    `json:"term"`
	LeaderID         string    `json:"leader_id"`
	LeaderAddress    string    `json:"leader_address"`
	HTTPAddress      string    `json:"http_address"`
	RaftAddress      string    `json:"raft_address"`
	Suffrage         string    `json:"suffrage" enum:"voter,nonvoter"`
	Priority         int       `json:"priority"`
	Eligible         bool      `json:"eligible"`
	Zone             string    `json:"zone"`
	Lifecycle        string    `json:"lifecycle" enum:"joining,active,draining,dead"`
	CommitIndex      uint64    `json:"commit_index"`
	AppliedIndex     uint64    `json:"applied_index"`
	LastLogIndex     uint64    `json:"last_log_index"`
	LastContactMS    *int64    `json:"last_contact_ms" doc:"since the last word from the leader; 0 on the leader, null when there was none"`
	LeaseRemainingMS int64     `json:"lease_remaining_ms"`
	AutoFailover     bool      `json:"auto_failover"`
	Silence          *Silence  `json:"silence,omitempty"`
	Revision         uint64    `json:"revision" doc:"newest revision applied here"`
	Disk             Disk      `json:"disk"`
	Version          string    `json:"version"`
	StartedAt        time.Time `json:"started_at"`
	ElectionObstacle string    `json:"election_obstacle" doc:"human-readable: why this node starts no election by itself; empty: it may"`
	Warnings         []string  `json:"warnings" doc:"human-readable: what differs from the configuration, why the node is dead"`
}

// Silence is how long the leader may be silent before the survivors ask each other whether it failed.
type Silence struct {
	ThresholdMS float64 `json:"threshold_ms"`
	Source      string  `json:"source" enum:"configured,learning,measured,raised,lease"`
	Reason      string  `json:"reason" doc:"human-readable"`
}

// Check is one line of /readyz.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Quorum is the number of voters and how many of them are needed.
type Quorum struct {
	Voters    int `json:"voters"`
	Needed    int `json:"needed"`
	Healthy   int `json:"healthy"`
	Tolerates int `json:"tolerates" doc:"how many more healthy voters may fail"`
}

// Counts is the number of members by lifecycle.
type Counts struct {
	Joining  int `json:"joining"`
	Active   int `json:"active"`
	Draining int `json:"draining"`
	Dead     int `json:"dead"`
	Total    int `json:"total"`
}

// Member is one member as the answering node sees it.
type Member struct {
	ID            string   `json:"id"`
	RaftAddress   string   `json:"raft_address"`
	HTTPAddress   string   `json:"http_address"`
	Suffrage      string   `json:"suffrage" enum:"voter,nonvoter"`
	Priority      int      `json:"priority"`
	Eligible      bool     `json:"eligible"`
	Zone          string   `json:"zone"`
	Lifecycle     string   `json:"lifecycle" enum:"joining,active,draining,dead"`
	Healthy       bool     `json:"healthy"`
	Reasons       []string `json:"reasons" doc:"why it is not healthy"`
	State         string   `json:"state" enum:"follower,candidate,leader,unknown"`
	LastContactMS *int64   `json:"last_contact_ms" doc:"null when there was none"`
	LagEntries    uint64   `json:"lag_entries" doc:"entries that it lacks; or those of its log that it has yet to apply, as after a start, if these are more, and more than 1024"`
	Version       string   `json:"version"`
}

// StateSize is the size of the replicated state, with the limits in force; a limit of 0 is none yet.
type StateSize struct {
	Keys                int    `json:"keys"`
	Sessions            int    `json:"sessions"`
	Bytes               int64  `json:"bytes" doc:"of keys, sessions, roles and application nodes, with a fixed amount for each record"`
	BytesLimit          uint64 `json:"bytes_limit" doc:"beyond it, what grows the state is refused (4020); keys leave a sixteenth free"`
	SessionsPerIdentity uint64 `json:"sessions_per_identity" doc:"limit of the sessions of one token or client certificate"`
}

// Cluster is the response to GET /v1/cluster: the leader's view, or the answering node's if no leader responds.
type Cluster struct {
	ClusterID    string    `json:"cluster_id"`
	ClusterName  string    `json:"cluster_name"`
	Generation   uint64    `json:"generation"`
	Term         uint64    `json:"term"`
	LeaderID     string    `json:"leader_id"`
	Revision     uint64    `json:"revision"`
	AutoFailover bool      `json:"auto_failover"`
	ObservedBy   string    `json:"observed_by" doc:"whose view this is"`
	Quorum       Quorum    `json:"quorum"`
	Counts       Counts    `json:"counts"`
	State        StateSize `json:"state"`
	Members      []Member  `json:"members"`
}
