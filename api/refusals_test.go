package api

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

// TestUnidentifiedIsNeverRecorded: a caller without an identity must not fill the audit log.
func TestUnidentifiedIsNeverRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data, _ := tokenFile()
		aud := &fakeAuditor{}
		proposed := 0
		s := bareServer(t, withTokens(data), withAudit(aud), func(d *Deps) {
			d.Proposals.(*fakeCluster).propose = func(context.Context, state.Command) (state.Result, error) {
				proposed++
				return state.Result{}, nil
			}
		})
		for _, row := range table {
			for name, headers := range map[string][]string{
				"plain":            nil,
				"of another page":  {"Sec-Fetch-Site", "cross-site"},
				"other origin":     {"Origin", "http://evil.example"},
				"with a bad token": {"Authorization", "Bearer wrong", "Origin", "http://evil.example"},
				"with an identity": append(forwardedAs("operator ann"), "Sec-Fetch-Site", "cross-site"),
			} {
				r := httptest.NewRequest(row.Method, "http://127.0.0.1"+concrete(row.Pattern), strings.NewReader("{}"))
				r.RemoteAddr = "192.0.2.7:1234"
				for i := 0; i < len(headers); i += 2 {
					r.Header.Set(headers[i], headers[i+1])
				}
				got := serveBriefly(s, r).Code
				if row.Role != token.None && got != 401 && got != 429 {
					t.Errorf("%s %s %s: %d", row.Method, row.Pattern, name, got)
				}
			}
		}
		if got := aud.take(); got != "" || proposed != 0 {
			t.Errorf("recorded: %s; proposed %d commands", got, proposed)
		}
	})
}

// TestRefusalsOfOneCallerAreBounded: a caller with an identity fills the log with its refusals no further than to its
// burst, and later records say how many are missing.
func TestRefusalsOfOneCallerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data, tokens := tokenFile()
		aud := &fakeAuditor{}
		s := bareServer(t, withTokens(data), withAudit(aud))
		ask := func(role token.Role, method string, headers ...string) int {
			r := httptest.NewRequest(method, "http://127.0.0.1/v1/kv/k", strings.NewReader("v"))
			r.RemoteAddr = "192.0.2.7:1234"
			r.Header.Set("Authorization", "Bearer "+tokens[role])
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			return serveBriefly(s, r).Code
		}
		records := func() int {
			all := aud.take()
			return strings.Count(all, "record ")
		}
		for i := range 10 * refusalBurst {
			if got := ask(token.Observer, "PUT"); got != 403 {
				t.Fatalf("refusal %d: %d", i, got)
			}
		}
		if got := records(); got != refusalBurst {
			t.Errorf("%d records of one caller, want %d", got, refusalBurst)
		}
		for range 10 * refusalBurst { // another caller has a bucket of its own, also for requests of another origin
			ask(token.Client, "PUT", "Sec-Fetch-Site", "cross-site")
		}
		if got := records(); got != refusalBurst {
			t.Errorf("%d records of another caller, want %d", got, refusalBurst)
		}
		time.Sleep(refusalRefill)
		ask(token.Observer, "PUT")
		want := fmt.Sprintf("(%d more refusals of this caller are not recorded)", 9*refusalBurst)
		if aud.last.Code != cluster.CodeForbidden || !strings.Contains(aud.last.Detail, want) {
			t.Errorf("%q does not say %s", aud.last.Detail, want)
		}
	})
}
