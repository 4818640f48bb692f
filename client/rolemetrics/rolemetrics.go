// Package rolemetrics makes Prometheus metrics of the electors and gates of package client. It is a package of its own,
// so that programs without Prometheus do not link its library.
package rolemetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"northstar/client"
)

const prefix = "northstar_elector_"

// family is the metrics of one name. Each role has a description of its own, so that collectors of two roles can be
// registered.
type family struct {
	name, help string
	labels     []string // besides the role
}

func desc(name, help string, labels ...string) family { return family{name, help, labels} }

func (f family) of(role string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+f.name, f.help, f.labels, prometheus.Labels{"role": role})
}

var (
	isLeader      = desc("is_leader", "1 while this process holds the role and can prove it.")
	token         = desc("token", "Fencing token of this process's tenure; 0 if it does not hold the role.")
	tenure        = desc("tenure_seconds", "Time since this process was elected; 0 if it does not hold the role.")
	renewalAge    = desc("renewal_age_seconds", "Time since the last successful renewal or heartbeat was sent; absent if this process does not hold the role.")
	campaigns     = desc("campaigns_total", "Campaigns of this process for the role.")
	elections     = desc("elections_total", "Elections of this process. The sum over all processes counts the failovers and planned changes of the role.")
	losses        = desc("losses_total", "Tenures of this process that have ended, by cause.", "cause")
	campaignTimes = desc("campaign_duration_seconds", "Duration of successful campaigns, with their wait for the role.")
	renewalTimes  = desc("renewal_duration_seconds", "Duration of successful renewals or heartbeats while this process holds the role.")
	checkPassed   = desc("check_passed", "1 if the last health check passed; absent before the first.")
	checks        = desc("checks_total", "Health checks.")
	checkFailures = desc("check_failures_total", "Health checks that failed.")
)

// Names returns the names of the metrics of electors.
func Names() []string {
	var names []string
	for _, n := range []string{
		"is_leader", "token", "tenure_seconds", "renewal_age_seconds", "campaigns_total", "elections_total",
		"losses_total", "campaign_duration_seconds", "renewal_duration_seconds", "check_passed", "checks_total",
		"check_failures_total",
	} {
		names = append(names, prefix+n)
	}
	return names
}

// New returns a collector of these electors, one for each role.
func New(electors ...*client.MonitoredElector) prometheus.Collector { return collector(electors) }

type collector []*client.MonitoredElector

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, e := range c {
		role := e.Stats().Role
		for _, f := range []family{
			isLeader, token, tenure, renewalAge, campaigns, elections, losses, campaignTimes, renewalTimes,
			checkPassed, checks, checkFailures,
		} {
			ch <- f.of(role)
		}
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c {
		collect(ch, e.Stats())
	}
}

func collect(ch chan<- prometheus.Metric, s client.ElectorStats) {
	gauge := func(f family, v float64) {
		ch <- prometheus.MustNewConstMetric(f.of(s.Role), prometheus.GaugeValue, v)
	}
	counter := func(f family, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(f.of(s.Role), prometheus.CounterValue, float64(v), labels...)
	}
	gauge(isLeader, boolToFloat(s.Leading))
	gauge(token, float64(s.Token))
	gauge(tenure, s.Tenure.Seconds())
	if s.Leading || s.Tenure > 0 { // during a doubt, too
		gauge(renewalAge, s.RenewalAge.Seconds())
	}
	counter(campaigns, s.Campaigns)
	counter(elections, s.Elections)
	for _, cause := range client.LossCauses() {
		counter(losses, s.Losses[cause], string(cause))
	}
	histogram := func(f family, h client.DurationHistogram) {
		ch <- prometheus.MustNewConstHistogram(f.of(s.Role), h.Count, h.Sum.Seconds(), h.Buckets())
	}
	histogram(campaignTimes, s.CampaignTimes)
	histogram(renewalTimes, s.RenewalTimes)
	if s.Checks > 0 {
		gauge(checkPassed, boolToFloat(s.CheckError == nil))
	}
	counter(checks, s.Checks)
	counter(checkFailures, s.CheckFailures)
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
