package telemetry

import (
	"strings"
	"sync"
	"unicode"

	gometrics "github.com/hashicorp/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// RaftSink collects the metrics of hashicorp/raft, under northstar_raft_. The library has one global sink, so there
// is one RaftSink in a process. If several nodes run in one process, it adds them up.
type RaftSink struct {
	mu       sync.RWMutex
	counters map[string]prometheus.Counter
	gauges   map[string]prometheus.Gauge
	samples  map[string]prometheus.Histogram
}

// maxRaftMetrics bounds the metrics of each kind. The library has about 60 in total.
const maxRaftMetrics = 128

// NewRaftSink returns a sink that is not installed yet.
func NewRaftSink() *RaftSink {
	return &RaftSink{
		counters: make(map[string]prometheus.Counter),
		gauges:   make(map[string]prometheus.Gauge),
		samples:  make(map[string]prometheus.Histogram),
	}
}

// InstallRaftSink makes s the global sink of the library. main calls it once, before any node starts.
func InstallRaftSink(s *RaftSink) error {
	cfg := gometrics.DefaultConfig("")
	cfg.EnableHostname = false
	cfg.EnableRuntimeMetrics = false
	_, err := gometrics.NewGlobal(cfg, s)
	return err
}

// raftName returns the full name for a key such as [raft fsm applyBatch]. ok is false for keys of other libraries,
// and for keys with a peer's name, which the library also reports with a label.
func raftName(key []string) (string, bool) {
	if len(key) < 2 || key[0] != "raft" {
		return "", false
	}
	var b strings.Builder
	b.WriteString(Prefix)
	b.WriteString("raft")
	for _, part := range key[1:] {
		b.WriteByte('_')
		lower := false // keeps an acronym as one word
		for _, r := range part {
			if unicode.IsUpper(r) && lower {
				b.WriteByte('_')
			}
			lower = unicode.IsLower(r)
			switch r = unicode.ToLower(r); {
			case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
				b.WriteRune(r)
			default:
				b.WriteByte('_')
			}
		}
	}
	return b.String(), true
}

// lookup returns the metric of a key, and creates it if needed; the zero T if it is not kept.
func lookup[T any](
	s *RaftSink, m map[string]T, key []string, suffix string, create func(name, help string) T,
) (zero T) {
	var buf [96]byte
	id := buf[:0]
	for _, part := range key {
		id = append(append(id, part...), '.')
	}
	s.mu.RLock()
	found, ok := m[string(id)]
	s.mu.RUnlock()
	if ok {
		return found
	}
	name, ok := raftName(key)
	if !ok {
		return zero
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, ok := m[string(id)]; ok {
		return found
	}
	if len(m) >= maxRaftMetrics {
		return zero
	}
	m[string(id)] = create(name+suffix, "Reported by hashicorp/raft as "+strings.Join(key, ".")+".")
	return m[string(id)]
}

// SetGauge implements go-metrics' MetricSink, as do the methods below. Labels are dropped: the series of all peers
// are added up.
func (s *RaftSink) SetGauge(key []string, v float32) {
	g := lookup(s, s.gauges, key, "", func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	})
	if g != nil {
		g.Set(float64(v))
	}
}

// SetGaugeWithLabels is SetGauge.
func (s *RaftSink) SetGaugeWithLabels(key []string, v float32, _ []gometrics.Label) {
	s.SetGauge(key, v)
}

// EmitKey does nothing: the library does not use it.
func (s *RaftSink) EmitKey([]string, float32) {}

// IncrCounter adds v.
func (s *RaftSink) IncrCounter(key []string, v float32) {
	c := lookup(s, s.counters, key, "_total", func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	})
	if c != nil && v >= 0 {
		c.Add(float64(v))
	}
}

// IncrCounterWithLabels is IncrCounter.
func (s *RaftSink) IncrCounterWithLabels(key []string, v float32, _ []gometrics.Label) {
	s.IncrCounter(key, v)
}

// AddSample observes v, a duration in milliseconds.
func (s *RaftSink) AddSample(key []string, v float32) {
	h := lookup(s, s.samples, key, "", func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: ioBuckets})
	})
	if h != nil {
		h.Observe(float64(v))
	}
}

// AddSampleWithLabels is AddSample.
func (s *RaftSink) AddSampleWithLabels(key []string, v float32, _ []gometrics.Label) {
	s.AddSample(key, v)
}

// Describe implements prometheus.Collector. It sends nothing: the library's metrics are not known in advance, so
// the collector is unchecked.
func (s *RaftSink) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *RaftSink) Collect(ch chan<- prometheus.Metric) {
	s.mu.RLock()
	metrics := make([]prometheus.Metric, 0, len(s.counters)+len(s.gauges)+len(s.samples))
	for _, m := range s.counters {
		metrics = append(metrics, m)
	}
	for _, m := range s.gauges {
		metrics = append(metrics, m)
	}
	for _, m := range s.samples {
		metrics = append(metrics, m)
	}
	s.mu.RUnlock()
	for _, m := range metrics {
		ch <- m
	}
}
