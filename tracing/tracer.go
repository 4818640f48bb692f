package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	sendTimeout  = 5 * time.Second // of one message to the collector
	sendInterval = time.Second
	stopTimeout  = time.Second // for the spans that are left when the node stops
	warnInterval = time.Minute // between two warnings about a collector that does not answer
)

// Config configures a Tracer.
type Config struct {
	Endpoint string  // http://HOST:PORT or https://HOST:PORT of a collector's OTLP receiver (gRPC)
	Sample   float64 // share of requests without a trace of their own that are recorded, 0 to 1
	Node     string  // ID of this node
	Cluster  string  // its name
	Version  string
	Logger   hclog.Logger
}

// CheckEndpoint checks the form of an endpoint.
func CheckEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Hostname() == "" ||
		u.Path != "" || u.RawQuery != "" || u.User != nil {
		return errors.New("must be http://HOST:PORT or https://HOST:PORT of an OTLP receiver over gRPC")
	}
	return nil
}

// Tracer begins traces and sends their spans while Run is active. The nil Tracer does nothing. Its methods may be
// called by any goroutine.
type Tracer struct {
	cfg      Config
	provider atomic.Pointer[sdktrace.TracerProvider] // nil: Run is not active
}

// New returns a Tracer that does not run yet; nil without an endpoint.
func New(cfg Config) *Tracer {
	if cfg.Endpoint == "" {
		return nil
	}
	return &Tracer{cfg: cfg}
}

// Run sends spans until ctx ends. Spans of a collector that cannot be reached are dropped; that is no error.
func (t *Tracer) Run(ctx context.Context) error {
	exporter := otlptrace.NewUnstarted(otlptracegrpc.NewClient(
		otlptracegrpc.WithEndpointURL(t.cfg.Endpoint), otlptracegrpc.WithTimeout(sendTimeout),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{}), // newer spans are worth more than old ones
	))
	if err := exporter.Start(ctx); err != nil {
		return fmt.Errorf("tracing.otlp: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&loggedExporter{SpanExporter: exporter, log: t.cfg.Logger},
			sdktrace.WithBatchTimeout(sendInterval)),
		sdktrace.WithSampler(sdktrace.ParentBased(sampler{sdktrace.TraceIDRatioBased(t.cfg.Sample)})),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "northstar"), attribute.String("service.namespace", t.cfg.Cluster),
			attribute.String("service.instance.id", t.cfg.Node), attribute.String("service.version", t.cfg.Version),
		)),
	)
	t.provider.Store(provider)
	<-ctx.Done()
	t.provider.Store(nil)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	_ = provider.Shutdown(stopping) // spans that cannot be sent are lost
	_ = exporter.Shutdown(stopping) // aborts a message that hangs
	return nil
}

// StartRequest starts the span of a request that this node has received. It continues the trace that the request's
// header names as traceparent. If the request is not recorded, it returns ctx and the zero Span.
func (t *Tracer) StartRequest(ctx context.Context, h http.Header) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	provider := t.provider.Load()
	if provider == nil {
		return ctx, Span{}
	}
	// Without tracestate: a span would keep up to 16 KiB of it.
	parent := propagation.MapCarrier{"traceparent": h.Get("traceparent")}
	from := propagation.TraceContext{}.Extract(ctx, parent)
	started, span := provider.Tracer(scope).Start(from, "request", trace.WithSpanKind(trace.SpanKindServer))
	if !span.IsRecording() {
		return ctx, Span{}
	}
	return started, Span{span}
}

// SetName renames the span, when its route is known.
func (s Span) SetName(name string) {
	if s.span != nil {
		s.span.SetName(short(name))
	}
}

// Step is one step of a failover, until the next one.
type Step struct {
	Name string
	At   time.Time // when it began; zero: unknown
}

// Failover records a failover that this node has won as one trace, from its first step until end.
func (t *Tracer) Failover(steps []Step, end time.Time, attributes map[string]string) {
	if t == nil {
		return
	}
	provider := t.provider.Load()
	known := make([]Step, 0, len(steps))
	for _, s := range steps {
		if !s.At.IsZero() {
			known = append(known, s)
		}
	}
	if provider == nil || len(known) == 0 {
		return
	}
	slices.SortStableFunc(known, func(a, b Step) int { return a.At.Compare(b.At) })
	ctx, root := provider.Tracer(scope).Start(context.Background(), failoverName, trace.WithTimestamp(known[0].At))
	for key, value := range attributes {
		root.SetAttributes(attribute.String(key, value))
	}
	for i, s := range known {
		until := end
		if i+1 < len(known) {
			until = known[i+1].At
		}
		Record(ctx, s.Name, s.At, until)
	}
	root.End(trace.WithTimestamp(end))
}

const failoverName = "failover"

// sampler records every failover, and the share of all else.
type sampler struct{ sdktrace.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (s sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if p.Name == failoverName {
		return sdktrace.AlwaysSample().ShouldSample(p)
	}
	return s.Sampler.ShouldSample(p)
}

// loggedExporter logs what cannot be sent, instead of passing it to the library's global error handler.
type loggedExporter struct {
	sdktrace.SpanExporter
	log    hclog.Logger
	warned time.Time // the exporter is called by one goroutine at a time
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *loggedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if now := time.Now(); err != nil && now.Sub(e.warned) > warnInterval {
		e.warned = now
		e.log.Warn("cannot send spans to tracing.otlp", "dropped", len(spans), "error", err)
	}
	return nil
}
