package tracing

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// Without a recorded span in the context, nothing has an effect or allocates: this is what each write costs when traces
// are off.
func TestOffCostsNothing(t *testing.T) {
	var off *Tracer
	ctx, h, now := t.Context(), http.Header{}, time.Now()
	allocs := testing.AllocsPerRun(100, func() {
		ctx, request := off.StartRequest(ctx, h)
		ctx, span := Start(ctx, "propose")
		Record(ctx, "append", now, now)
		Inject(ctx, h)
		span.Set("key", "value")
		span.SetInt("key", 1)
		span.SetName("name")
		if span.Recorded() || request.Recorded() || Traceparent(ctx) != "" {
			t.Error("recorded")
		}
		span.End(nil)
		request.End(nil)
	})
	if allocs != 0 || len(h) > 0 {
		t.Errorf("%v allocations, header %v", allocs, h)
	}
	off.Failover([]Step{{"notice", now}}, now, nil)
	if New(Config{}) != nil {
		t.Error("a tracer without an endpoint")
	}
	idle := New(Config{Endpoint: "http://127.0.0.1:1"}) // not running
	idle.Failover([]Step{{"notice", now}}, now, nil)
	if _, span := idle.StartRequest(ctx, h); span.Recorded() {
		t.Error("recorded by a tracer that does not run")
	}
}

// The steps of a failover follow each other without a gap. Unknown ones are left out. It is sampled in any case.
func TestFailover(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder),
		sdktrace.WithSampler(sdktrace.ParentBased(sampler{sdktrace.NeverSample()})))
	tracer := &Tracer{}
	tracer.provider.Store(provider)
	if _, span := tracer.StartRequest(t.Context(), http.Header{}); span.Recorded() {
		t.Error("a request is recorded against the sampler")
	}
	began := time.Now()
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	tracer.Failover([]Step{
		{"notice", at(0)}, {"agree", at(5)}, {"confirm", at(3)}, {"election", time.Time{}}, {"serve", at(9)},
	}, at(10), map[string]string{"northstar.term": "7"})
	tracer.Failover([]Step{{"notice", time.Time{}}}, at(10), nil)
	want := []struct {
		name     string
		from, to int
	}{{"notice", 0, 3}, {"confirm", 3, 5}, {"agree", 5, 9}, {"serve", 9, 10}, {"failover", 0, 10}}
	spans := recorder.Ended()
	if len(spans) != len(want) {
		t.Fatalf("%d spans", len(spans))
	}
	root := spans[len(spans)-1].SpanContext()
	for i, s := range spans {
		w := want[i]
		if s.Name() != w.name || !s.StartTime().Equal(at(w.from)) || !s.EndTime().Equal(at(w.to)) ||
			s.SpanContext().TraceID() != root.TraceID() || i < len(spans)-1 && s.Parent().SpanID() != root.SpanID() {
			t.Errorf("%+v, want %+v", s, w)
		}
	}
}

// What a span keeps of a client's texts is short, and valid UTF-8: one text that is not makes the library drop a batch.
func TestLongTexts(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	tracer := &Tracer{}
	tracer.provider.Store(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)))
	long := "x" + strings.Repeat("ä", 16<<10)
	_, span := tracer.StartRequest(t.Context(), http.Header{})
	span.SetName(long)
	span.Set("http.request.method", long)
	span.End(errors.New(long))
	ended := recorder.Ended()[0]
	for what, text := range map[string]string{
		"name": ended.Name(), "attribute": ended.Attributes()[0].Value.AsString(), "error": ended.Status().Description,
	} {
		if len(text) > maxText || !strings.HasPrefix(long, text) || !utf8.ValidString(text) {
			t.Errorf("the %s has %d bytes: %q", what, len(text), text[:min(len(text), 2*maxText)])
		}
	}
}

// A span keeps the trace that a client names, and nothing else of the header.
func TestTraceOfAHeader(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	tracer := &Tracer{}
	tracer.provider.Store(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)))
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	h := http.Header{}
	h.Set("traceparent", "00-"+traceID+"-b7ad6b7169203331-01")
	h.Set("tracestate", "vendor="+strings.Repeat("x", maxText))
	ctx, span := tracer.StartRequest(t.Context(), h)
	_, inner := Start(ctx, "propose")
	inner.End(nil)
	span.End(nil)
	for _, s := range recorder.Ended() {
		if s.SpanContext().TraceID().String() != traceID {
			t.Errorf("%s belongs to %s", s.Name(), s.SpanContext().TraceID())
		}
		if n := s.SpanContext().TraceState().Len() + s.Parent().TraceState().Len(); n > 0 {
			t.Errorf("%s has %d texts of the client's tracestate", s.Name(), n)
		}
	}
	if n := len(recorder.Ended()); n != 2 {
		t.Errorf("%d spans", n)
	}
}

// hangs is a collector that answers late.
type hangs struct{ sdktrace.SpanExporter }

func (hangs) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return errors.New("deadline")
}

func TestLoggedExporter_WarnsOnceAMinute(t *testing.T) {
	t.Parallel()
	var lines int
	e := &loggedExporter{SpanExporter: hangs{}, log: hclog.New(&hclog.LoggerOptions{Output: counter{&lines}})}
	for range 3 {
		if err := e.ExportSpans(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	e.warned = e.warned.Add(-2 * warnInterval)
	_ = e.ExportSpans(t.Context(), nil)
	if lines != 2 {
		t.Errorf("%d warnings", lines)
	}
}

type counter struct{ n *int }

func (c counter) Write(p []byte) (int, error) {
	*c.n++
	return len(p), nil
}
