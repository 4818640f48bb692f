package apiv1

// PutResult answers PUT /v1/kv/{key}.
type PutResult struct {
	Key      string `json:"key"`
	Revision uint64 `json:"revision"`
	Created  bool   `json:"created" doc:"the key did not exist before"`
}

// DeleteResult answers DELETE /v1/kv/{key}. Its revision is the deletion's own.
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

// List answers GET /v1/kv. Next, when not empty, is what ?after= takes for the
// following page.
type List struct {
	Revision uint64 `json:"revision" doc:"the state that this page was read from"`
	Items    []Item `json:"items"`
	Next     string `json:"next"`
}

// Change is the data of one event of GET /v1/watch; the event's name is put or
// delete. The value of a delete is empty.
type Change struct {
	Key      string `json:"key"`
	Value    []byte `json:"value"`
	Revision uint64 `json:"revision"`
}

// Names of the events on a watch and an event stream.
const (
	EventPut      = "put"
	EventDelete   = "delete"
	EventError    = "error"  // data is a Problem; the stream ends
	EventDraining = "moving" // the node stops serving: resume elsewhere
)
