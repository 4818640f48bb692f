package apiv1

// PutResult is the response to PUT /v1/kv/{key}.
type PutResult struct {
	Key      string `json:"key"`
	Revision uint64 `json:"revision"`
	Created  bool   `json:"created" doc:"the key did not exist before"`
}

// DeleteResult is the response to DELETE /v1/kv/{key}. Revision is the revision of the deletion.
type DeleteResult struct {
	Key      string `json:"key"`
	Revision uint64 `json:"revision"`
}

// Item is one key of a list. Value is base64 on the wire.
type Item struct {
	Key            string `json:"key"`
	Value          []byte `json:"value"`
	Revision       uint64 `json:"revision" doc:"of its last change"`
	CreateRevision uint64 `json:"create_revision"`
	Version        uint64 `json:"version" doc:"writes since creation, the first being 1"`
}

// List is the response to GET /v1/kv. Next, if not empty, is the value of ?after= for the next page.
type List struct {
	Revision uint64 `json:"revision" doc:"the state that this page was read from"`
	Items    []Item `json:"items"`
	Next     string `json:"next"`
}

// Change is the data of an event of GET /v1/watch; the event's name is put or delete. A delete has no value.
type Change struct {
	Key      string `json:"key"`
	Value    []byte `json:"value"`
	Revision uint64 `json:"revision"`
}

// Event names of watches and event streams.
const (
	EventPut      = "put"
	EventDelete   = "delete"
	EventError    = "error"  // data is a Problem; the stream ends
	EventLeader   = "leader" // of PathLeaderWatch
	EventDraining = "moving" // the node is draining: resume elsewhere; see also EventKeepAlive
)
