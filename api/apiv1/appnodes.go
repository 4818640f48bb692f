package apiv1

import "time"

// PathNodes is the registry of application nodes.
const PathNodes = "/v1/nodes"

// NodePut is the body of PUT /v1/nodes/{id}.
type NodePut struct {
	SessionID    string   `json:"session_id" doc:"the node is dead when this ends"`
	Hostname     string   `json:"hostname,omitempty"`
	Address      string   `json:"address,omitempty"`
	HTTPPort     int      `json:"http_port,omitempty"`
	GRPCPort     int      `json:"grpc_port,omitempty"`
	Roles        []string `json:"roles,omitempty" doc:"at most 64"`
	Capabilities []string `json:"capabilities,omitempty" doc:"at most 64"`
	Version      string   `json:"version,omitempty"`
	Status       string   `json:"status,omitempty" enum:"joining,active,draining" doc:"default active"`
	Load         *Load    `json:"load,omitempty" doc:"kept on the leader and not replicated: unknown after a change of the leader until it is reported again"`
}

// Load is the load of an application node.
type Load struct {
	Connections int64   `json:"connections"`
	Jobs        int64   `json:"jobs"`
	CPU         float64 `json:"cpu"`
	Memory      float64 `json:"memory"`
}

// Node is an application node, and the data of an event of GET /v1/nodes/watch: a delete has only id and revision.
type Node struct {
	ID              string     `json:"id"`
	SessionID       string     `json:"session_id" doc:"empty once it is dead"`
	Hostname        string     `json:"hostname"`
	Address         string     `json:"address"`
	HTTPPort        int        `json:"http_port"`
	GRPCPort        int        `json:"grpc_port"`
	Roles           []string   `json:"roles"`
	Capabilities    []string   `json:"capabilities"`
	Version         string     `json:"version"`
	Status          string     `json:"status" enum:"joining,active,draining,dead"`
	CanAcceptWork   bool       `json:"can_accept_work" doc:"it is active"`
	Load            *Load      `json:"load" doc:"null where it is not known: only the leader knows it, and only what was reported since it leads"`
	StartedAt       *time.Time `json:"started_at" doc:"when its session began; null of a dead node, and in events"`
	LastHeartbeatAt *time.Time `json:"last_heartbeat_at" doc:"when its session was last renewed, as the leader counts it: a new leader counts from its election; null of a dead node, in events, and in a stale answer"`
	RegisteredAt    time.Time  `json:"registered_at" doc:"for the first time"`
	ChangedAt       time.Time  `json:"changed_at" doc:"of a dead node: when it died"`
	Revision        uint64     `json:"revision" doc:"of its last change"`
}

// Nodes is the response to GET /v1/nodes.
type Nodes struct {
	Items []Node `json:"items"`
	Next  string `json:"next"`
}

// NodeRemoved is the response to DELETE /v1/nodes/{id}.
type NodeRemoved struct {
	ID string `json:"id"`
}
