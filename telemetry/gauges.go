package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"northstar/cluster"
)

// StateSource provides values at each scrape, in functions that are cheap and safe for concurrent use.
type StateSource struct {
	Status func() cluster.NodeStatus
	Peers  func() []cluster.PeerStatus
	// AutoFailover reports whether a failed leader is replaced automatically.
	AutoFailover func(now time.Time) bool
	// Draining reports whether this node is drained, or about to stop.
	Draining func() bool
	// Roles returns at most limit roles to show, and the number of sessions.
	Roles func(limit int) (roles []Role, sessions int)
	// Size returns the number of keys, and the bytes of the state with their limit; 0: none.
	Size func() (keys int, bytes int64, limit uint64)
	// AuditDropped returns the number of audit records evicted from the log, by class.
	AuditDropped func() map[string]uint64
	// Watchers returns the number of open watches of this node, and by how many revisions the slowest is behind.
	Watchers func() (open int, lag uint64)
	// Connections returns the number of open connections, by listener.
	Connections func() map[string]int
	// Reloads returns the reloaded files, each with the reason why its current version cannot be used; "" if it can.
	Reloads func() map[string]string
	// Certificates returns when each certificate in use expires, by kind; none without TLS.
	Certificates func() map[string]time.Time
	// SilenceThreshold returns for how long the leader may be silent; false if that starts nothing.
	SilenceThreshold func() (time.Duration, bool)
	Build            Build
}

// Build has the labels of build_info.
type Build struct{ Version, Commit, Go string }

// Role is a role as the metrics show it.
type Role struct {
	Name      string
	Token     uint64 // 0: vacant
	Elections uint64
	Required  bool // the role is to have a holder at all times
}

// SetSource sets the source of the gauges. Without it, a scrape has none of them.
func (m *Metrics) SetSource(s StateSource) { m.source.Store(&s) }

// stateCollector computes metrics at scrape time, so that they are cheap and never stale.
type stateCollector struct {
	m       *Metrics
	metrics map[string]scrapedMetric
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	set := func(name string, v float64, labels ...string) {
		m := c.metrics[name]
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
	}
	set("election_success_rate", c.m.outcomes.rate(now))
	src := c.m.source.Load()
	if src == nil {
		return
	}
	roles, sessions := src.Roles(maxSeries)
	set("sessions", float64(sessions))
	for _, r := range roles {
		set("role_held", boolToFloat(r.Token != 0), r.Name)
		set("role_required", boolToFloat(r.Required), r.Name)
		set("role_token", float64(r.Token), r.Name)
		set("role_elections_total", float64(r.Elections), r.Name)
	}
	keys, bytes, limit := src.Size()
	set("keys", float64(keys))
	set("state_bytes", float64(bytes))
	set("state_bytes_limit", float64(limit))
	watchers, lag := src.Watchers()
	set("watchers", float64(watchers))
	set("watch_lag_revisions", float64(lag))
	for listener, n := range src.Connections() {
		set("connections", float64(n), listener)
	}
	for class, n := range src.AuditDropped() {
		set("audit_dropped_total", float64(n), class)
	}
	src.collectInstallation(set)
	set("auto_failover_paused", boolToFloat(!src.AutoFailover(now)))
	set("node_draining", boolToFloat(src.Draining()))
	if threshold, used := src.SilenceThreshold(); used {
		set("silence_threshold_seconds", threshold.Seconds())
	}
	st := src.Status()
	leading := st.Role == cluster.Leader
	set("current_term", float64(st.Term))
	set("commit_index", float64(st.CommitIndex))
	set("applied_index", float64(st.AppliedIndex))
	set("disk_stalled", boolToFloat(st.Disk.Stalled))
	set("disk_read_only", boolToFloat(st.Disk.ReadOnly))
	collectLeader(st, now, set)
	peers := src.Peers()
	collectPeers(peers, leading, set)
	set("voters", float64(cluster.CountVoters(st.Servers)))
	if leading {
		set("quorum_failures_tolerated", float64(failuresTolerated(st, peers)))
	}
}

// collectLeader shows whom this node takes for the leader.
func collectLeader(st cluster.NodeStatus, now time.Time, set func(name string, v float64, labels ...string)) {
	leading := st.Role == cluster.Leader
	set("is_leader", boolToFloat(leading))
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
}

// failuresTolerated returns how many of the voters that are healthy, as the leader sees them, may fail before the
// quorum is lost.
func failuresTolerated(leader cluster.NodeStatus, peers []cluster.PeerStatus) int {
	healthy := 0
	if leader.Suffrage() == cluster.Voter && !leader.Disk.Stalled && !leader.Disk.ReadOnly {
		healthy++
	}
	for _, p := range peers {
		if sv, ok := cluster.FindServer(leader.Servers, p.ID); ok && sv.Suffrage == cluster.Voter && p.Healthy {
			healthy++
		}
	}
	return max(0, healthy-cluster.Quorum(cluster.CountVoters(leader.Servers)))
}

// collectInstallation shows what belongs to the program and its files.
func (s *StateSource) collectInstallation(set func(name string, v float64, labels ...string)) {
	set("build_info", 1, s.Build.Version, s.Build.Commit, s.Build.Go)
	for kind, at := range s.Certificates() {
		set("certificate_expiry_timestamp_seconds", float64(at.Unix()), kind)
	}
	for file, problem := range s.Reloads() {
		set("reload_failed", boolToFloat(problem != ""), file)
	}
}

func collectPeers(peers []cluster.PeerStatus, leading bool, set func(name string, v float64, labels ...string)) {
	for _, p := range peers {
		set("peer_healthy", boolToFloat(p.Healthy), string(p.ID))
		if p.Contacted {
			set("peer_last_contact_ms", ms(p.LastContact), string(p.ID))
		}
		if leading {
			set("peer_lag_entries", float64(p.LagEntries), string(p.ID))
		}
	}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
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
