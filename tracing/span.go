// Package tracing sends spans of writes and failovers to an OpenTelemetry collector. The span of a request travels in
// its context, and between nodes in the header of the W3C Trace Context. Without a recorded span in the context,
// nothing here has an effect or allocates.
package tracing

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// scope names this program's spans.
const scope = "northstar"

// Span is one step of a traced request. The zero Span is not recorded, and its methods do nothing.
type Span struct{ span trace.Span }

// Recorded reports whether the span will be sent.
func (s Span) Recorded() bool { return s.span != nil }

// Set sets an attribute.
func (s Span) Set(key, value string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String(key, short(value)))
	}
}

// maxText bounds the texts of a span, in bytes. Thousands of spans wait for a slow collector, and any client can name
// a method or a key of many kilobytes.
const maxText = 256

func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.Clone(strings.ToValidUTF8(text[:maxText], "")) // a part would keep the whole in memory
}

// SetInt sets an attribute.
func (s Span) SetInt(key string, value int64) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
}

// End ends the span. err, if not nil, is recorded as its failure.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, short(err.Error()))
	}
	s.span.End()
}

// Start starts a step of the request in ctx. If that request is not recorded, it returns ctx and the zero Span.
func Start(ctx context.Context, name string) (context.Context, Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, Span{}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name)
	return ctx, Span{span}
}

// Record adds a step that is over to the request in ctx. It ignores steps with an unknown time.
func Record(ctx context.Context, name string, from, to time.Time) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() || from.IsZero() || to.IsZero() {
		return
	}
	_, span := parent.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithTimestamp(from))
	span.End(trace.WithTimestamp(to))
}

// Traceparent returns the span in ctx as the header traceparent of the W3C Trace Context; "" if it is not recorded.
func Traceparent(ctx context.Context) string {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ""
	}
	header := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, header)
	return header["traceparent"]
}

// Inject adds the span in ctx to the header of a request to another node.
func Inject(ctx context.Context, h http.Header) {
	if trace.SpanFromContext(ctx).IsRecording() {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	}
}
