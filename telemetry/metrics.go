// Package telemetry has what a node reports about itself: its metrics, defined as data and kept in one registry for
// each node, and the event log of its events.
package telemetry

import (
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Results of elections and transfers, as label values.
const (
	ResultWon    = "won"
	ResultLost   = "lost"
	ResultOK     = "ok"
	ResultFailed = "failed"
)

// Label values whose series exist from the start: rate() and increase() would miss the first event.
var (
	failoverTriggers = []string{"timeout", "connection_lost", "manual", "emergency", "priority", "disk_stall"}
	otherTriggers    = []string{"startup", "transfer"} // of elections that are not failovers
	auditResults     = []string{"replicated", "spooled", "lost", "limited"}
	needlessCauses   = []string{"late", "stopped"}
	proposalResults  = []string{"ok", "refused", "quota_exceeded", "not_proposed", "busy", "read_only", "unknown"}
)

const successWindow = 5 * time.Minute

// Metrics are the metrics of one node. Its methods are safe for concurrent use and never block.
type Metrics struct {
	registry *prometheus.Registry
	handler  http.Handler

	elections          *limitedVec[prometheus.Counter]
	electionDuration   prometheus.Observer
	leaderlessDuration prometheus.Observer
	failovers          *limitedVec[prometheus.Counter]
	failoverGap        prometheus.Observer
	needless           *limitedVec[prometheus.Counter]
	outcomeUnknown     prometheus.Counter
	transfers          *limitedVec[prometheus.Counter]
	transferDuration   prometheus.Observer
	votes              *limitedVec[prometheus.Counter]
	fsync              prometheus.Observer
	apply              prometheus.Observer
	proposals          *limitedVec[prometheus.Counter]
	httpDuration       *limitedVec[prometheus.Observer]
	httpInFlight       prometheus.Gauge
	rpcRejected        *limitedVec[prometheus.Counter]
	installRepeated    *limitedVec[prometheus.Counter]
	authFailures       prometheus.Counter
	splitBrains        prometheus.Counter
	audit              *limitedVec[prometheus.Counter]

	outcomes electionWindow
	source   atomic.Pointer[StateSource]
}

// New returns the metrics of one node, with those of the Go runtime, the process, and more.
func New(more ...prometheus.Collector) *Metrics {
	d := definer{registry: prometheus.NewRegistry()}
	m := &Metrics{registry: d.registry}
	d.define(m)
	for _, trigger := range slices.Concat(failoverTriggers, otherTriggers) {
		m.elections.with(trigger, ResultWon)
		m.elections.with(trigger, ResultLost)
	}
	for _, trigger := range failoverTriggers {
		m.failovers.with(trigger)
	}
	for _, cause := range needlessCauses {
		m.needless.with(cause)
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
	m.registry.MustRegister(&stateCollector{m, d.scraped}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(more...)
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return m
}

// Handler serves the registry in the formats of Prometheus. Its caller bounds the scrapes in progress, with a share for
// each address. So it has no limit, and no timeout, which would leave the work of a slow scrape behind.
func (m *Metrics) Handler() http.Handler { return m.handler }

// Registry returns the node's registry, for tests and further collectors.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Election counts an election that this node started, and if won, the time without a leader before it.
func (m *Metrics) Election(trigger, result string, took, leaderless time.Duration) {
	m.elections.with(trigger, result).Inc()
	m.electionDuration.Observe(ms(took))
	if result == ResultWon {
		m.leaderlessDuration.Observe(ms(leaderless))
	}
	m.outcomes.add(time.Now(), result == ResultWon)
}

// Failover counts an election won after the leader failed, or was replaced automatically. gap is the time from the last
// heartbeat of that leader until this node accepted writes.
func (m *Metrics) Failover(trigger string, gap time.Duration) {
	m.failovers.with(trigger).Inc()
	m.failoverGap.Observe(gap.Seconds())
}

// NeedlessElection counts an election by silence that this node started, and whose old leader lived.
func (m *Metrics) NeedlessElection(cause string) { m.needless.with(cause).Inc() }

// OutcomeUnknown counts a request that was answered with 4010.
func (m *Metrics) OutcomeUnknown() { m.outcomeUnknown.Inc() }

// Transfer counts a leadership transfer that this node started as leader.
func (m *Metrics) Transfer(result string, took time.Duration) {
	m.transfers.with(result).Inc()
	m.transferDuration.Observe(ms(took))
}

// Vote counts one vote response of this node. reason is a short fixed word.
func (m *Metrics) Vote(granted bool, reason string) {
	m.votes.with(strconv.FormatBool(granted), reason).Inc()
}

// Fsync observes one synced write to the log or the vote record.
func (m *Metrics) Fsync(took time.Duration) { m.fsync.Observe(ms(took)) }

// Apply observes the application of one batch of commands to the state.
func (m *Metrics) Apply(took time.Duration) { m.apply.Observe(ms(took)) }

// Proposals counts n proposals with the same result.
func (m *Metrics) Proposals(result string, n int) { m.proposals.with(result).Add(float64(n)) }

// HTTPStarted counts a request in flight, until HTTPDone.
func (m *Metrics) HTTPStarted() { m.httpInFlight.Inc() }

// HTTPDone ends a request that HTTPStarted began. route is a pattern of the route table, not a path.
func (m *Metrics) HTTPDone(route, method string, status int, took time.Duration) {
	m.httpInFlight.Dec()
	m.httpDuration.with(route, knownMethod(method), statusText(status)).Observe(ms(took))
}

// RPCRejected counts a rejected peer message or connection.
func (m *Metrics) RPCRejected(kind, reason string) { m.rpcRejected.with(kind, reason).Inc() }

// InstallRepeated counts a snapshot that is sent again to a peer that has installed it.
func (m *Metrics) InstallRepeated(peer string) { m.installRepeated.with(peer).Inc() }

// AuthFailure counts an unauthenticated request.
func (m *Metrics) AuthFailure() { m.authFailures.Inc() }

// Audit counts n audit records: replicated, spooled, lost, limited.
func (m *Metrics) Audit(result string, n int) { m.audit.with(result).Add(float64(n)) }

// SplitBrain counts a conflict that this node has detected.
func (m *Metrics) SplitBrain() { m.splitBrains.Inc() }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

var knownMethods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodOptions,
}

func knownMethod(m string) string {
	if slices.Contains(knownMethods, m) {
		return m
	}
	return "other"
}

// statusText is strconv.Itoa without an allocation for the most frequent statuses.
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
