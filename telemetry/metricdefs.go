package telemetry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Prefix starts the name of every metric.
const Prefix = "northstar_"

// Kind is a metric's type, by its Prometheus name.
type Kind string

// The metric types in use.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// MetricDef defines one metric. The registry, the documents and the tests use it.
type MetricDef struct {
	Name    string // without Prefix
	Kind    Kind
	Labels  []string
	Buckets []float64 // of a histogram, in the unit of the name
	Help    string
}

// Bucket bounds in milliseconds.
var (
	electionBuckets = []float64{1, 2.5, 5, 10, 25, 50, 100, 200, 300, 500, 750, 1000, 2500, 5000, 10000, 30000}
	ioBuckets       = []float64{0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10000}
	httpBuckets     = []float64{0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 60000}
)

// metricDefs lists all metrics. Their names are part of the contract.
var metricDefs = []MetricDef{
	counterDef("election_count", "Elections started by this node, by trigger and result.", "trigger", "result"),
	histogramDef("election_duration_ms", electionBuckets,
		"Duration of elections started by this node, until lost or until the new leader has applied its first entry."),
	gaugeDef("election_success_rate",
		"Share of this node's elections of the last 5 minutes that were won; 1 if there were none."),
	histogramDef("leaderless_duration_ms", electionBuckets,
		"Time between the last heartbeat of the previous leader and the election win."),
	counterDef("failover_count",
		"Failovers won by this node, excluding the first election and planned transfers.", "trigger"),
	counterDef("leader_transfer_count", "Leadership transfers started by this node as leader.", "result"),
	histogramDef("leader_transfer_duration_ms", electionBuckets,
		"Duration of leadership transfers until the target was observed as leader."),
	gaugeDef("current_leader_id", "1 for the leader known to this node; absent without a known leader.", "leader_id"),
	gaugeDef("current_term", "Raft term of this node."),
	gaugeDef("is_leader", "1 while this node leads."),
	gaugeDef("leader_tenure_seconds", "Time since this node became leader; 0 if it is not."),
	counterDef("votes_total", "Vote responses sent by this node.", "granted", "reason"),
	counterDef("split_brain_detected",
		"Split-brain conflicts detected: stale leader, two leaders in one term, foreign cluster or generation, "+
			"duplicate node ID."),
	gaugeDef("peer_healthy", "1 if this node considers the peer healthy.", "peer"),
	gaugeDef("peer_last_contact_ms",
		"Milliseconds since the last response from the peer; absent before the first response.", "peer"),
	gaugeDef("peer_lag_entries", "Log entries that the peer lags behind; on the leader only.", "peer"),
	gaugeDef("heartbeat_age_ms", "Milliseconds since the last message from the leader; 0 on the leader."),
	histogramDef("disk_fsync_ms", ioBuckets, "Synced writes to the log and the vote record."),
	gaugeDef("disk_read_only", "1 while less space than disk.reserve is free: the node accepts no writes."),
	gaugeDef("disk_stalled", "1 while a disk operation has been pending for longer than timeout-max."),
	gaugeDef("commit_index", "Highest log index known to be committed."),
	gaugeDef("applied_index", "Highest log index applied to the state."),
	histogramDef("apply_duration_ms", ioBuckets, "Application of one batch of commands to the state."),
	counterDef("proposals_total", "Proposals to the log, by result.", "result"),
	gaugeDef("role_held",
		"1 if the role is held (local view). Roles vacant for a day, and roles beyond 512, are omitted.", "role"),
	gaugeDef("role_token", "The role's current fencing token; 0 if the role is vacant.", "role"),
	counterDef("role_elections_total", "Elections of the role, cluster-wide.", "role"),
	gaugeDef("sessions", "Active sessions, cluster-wide."),
	histogramDef("http_request_duration_ms", httpBuckets,
		"Duration of HTTP requests; of a stream, until it ends.", "route", "method", "status"),
	gaugeDef("http_in_flight", "HTTP requests and streams in flight."),
	counterDef("rpc_rejected_total", "Rejected peer connections and messages.", "kind", "reason"),
	counterDef("snapshot_install_repeated_total",
		"Snapshots sent again by this node as leader to a peer that had already installed them.", "peer"),
	counterDef("audit_records_total", "Audit records of requests without a log command, by delivery result.", "result"),
	counterDef("audit_dropped_total",
		"Audit records evicted from the replicated log by count, size or age limits, cluster-wide.", "class"),
	gaugeDef("reload_failed",
		"1 if the last reload of the token or TLS file failed; the previous version stays active.", "file"),
	counterDef("auth_failures_total",
		"Requests rejected as unauthenticated (missing or invalid token or certificate)."),
}

func counterDef(name, help string, labels ...string) MetricDef {
	return MetricDef{Name: name, Kind: Counter, Labels: labels, Help: help}
}

func gaugeDef(name, help string, labels ...string) MetricDef {
	return MetricDef{Name: name, Kind: Gauge, Labels: labels, Help: help}
}

func histogramDef(name string, buckets []float64, help string, labels ...string) MetricDef {
	return MetricDef{Name: name, Kind: Histogram, Labels: labels, Buckets: buckets, Help: help}
}

// MetricDefs lists every metric of NorthStar itself, for documents and tests.
func MetricDefs() []MetricDef { return slices.Clone(metricDefs) }

// Table returns all metrics as a Markdown table, for docs/metrics.md.
func Table() string {
	var b strings.Builder
	b.WriteString("| name | type | labels | meaning |\n|---|---|---|---|\n")
	for _, d := range metricDefs {
		fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s |\n", Prefix, d.Name, d.Kind, strings.Join(d.Labels, ", "), d.Help)
	}
	return b.String()
}

// mustFind returns the definition of a metric. It panics if there is none, which every test of this package
// detects.
func mustFind(name string, kind Kind) MetricDef {
	for _, d := range metricDefs {
		if d.Name == name && d.Kind == kind {
			return d
		}
	}
	panic("telemetry: undefined " + string(kind) + " " + name)
}

func counter(r prometheus.Registerer, name string) prometheus.Counter {
	d := mustFind(name, Counter)
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: Prefix + d.Name, Help: d.Help})
	r.MustRegister(c)
	return c
}

func gauge(r prometheus.Registerer, name string) prometheus.Gauge {
	d := mustFind(name, Gauge)
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: Prefix + d.Name, Help: d.Help})
	r.MustRegister(g)
	return g
}

func histogram(r prometheus.Registerer, name string) prometheus.Histogram {
	d := mustFind(name, Histogram)
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: Prefix + d.Name, Help: d.Help, Buckets: d.Buckets})
	r.MustRegister(h)
	return h
}

func counters(r prometheus.Registerer, name string) *limitedVec[prometheus.Counter] {
	d := mustFind(name, Counter)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: Prefix + d.Name, Help: d.Help}, d.Labels)
	r.MustRegister(v)
	return newLimitedVec(len(d.Labels), v.WithLabelValues)
}

func histograms(r prometheus.Registerer, name string) *limitedVec[prometheus.Observer] {
	d := mustFind(name, Histogram)
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: Prefix + d.Name, Help: d.Help, Buckets: d.Buckets},
		d.Labels)
	r.MustRegister(v)
	return newLimitedVec(len(d.Labels), v.WithLabelValues)
}
