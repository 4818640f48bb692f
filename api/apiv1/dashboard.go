package apiv1

import "time"

// PathFeed is the stream of the dashboard's data.
const PathFeed = "/dashboard/feed"

// Event names of GET /dashboard/feed, in addition to error and moving. The data of entry is an Event.
const (
	EventView   = "view"
	EventSame   = "same"
	EventSample = "sample"
	EventEntry  = "entry"
)

// DashboardView is the data of an event view: the cluster as the answering node sees it now.
type DashboardView struct {
	Caller       Caller             `json:"caller"`
	NodeID       string             `json:"node_id" doc:"the answering node"`
	At           time.Time          `json:"at"`
	Cluster      Cluster            `json:"cluster" doc:"as of GET /v1/cluster"`
	Nodes        []Status           `json:"nodes" doc:"of the members that answer, each as of its GET /status"`
	AutoFailover *AutoFailoverState `json:"auto_failover,omitempty" doc:"for operators only"`
	SplitBrain   *SplitBrain        `json:"split_brain,omitempty" doc:"for operators only"`
}

// DashboardSame is the data of an event same: the newest view still shows the cluster as it is, but for times.
type DashboardSame struct {
	At time.Time `json:"at" doc:"when the answering node has compared"`
}

// Caller is who made a request.
type Caller struct {
	Name string `json:"name" doc:"of the token or certificate; loopback or insecure"`
	Role string `json:"role" enum:"observer,client,operator"`
}

// DashboardSample is the data of an event sample: one point of the dashboard's graphs.
type DashboardSample struct {
	At           time.Time `json:"at"`
	ChangesPerS  float64   `json:"changes_per_s" doc:"revisions that this node applied, each second"`
	WriteP99MS   float64   `json:"write_p99_ms" doc:"of the writes that this node answered; 0: none"`
	LeaderlessMS int64     `json:"leaderless_ms" doc:"of the interval, in which the cluster had no leader"`
	DiskP99MS    float64   `json:"disk_p99_ms" doc:"of synced writes of this node in the last minute"`
}
