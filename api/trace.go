package api

import (
	"fmt"
	"net/http"
	"strings"

	"northstar/api/openapi"
)

// trace starts the span of a write, or of a request that belongs to a trace already. The returned function ends it.
func (c *request) trace() (end func()) {
	if !c.write && c.r.Header["Traceparent"] == nil {
		return func() {}
	}
	ctx, span := c.s.deps.Tracer.StartRequest(c.r.Context(), c.r.Header)
	if !span.Recorded() {
		return func() {}
	}
	c.r = c.r.WithContext(ctx)
	c.ctx = ctx
	return func() {
		span.SetName(c.r.Method + " " + c.routePattern())
		span.Set("http.request.method", c.r.Method)
		span.Set("http.route", c.routePattern())
		span.SetInt("http.response.status_code", int64(c.status))
		if c.status >= http.StatusInternalServerError {
			span.End(fmt.Errorf("status %d", c.status))
		} else {
			span.End(nil)
		}
	}
}

// trace starts the span of a call, as that of a request does. A stream has none: it may last for days.
func (k *Call) trace() {
	c := k.c
	if c.route.Kind != openapi.Unary || !c.write && c.r.Header["Traceparent"] == nil {
		return
	}
	ctx, span := c.s.deps.Tracer.StartRequest(c.ctx, c.r.Header)
	if !span.Recorded() {
		return
	}
	span.SetName(strings.TrimPrefix(c.route.Pattern, "/"))
	c.r, c.ctx, k.span = c.r.WithContext(ctx), ctx, span
}

// endTrace ends the span of a call with the status of its answer.
func (k *Call) endTrace(status int, err error) {
	k.span.SetInt("http.response.status_code", int64(status))
	if status < http.StatusInternalServerError {
		err = nil
	}
	k.span.End(err)
}
