package cluster

import "time"

// EventTypes lists all types of events.
var EventTypes = []string{"election", "failover", "transfer", "member", "health", "splitbrain", "role", "disk", "node"}

// Event is one occurrence on one node, for the journal, the API's event stream and people.
type Event struct {
	Seq     string         `json:"seq"`  // opaque; orders the events of one node's process
	Node    NodeID         `json:"node"` // the node whose journal has it
	Type    string         `json:"type"` // one of EventTypes
	At      time.Time      `json:"at"`
	Term    uint64         `json:"term,omitempty"`
	Message string         `json:"message"`
	Fields  map[string]any `json:"fields,omitempty"`
}
