// Package telemetry has what a node reports about itself: its metrics, defined as data and kept in one registry for
// each node, and the journal of its events.
package telemetry

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Results of elections and transfers, as label values.
const (
	ResultWon    = "won"
	ResultLost   = "lost"
	ResultOK     = "ok"
	ResultFailed = "failed"
)

// Label values whose series exist from the start. Otherwise rate() and increase() miss the first event of a
// counter.
var (
	failoverTriggers = []string{"timeout", "connection_lost", "manual", "emergency", "priority", "disk_stall"}
	otherTriggers    = []string{"startup", "transfer"} // of elections that are not failovers
	auditResults     = []string{"replicated", "spooled", "lost"}
	proposalResults  = []string{"ok", "refused", "not_proposed", "busy", "read_only", "unknown"}
)

// successWindow is the period of election_success_rate.
const successWindow = 5 * time.Minute

// Metrics are the metrics of one node. Its methods are safe for concurrent use and never block. A nil receiver
// drops everything, so that a package can be tested without metrics.
type Metrics struct {
	registry *prometheus.Registry
	handler  http.Handler

	elections          *limitedVec[prometheus.Counter]
	electionDuration   prometheus.Histogram
	leaderlessDuration prometheus.Histogram
	failovers          *limitedVec[prometheus.Counter]
	transfers          *limitedVec[prometheus.Counter]
	transferDuration   prometheus.Histogram
	votes              *limitedVec[prometheus.Counter]
	fsync              prometheus.Histogram
	apply              prometheus.Histogram
	proposals          *limitedVec[prometheus.Counter]
	httpDuration       *limitedVec[prometheus.Observer]
	httpInFlight       prometheus.Gauge
	rpcRejected        *limitedVec[prometheus.Counter]
	installRepeated    *limitedVec[prometheus.Counter]
	authFailures       prometheus.Counter
	splitBrains        prometheus.Counter
	audit              *limitedVec[prometheus.Counter]

	outcomes electionWindow
	source   source
}

// New returns the metrics of one node, with those of the Go runtime and the process. The caller adds further
// collectors, such as the RaftSink.
func New(more ...prometheus.Collector) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.elections = counters(m.registry, "election_count")
	m.electionDuration = histogram(m.registry, "election_duration_ms")
	m.leaderlessDuration = histogram(m.registry, "leaderless_duration_ms")
	m.failovers = counters(m.registry, "failover_count")
	m.transfers = counters(m.registry, "leader_transfer_count")
	m.transferDuration = histogram(m.registry, "leader_transfer_duration_ms")
	m.votes = counters(m.registry, "votes_total")
	m.fsync = histogram(m.registry, "disk_fsync_ms")
	m.apply = histogram(m.registry, "apply_duration_ms")
	m.proposals = counters(m.registry, "proposals_total")
	m.httpDuration = histograms(m.registry, "http_request_duration_ms")
	m.httpInFlight = gauge(m.registry, "http_in_flight")
	m.rpcRejected = counters(m.registry, "rpc_rejected_total")
	m.installRepeated = counters(m.registry, "snapshot_install_repeated_total")
	m.authFailures = counter(m.registry, "auth_failures_total")
	m.splitBrains = counter(m.registry, "split_brain_detected")
	m.audit = counters(m.registry, "audit_records_total")
	for _, trigger := range slices.Concat(failoverTriggers, otherTriggers) {
		m.elections.with(trigger, ResultWon)
		m.elections.with(trigger, ResultLost)
	}
	for _, trigger := range failoverTriggers {
		m.failovers.with(trigger)
	}
	m.votes.with("true", "granted")
	m.transfers.with(ResultOK)
	m.transfers.with(ResultFailed)
	for _, result := range proposalResults {
		m.proposals.with(result)
	}
	for _, result := range auditResults {
		m.audit.with(result)
	}
	m.registry.MustRegister(&stateCollector{m: m})
	m.registry.MustRegister(processCollectors()...)
	m.registry.MustRegister(more...)
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	})
	return m
}

// Handler serves the registry in the formats of Prometheus.
func (m *Metrics) Handler() http.Handler { return m.handler }

// Registry returns the node's registry, for tests and further collectors.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Election counts an election that this node started. leaderless is the time without a leader before it; it is
// observed only for won elections.
func (m *Metrics) Election(trigger, result string, took, leaderless time.Duration) {
	if m == nil {
		return
	}
	m.elections.with(trigger, result).Inc()
	m.electionDuration.Observe(ms(took))
	if result == ResultWon {
		m.leaderlessDuration.Observe(ms(leaderless))
	}
	m.outcomes.add(time.Now(), result == ResultWon)
}

// Failover counts an election won after the leader failed, or was replaced automatically.
func (m *Metrics) Failover(trigger string) {
	if m == nil {
		return
	}
	m.failovers.with(trigger).Inc()
}

// Transfer counts a leadership transfer that this node started as leader.
func (m *Metrics) Transfer(result string, took time.Duration) {
	if m == nil {
		return
	}
	m.transfers.with(result).Inc()
	m.transferDuration.Observe(ms(took))
}

// Vote counts one vote response of this node. reason is a short fixed word.
func (m *Metrics) Vote(granted bool, reason string) {
	if m == nil {
		return
	}
	m.votes.with(strconv.FormatBool(granted), reason).Inc()
}

// Fsync observes one synced write to the log or the vote record.
func (m *Metrics) Fsync(took time.Duration) {
	if m == nil {
		return
	}
	m.fsync.Observe(ms(took))
}

// Apply observes the application of one batch of commands to the state.
func (m *Metrics) Apply(took time.Duration) {
	if m == nil {
		return
	}
	m.apply.Observe(ms(took))
}

// Proposals counts n proposals with the same result.
func (m *Metrics) Proposals(result string, n int) {
	if m == nil {
		return
	}
	m.proposals.with(result).Add(float64(n))
}

// HTTPStarted counts a request in flight, until HTTPDone.
func (m *Metrics) HTTPStarted() {
	if m == nil {
		return
	}
	m.httpInFlight.Inc()
}

// HTTPDone ends a request that HTTPStarted began. route is a pattern of the route table, not a path.
func (m *Metrics) HTTPDone(route, method string, status int, took time.Duration) {
	if m == nil {
		return
	}
	m.httpInFlight.Dec()
	m.httpDuration.with(route, knownMethod(method), statusText(status)).Observe(ms(took))
}

// RPCRejected counts a rejected peer message or connection.
func (m *Metrics) RPCRejected(kind, reason string) {
	if m == nil {
		return
	}
	m.rpcRejected.with(kind, reason).Inc()
}

// InstallRepeated counts a snapshot that is sent again to a peer that has installed it.
func (m *Metrics) InstallRepeated(peer string) {
	if m == nil {
		return
	}
	m.installRepeated.with(peer).Inc()
}

// AuthFailure counts an unauthenticated request.
func (m *Metrics) AuthFailure() {
	if m == nil {
		return
	}
	m.authFailures.Inc()
}

// Audit counts n audit records: replicated, spooled, lost.
func (m *Metrics) Audit(result string, n int) {
	if m == nil {
		return
	}
	m.audit.with(result).Add(float64(n))
}

// SplitBrain counts a conflict that this node has detected: a stale leader, two leaders in one term, another
// cluster or generation, a duplicate node ID.
func (m *Metrics) SplitBrain() {
	if m == nil {
		return
	}
	m.splitBrains.Inc()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions:
		return m
	}
	return "other"
}

func statusText(code int) string {
	switch code {
	case http.StatusOK:
		return "200"
	case http.StatusNotFound:
		return "404"
	case http.StatusServiceUnavailable:
		return "503"
	}
	return strconv.Itoa(code)
}
