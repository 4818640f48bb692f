package api

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"northstar/api/apiv1"
	"northstar/api/openapi"
)

// TestHeadersWithoutEffectAreRefused: a client that sends an idempotency key or a fence relies on it.
func TestHeadersWithoutEffectAreRefused(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := bareServer(t)
		honoured := 0
		for _, row := range table {
			for name, value := range map[string]string{apiv1.HeaderIdempotencyKey: "k", apiv1.HeaderFence: "r=1"} {
				r := httptest.NewRequest(row.Method, "http://127.0.0.1"+concrete(row.Pattern), strings.NewReader("{}"))
				r.RemoteAddr = "127.0.0.1:5"
				r.Header.Set("X-Northstar-Forwarded-By", "n2")
				r.Header.Set(name, value)
				w := serveBriefly(s, r)
				refused := w.Code == 400 && strings.Contains(w.Body.String(), name+": has no effect")
				documented := slices.ContainsFunc(row.Headers, func(p openapi.Param) bool { return p.Name == name })
				if documented {
					honoured++
				}
				if want := !documented && !row.LimitExempt; refused != want {
					t.Errorf("%s %s with %s: refused %v, want %v: %d %s", row.Method, row.Pattern, name, refused, want, w.Code, w.Body)
				}
			}
		}
		if honoured != 4 {
			t.Errorf("%d routes honour one of them, want 4", honoured)
		}
	})
}
