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

// The kinds in use.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// MetricDef is one metric as data: documents, tests and the registry are
// made from it.
type MetricDef struct {
	Name    string // without Prefix
	Kind    Kind
	Labels  []string
	Buckets []float64 // of a histogram, in the unit that the name ends with
	Help    string
}

// Bucket bounds in milliseconds.
var (
	electionBuckets = []float64{1, 2.5, 5, 10, 25, 50, 100, 200, 300, 500, 750, 1000, 2500, 5000, 10000, 30000}
	ioBuckets       = []float64{0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10000}
	httpBuckets     = []float64{0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 60000}
)

// metricDefs is the only list of metrics. Names are part of the contract.
var metricDefs = []MetricDef{
	{"election_count", Counter, []string{"trigger", "result"}, nil, "Elections that this node stood in."},
	{"election_duration_ms", Histogram, nil, electionBuckets, "From standing to the end of the election: for a won one, until leader-start is applied."},
	{"election_success_rate", Gauge, nil, nil, "Share of this node's elections of the last 5 minutes that were won; 1 when there were none."},
	{"leaderless_duration_ms", Histogram, nil, electionBuckets, "For how long the winner of an election had not heard a leader."},
	{"failover_count", Counter, []string{"trigger"}, nil, "Elections other than the first that this node won without a planned transfer by an operator."},
	{"leader_transfer_count", Counter, []string{"result"}, nil, "Leadership transfers that this node began as leader."},
	{"leader_transfer_duration_ms", Histogram, nil, electionBuckets, "Duration of those, until the target was seen leading."},
	{"current_leader_id", Gauge, []string{"leader_id"}, nil, "1 on the leader that this node knows; no series while it knows none."},
	{"current_term", Gauge, nil, nil, "Raft term of this node."},
	{"is_leader", Gauge, nil, nil, "1 while this node leads."},
	{"leader_tenure_seconds", Gauge, nil, nil, "How long this node has led; 0 while it does not."},
	{"votes_total", Counter, []string{"granted", "reason"}, nil, "Answers of this node to candidates."},
	{"split_brain_detected", Counter, nil, nil, "Conflicts that this node has found: a stale leader, two leaders in a term, another cluster or generation, an ID borne twice."},
	{"peer_healthy", Gauge, []string{"peer"}, nil, "1 when this node finds the peer healthy."},
	{"peer_last_contact_ms", Gauge, []string{"peer"}, nil, "Since the peer's last answer; no series before the first."},
	{"peer_lag_entries", Gauge, []string{"peer"}, nil, "Log entries that the peer is behind; on the leader only."},
	{"heartbeat_age_ms", Gauge, nil, nil, "Since the last word from the leader; 0 on the leader."},
	{"disk_fsync_ms", Histogram, nil, ioBuckets, "Synced writes to the log and the vote record."},
	{"disk_read_only", Gauge, nil, nil, "1 while less space is left than disk.reserve: the node takes no writes."},
	{"disk_stalled", Gauge, nil, nil, "1 while one disk operation is outstanding for longer than timeout-max."},
	{"commit_index", Gauge, nil, nil, "Highest log index known to be committed."},
	{"applied_index", Gauge, nil, nil, "Highest log index applied to the state."},
	{"apply_duration_ms", Histogram, nil, ioBuckets, "Application of one batch of commands to the state."},
	{"proposals_total", Counter, []string{"result"}, nil, "Proposals to the log, by how they ended."},
	{"role_held", Gauge, []string{"role"}, nil, "1 while somebody holds the role, as this node has applied it; no series of a role that has been vacant for a day without a candidate, nor beyond the first 512."},
	{"role_token", Gauge, []string{"role"}, nil, "The role's current fencing token; 0 while nobody holds it."},
	{"role_elections_total", Counter, []string{"role"}, nil, "Tenures of the role that have begun, in the whole cluster."},
	{"sessions", Gauge, nil, nil, "Sessions that live, in the whole cluster."},
	{"http_request_duration_ms", Histogram, []string{"route", "method", "status"}, httpBuckets, "HTTP requests; of a stream, until it ends."},
	{"http_in_flight", Gauge, nil, nil, "HTTP requests and streams being served."},
	{"rpc_rejected_total", Counter, []string{"kind", "reason"}, nil, "Connections and messages of peers that were refused."},
	{"audit_records_total", Counter, []string{"result"}, nil, "Audit records of calls that put nothing through the log themselves, by what became of them at this node."},
	{"audit_dropped_total", Counter, []string{"class"}, nil, "Audit records that have left the replicated log for its bounds of number, size and age, in the whole cluster."},
	{"reload_failed", Gauge, []string{"file"}, nil, "1 while a changed token or TLS file cannot be used, and what was read before is in force."},
	{"auth_failures_total", Counter, nil, nil, "Requests that were refused because it is not known who asks: without a token or certificate, or with a bad one."},
}

// MetricDefs lists every metric of NorthStar itself, for documents and tests.
func MetricDefs() []MetricDef { return slices.Clone(metricDefs) }

// Table lists every metric as a Markdown table, for docs/metrics.md.
func Table() string {
	var b strings.Builder
	b.WriteString("| name | type | labels | meaning |\n|---|---|---|---|\n")
	for _, d := range metricDefs {
		fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s |\n", Prefix, d.Name, d.Kind, strings.Join(d.Labels, ", "), d.Help)
	}
	return b.String()
}

// mustFind panics for a name that is not declared: a mistake of this package, that
// any test of it shows.
func mustFind(name string, kind Kind) MetricDef {
	for _, d := range metricDefs {
		if d.Name == name && d.Kind == kind {
			return d
		}
	}
	panic("telemetry: no " + string(kind) + " named " + name + " is declared")
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
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: Prefix + d.Name, Help: d.Help, Buckets: d.Buckets}, d.Labels)
	r.MustRegister(v)
	return newLimitedVec(len(d.Labels), v.WithLabelValues)
}
