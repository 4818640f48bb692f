package telemetry

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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

// MetricDef defines one metric, for documents and tests.
type MetricDef struct {
	Name   string // without Prefix
	Kind   Kind
	Labels []string
	Help   string
}

// MetricDefs lists every metric of NorthStar itself.
func MetricDefs() []MetricDef {
	d := definer{registry: prometheus.NewRegistry()}
	d.define(&Metrics{})
	return d.defs
}

// Bucket bounds in milliseconds; gapBuckets in seconds.
var (
	electionBuckets = []float64{1, 2.5, 5, 10, 25, 50, 100, 200, 300, 500, 750, 1000, 2500, 5000, 10000, 30000}
	ioBuckets       = []float64{0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10000}
	gapBuckets      = []float64{.0025, .005, .0075, .01, .015, .025, .05, .1, .2, .3, .5, 1, 2.5, 5, 10, 30, 60}
	httpBuckets     = []float64{0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 60000}
)

// definer registers metrics and keeps their definitions.
type definer struct {
	registry *prometheus.Registry
	defs     []MetricDef
	scraped  map[string]scrapedMetric // by name
}

// scrapedMetric is a metric whose values are computed at scrape time.
type scrapedMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// define defines all metrics of m. Their names are part of the contract. Large because it is one list.
func (d *definer) define(m *Metrics) {
	m.elections = d.counters("election_count",
		"Elections started by this node, by trigger and result.", "trigger", "result")
	m.electionDuration = d.histograms("election_duration_ms", electionBuckets,
		"Duration of elections started by this node, until lost or until the new leader has applied its first entry.").with()
	d.atScrape(Gauge, "election_success_rate",
		"Share of this node's elections of the last 5 minutes that were won; 1 if there were none.")
	m.leaderlessDuration = d.histograms("leaderless_duration_ms", electionBuckets,
		"Time between the last heartbeat of the previous leader and the election win, planned transfers included. A node "+
			"that has heard no leader counts from its own start.").with()
	m.failovers = d.counters("failover_count",
		"Failovers won by this node, excluding the first election and planned transfers.", "trigger")
	m.failoverGap = d.histograms("failover_gap_seconds", gapBuckets, "Time between the last heartbeat of the previous "+
		"leader and the moment from which this node accepts writes in its place; failovers only.").with()
	m.needless = d.counters("needless_elections_total",
		"Elections started by this node because of the leader's silence, although the leader lived, by cause: late (heard "+
			"again within election.timeout-min) or stopped (its process did not run).", "cause")
	d.atScrape(Gauge, "silence_threshold_seconds",
		"How long the leader may be silent before this node asks the others whether it failed; absent without failover.fast.")
	m.transfers = d.counters("leader_transfer_count", "Leadership transfers started by this node as leader.", "result")
	m.transferDuration = d.histograms("leader_transfer_duration_ms", electionBuckets,
		"Duration of leadership transfers until the target was observed as leader.").with()
	d.atScrape(Gauge, "current_leader_id",
		"1 for the leader known to this node; absent without a known leader.", "leader_id")
	d.atScrape(Gauge, "current_term", "Raft term of this node.")
	d.atScrape(Gauge, "is_leader", "1 while this node leads.")
	d.atScrape(Gauge, "leader_tenure_seconds", "Time since this node became leader; 0 if it is not.")
	m.votes = d.counters("votes_total", "Vote responses sent by this node.", "granted", "reason")
	m.splitBrains = d.counters("split_brain_detected",
		"Split-brain conflicts detected: stale leader, two leaders in one term, foreign cluster or generation, "+
			"duplicate node ID.").with()
	d.atScrape(Gauge, "peer_healthy", "1 if this node considers the peer healthy.", "peer")
	d.atScrape(Gauge, "peer_last_contact_ms",
		"Milliseconds since the last response from the peer; absent before the first response.", "peer")
	d.atScrape(Gauge, "peer_lag_entries",
		"Log entries that the peer lacks, or has yet to apply if these are more, and more than 1024; on the leader only.", "peer")
	d.atScrape(Gauge, "voters", "Voters of the cluster, as this node knows them.")
	d.atScrape(Gauge, "quorum_failures_tolerated",
		"How many healthy voters may fail before the quorum is lost; on the leader only.")
	d.atScrape(Gauge, "auto_failover_paused",
		"1 while automatic failover is paused for the cluster, as far as this node knows; else 0.")
	d.atScrape(Gauge, "node_draining", "1 while this node is drained by an operator, or is about to stop; else 0.")
	d.atScrape(Gauge, "heartbeat_age_ms",
		"Milliseconds since the last message from the leader; 0 on the leader, absent before the first one.")
	m.fsync = d.histograms("disk_fsync_ms", ioBuckets, "Synced writes to the log and the vote record.").with()
	d.atScrape(Gauge, "disk_read_only", "1 while the node accepts no writes: less than a quarter of disk.reserve was "+
		"free in addition to the reserve itself, and less than half of it is.")
	d.atScrape(Gauge, "disk_stalled",
		"1 while a disk operation has been pending for too long: timeout-min to timeout-max, by the disk's usual speed.")
	d.atScrape(Gauge, "commit_index", "Highest log index known to be committed.")
	d.atScrape(Gauge, "applied_index", "Highest log index applied to the state.")
	m.apply = d.histograms("apply_duration_ms", ioBuckets, "Application of one batch of commands to the state.").with()
	m.proposals = d.counters("proposals_total", "Proposals to the log, by result.", "result")
	d.atScrape(Gauge, "role_held",
		"1 if the role is held (local view). Roles that are not required and vacant for a day are omitted, and the "+
			"newest beyond 512 roles.", "role")
	d.atScrape(Gauge, "role_required",
		"1 if the last campaign for the role has asked for an alert while no session holds it, else 0.", "role")
	d.atScrape(Gauge, "role_token", "The role's current fencing token; 0 if the role is vacant.", "role")
	d.atScrape(Counter, "role_elections_total", "Elections of the role, cluster-wide.", "role")
	d.atScrape(Gauge, "sessions", "Active sessions, cluster-wide.")
	d.atScrape(Gauge, "keys", "Keys, cluster-wide.")
	d.atScrape(Gauge, "state_bytes",
		"Size of the replicated state as limits.state-bytes measures it: keys, sessions, roles, application nodes.")
	d.atScrape(Gauge, "state_bytes_limit", "Limit of state_bytes in force; 0: none yet.")
	d.atScrape(Gauge, "watchers", "Open watches of this node.")
	d.atScrape(Gauge, "watch_lag_revisions", "Revisions by which the slowest watch of this node is behind.")
	d.atScrape(Gauge, "connections", "Open connections accepted by this node, by listener: http or raft.", "listener")
	m.httpDuration = d.histograms("http_request_duration_ms", httpBuckets,
		"Duration of HTTP requests; of a stream, until it ends.", "route", "method", "status")
	m.httpInFlight = d.gauge("http_in_flight", "HTTP requests and streams in flight.")
	m.rpcRejected = d.counters("rpc_rejected_total", "Rejected peer connections and messages, and HTTP connections closed at a limit.", "kind", "reason")
	m.installRepeated = d.counters("snapshot_install_repeated_total",
		"Snapshots sent again by this node as leader to a peer that had already installed them.", "peer")
	m.audit = d.counters("audit_records_total",
		"Audit records of requests without a log command, by delivery result.", "result")
	d.atScrape(Counter, "audit_dropped_total",
		"Audit records evicted from the replicated log by count, size or age limits, cluster-wide.", "class")
	d.atScrape(Gauge, "reload_failed",
		"1 if the last reload of the token or TLS file failed; the previous version stays active.", "file")
	m.outcomeUnknown = d.counters("outcome_unknown_total",
		"Requests answered by this node with 4010: the write may have been applied or not.").with()
	d.atScrape(Gauge, "build_info", "1; the labels are those of this build.", "version", "commit", "go_version")
	d.atScrape(Gauge, "certificate_expiry_timestamp_seconds", "When the certificate in use expires, in seconds since "+
		"1970: node: this node's own; ca: the first of the CA file; etcd, etcd_ca: those of etcd.tls. Absent without TLS.",
		"kind")
	m.authFailures = d.counters("auth_failures_total",
		"Requests rejected as unauthenticated (missing or invalid token or certificate).").with()
}

func (d *definer) atScrape(kind Kind, name, help string, labels ...string) {
	d.defs = append(d.defs, MetricDef{name, kind, labels, help})
	metric := scrapedMetric{prometheus.NewDesc(Prefix+name, help, labels, nil), prometheus.GaugeValue}
	if kind == Counter {
		metric.kind = prometheus.CounterValue
	}
	if d.scraped == nil {
		d.scraped = map[string]scrapedMetric{}
	}
	d.scraped[name] = metric
}

func (d *definer) gauge(name, help string) prometheus.Gauge {
	d.defs = append(d.defs, MetricDef{name, Gauge, nil, help})
	return promauto.With(d.registry).NewGauge(prometheus.GaugeOpts{Name: Prefix + name, Help: help})
}

func (d *definer) counters(name, help string, labels ...string) *limitedVec[prometheus.Counter] {
	d.defs = append(d.defs, MetricDef{name, Counter, labels, help})
	v := promauto.With(d.registry).NewCounterVec(prometheus.CounterOpts{Name: Prefix + name, Help: help}, labels)
	return &limitedVec[prometheus.Counter]{labels: len(labels), make: v.WithLabelValues}
}

func (d *definer) histograms(
	name string, buckets []float64, help string, labels ...string,
) *limitedVec[prometheus.Observer] {
	d.defs = append(d.defs, MetricDef{name, Histogram, labels, help})
	v := promauto.With(d.registry).NewHistogramVec(
		prometheus.HistogramOpts{Name: Prefix + name, Help: help, Buckets: buckets}, labels)
	return &limitedVec[prometheus.Observer]{labels: len(labels), make: v.WithLabelValues}
}

const (
	maxLabels     = 3   // of one metric
	maxSeries     = 512 // of one metric; later label values count as "other"
	overflowLabel = "other"
)

// limitedVec bounds the series of a metric, even if a peer sends arbitrary values. A lookup does not allocate.
type limitedVec[T any] struct {
	labels int
	make   func(values ...string) T
	known  sync.Map // [maxLabels]string → T
	count  atomic.Int64
}

// with returns the child for the label values. Their number must match the labels of the metric.
func (b *limitedVec[T]) with(values ...string) T {
	var key [maxLabels]string
	copy(key[:], values)
	if c, ok := b.known.Load(key); ok {
		return c.(T)
	}
	if b.count.Add(1) > maxSeries {
		b.count.Add(-1)
		for i := range b.labels {
			key[i] = overflowLabel
		}
		return b.make(key[:b.labels]...)
	}
	c := b.make(key[:b.labels]...)
	b.known.Store(key, c)
	return c
}
