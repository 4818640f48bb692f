package rolemetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"northstar/client"
)

var (
	refused  = desc("gate_refused_total", "Calls that the gate refused, because this process could not prove that it leads.")
	inFlight = desc("gate_in_flight", "Calls of Gate.Do that have not returned.")
)

// GateNames returns the names of the metrics of gates.
func GateNames() []string { return []string{prefix + "gate_refused_total", prefix + "gate_in_flight"} }

// NewGate returns a collector of a gate for a role.
func NewGate(role string, gate *client.Gate) prometheus.Collector { return gateCollector{role, gate} }

type gateCollector struct {
	role string
	gate *client.Gate
}

// Describe implements prometheus.Collector.
func (c gateCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- refused
	ch <- inFlight
}

// Collect implements prometheus.Collector.
func (c gateCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(c.gate.Refused()), c.role)
	ch <- prometheus.MustNewConstMetric(inFlight, prometheus.GaugeValue, float64(c.gate.InFlight()), c.role)
}
