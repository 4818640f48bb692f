package telemetry

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"northstar/cluster"
)

// StateSource provides the gauges at each scrape. Its functions are cheap, do not block, and are safe for
// concurrent use.
type StateSource struct {
	Status func() cluster.NodeStatus
	Peers  func() []cluster.PeerStatus
	// Roles returns at most limit roles to show, and the number of sessions. Optional.
	Roles func(limit int) (roles []Role, sessions int)
	// AuditDropped returns the number of audit records evicted from the log, by class. Optional.
	AuditDropped func() map[string]uint64
	// Reloads returns the reloaded files, each with the reason why its current version cannot be used; "" if it
	// can. Optional.
	Reloads func() map[string]string
}

// Role is a role as the metrics show it.
type Role struct {
	Name      string
	Token     uint64 // 0: vacant
	Elections uint64
}

type source struct{ p atomic.Pointer[StateSource] }

// SetSource sets the source of the gauges. Without it, a scrape has none of them.
func (m *Metrics) SetSource(s StateSource) { m.source.p.Store(&s) }

// stateCollector computes gauges at scrape time, so that they are cheap and never stale.
type stateCollector struct{ m *Metrics }

var stateDescs = func() map[string]*prometheus.Desc {
	descs := make(map[string]*prometheus.Desc)
	for _, d := range metricDefs {
		if d.Kind == Gauge &&
			d.Name != "http_in_flight" || d.Name == "role_elections_total" || d.Name == "audit_dropped_total" {
			descs[d.Name] = prometheus.NewDesc(Prefix+d.Name, d.Help, d.Labels, nil)
		}
	}
	return descs
}()

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range stateDescs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	set := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(stateDescs[name], prometheus.GaugeValue, v, labels...)
	}
	set("election_success_rate", c.m.outcomes.rate(now))
	src := c.m.source.p.Load()
	if src == nil {
		return
	}
	c.collectRoles(ch, src)
	if src.AuditDropped != nil {
		for class, n := range src.AuditDropped() {
			ch <- prometheus.MustNewConstMetric(stateDescs["audit_dropped_total"], prometheus.CounterValue, float64(n),
				class)
		}
	}
	if src.Reloads != nil {
		for file, problem := range src.Reloads() {
			set("reload_failed", boolToFloat(problem != ""), file)
		}
	}
	st := src.Status()
	leading := st.Role == cluster.Leader
	set("current_term", float64(st.Term))
	set("is_leader", boolToFloat(leading))
	set("commit_index", float64(st.CommitIndex))
	set("applied_index", float64(st.AppliedIndex))
	set("disk_stalled", boolToFloat(st.Disk.Stalled))
	set("disk_read_only", boolToFloat(st.Disk.ReadOnly))
	if st.LeaderID != "" {
		set("current_leader_id", 1, string(st.LeaderID))
	}
	tenure := 0.0
	if leading && !st.LeaderSince.IsZero() {
		tenure = now.Sub(st.LeaderSince).Seconds()
	}
	set("leader_tenure_seconds", tenure)
	switch {
	case leading:
		set("heartbeat_age_ms", 0)
	case st.LeaderContactAge >= 0:
		set("heartbeat_age_ms", ms(st.LeaderContactAge))
	}
	for _, p := range src.Peers() {
		set("peer_healthy", boolToFloat(p.Healthy), string(p.ID))
		if p.Contacted {
			set("peer_last_contact_ms", ms(p.LastContact), string(p.ID))
		}
		if leading {
			set("peer_lag_entries", float64(p.LagEntries), string(p.ID))
		}
	}
}

// collectRoles reports the roles, which every node has in the replicated state.
func (c *stateCollector) collectRoles(ch chan<- prometheus.Metric, src *StateSource) {
	if src.Roles == nil {
		return
	}
	roles, sessions := src.Roles(maxSeries)
	ch <- prometheus.MustNewConstMetric(stateDescs["sessions"], prometheus.GaugeValue, float64(sessions))
	for _, r := range roles {
		ch <- prometheus.MustNewConstMetric(stateDescs["role_held"], prometheus.GaugeValue, boolToFloat(r.Token != 0),
			r.Name)
		ch <- prometheus.MustNewConstMetric(stateDescs["role_token"], prometheus.GaugeValue, float64(r.Token), r.Name)
		ch <- prometheus.MustNewConstMetric(stateDescs["role_elections_total"], prometheus.CounterValue,
			float64(r.Elections),
			r.Name)
	}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func processCollectors() []prometheus.Collector {
	return []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
}

// electionWindow has the results of the latest elections, for the success rate.
type electionWindow struct {
	mu   sync.Mutex
	ring [256]outcome
	next int
}

type outcome struct {
	at  time.Time
	won bool
}

func (o *electionWindow) add(now time.Time, won bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ring[o.next%len(o.ring)] = outcome{now, won}
	o.next++
}

// rate returns the share of won elections within successWindow before now; 1 if there were none.
func (o *electionWindow) rate(now time.Time) float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	all, won := 0, 0
	for _, e := range o.ring {
		if e.at.IsZero() || now.Sub(e.at) > successWindow {
			continue
		}
		all++
		if e.won {
			won++
		}
	}
	if all == 0 {
		return 1
	}
	return float64(won) / float64(all)
}
