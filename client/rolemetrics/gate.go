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
	ch <- refused.of(c.role)
	ch <- inFlight.of(c.role)
}

// Collect implements prometheus.Collector.
func (c gateCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(refused.of(c.role), prometheus.CounterValue, float64(c.gate.Refused()))
	ch <- prometheus.MustNewConstMetric(inFlight.of(c.role), prometheus.GaugeValue, float64(c.gate.InFlight()))
}
