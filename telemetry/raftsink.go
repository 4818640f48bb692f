package telemetry

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	gometrics "github.com/hashicorp/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// RaftSink collects the metrics of hashicorp/raft, under northstar_raft_. The library has one global sink, so there
// is one RaftSink in a process. If several nodes run in one process, it adds them up.
type RaftSink struct {
	mu      sync.RWMutex
	metrics map[Kind]map[string]prometheus.Metric // by key; the inner maps are guarded by mu
}

// maxRaftMetrics bounds the metrics of each kind. The library has about 60 in total.
const maxRaftMetrics = 128

// NewRaftSink returns a sink that is not installed yet.
func NewRaftSink() *RaftSink {
	return &RaftSink{metrics: map[Kind]map[string]prometheus.Metric{Counter: {}, Gauge: {}, Histogram: {}}}
}

// InstallRaftSink makes s the global sink of the library. main calls it once, before any node starts.
func InstallRaftSink(s *RaftSink) error {
	cfg := gometrics.DefaultConfig("")
	cfg.EnableHostname = false
	cfg.EnableRuntimeMetrics = false
	_, err := gometrics.NewGlobal(cfg, s)
	return err
}

var (
	wordStart = regexp.MustCompile(`(\p{Ll})(\p{Lu})`) // keeps an acronym as one word
	notInName = regexp.MustCompile(`[^a-z0-9_]`)
)

// raftName returns the full name for a key such as [raft fsm applyBatch], and false for keys of other libraries.
func raftName(key []string) (string, bool) {
	if len(key) < 2 || key[0] != "raft" {
		return "", false
	}
	name := wordStart.ReplaceAllString(strings.Join(key, "_"), "${1}_${2}")
	return Prefix + notInName.ReplaceAllString(strings.ToLower(name), "_"), true
}

// lookup returns the metric of a kind and key, and creates it if needed; false if it is not kept.
func lookup[T prometheus.Metric](s *RaftSink, kind Kind, key []string, create func(prometheus.Opts) T) (T, bool) {
	var buf [96]byte
	id := buf[:0]
	for _, part := range key {
		id = append(append(id, part...), '.')
	}
	metrics := s.metrics[kind]
	s.mu.RLock()
	found, ok := metrics[string(id)].(T)
	s.mu.RUnlock()
	if ok {
		return found, true
	}
	name, ok := raftName(key)
	if !ok {
		return found, false
	}
	if kind == Counter {
		name += "_total"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, ok = metrics[string(id)].(T); ok || len(metrics) >= maxRaftMetrics {
		return found, ok
	}
	found = create(prometheus.Opts{Name: name, Help: "Reported by hashicorp/raft as " + strings.Join(key, ".") + "."})
	metrics[string(id)] = found
	return found, true
}

// SetGauge implements MetricSink, as do the methods below. Labels are dropped: the peers are added up.
func (s *RaftSink) SetGauge(key []string, v float32) {
	if g, ok := lookup(s, Gauge, key, func(o prometheus.Opts) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts(o))
	}); ok {
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
	if c, ok := lookup(s, Counter, key, func(o prometheus.Opts) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(o))
	}); ok && v >= 0 {
		c.Add(float64(v))
	}
}

// IncrCounterWithLabels is IncrCounter.
func (s *RaftSink) IncrCounterWithLabels(key []string, v float32, _ []gometrics.Label) {
	s.IncrCounter(key, v)
}

// AddSample observes v, a duration in milliseconds.
func (s *RaftSink) AddSample(key []string, v float32) {
	if h, ok := lookup(s, Histogram, key, func(o prometheus.Opts) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: o.Name, Help: o.Help, Buckets: ioBuckets})
	}); ok {
		h.Observe(float64(v))
	}
}

// AddSampleWithLabels is AddSample.
func (s *RaftSink) AddSampleWithLabels(key []string, v float32, _ []gometrics.Label) {
	s.AddSample(key, v)
}

// Describe sends nothing: the library's metrics are not known in advance, so the collector is unchecked.
func (s *RaftSink) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *RaftSink) Collect(ch chan<- prometheus.Metric) {
	s.mu.RLock()
	var metrics []prometheus.Metric
	for _, kind := range s.metrics {
		metrics = slices.AppendSeq(metrics, maps.Values(kind))
	}
	s.mu.RUnlock()
	for _, m := range metrics {
		ch <- m
	}
}
