package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
)

// pipes is a listener of connections in memory, for tests in virtual time.
type pipes struct {
	accept chan net.Conn
	closed context.Context
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	mine, theirs := net.Pipe()
	p.accept <- theirs
	return mine, nil
}

func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// virtualNode serves until stop is called, and returns a client of it. Call both in one bubble.
func virtualNode(t *testing.T, serve http.HandlerFunc) (c *client.Client, stop func()) {
	closed, end := context.WithCancel(t.Context())
	p := pipes{make(chan net.Conn), closed}
	s := &http.Server{Handler: serve}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(p) }()
	c, err := client.New(client.Config{Endpoints: []string{"n1:1"}, Dial: p.dial})
	if err != nil {
		t.Fatal(err)
	}
	return c, func() { c.Close(); end(); _ = s.Close(); <-served }
}

// A campaign that cannot renew its session, or whose machine sleeps, ends before the cluster frees the role.
func TestRoleCampaign_EndsBeforeItsLease(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	for name, tc := range map[string]struct {
		renewals   int           // that are answered
		sleep      time.Duration // of the machine, one second after the start
		from, till time.Duration
	}{
		"no renewal":     {0, 0, 8 * time.Second, 9 * time.Second},
		"one renewal":    {1, 0, ttl/3 + 8*time.Second, ttl/3 + 9*time.Second},
		"machine sleeps": {100, time.Minute, time.Second, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var renewals, slept atomic.Int64
				var created time.Time
				c, stop := virtualNode(t, func(w http.ResponseWriter, r *http.Request) {
					switch {
					case r.Method+r.URL.Path == "POST/v1/sessions":
						created = time.Now()
						reply(w, apiv1.SessionCreated{SessionID: "s1", TTLMS: ttl.Milliseconds()})
					case r.URL.Path == "/v1/roles/job/campaign":
						reply(w, apiv1.Role{Role: "job", Holder: "me", SessionID: "s1", Token: 7})
					case r.URL.Path == apiv1.PathLeader:
						reply(w, apiv1.Leader{LeaderID: "n1", LeaderAddress: "n1:1", Term: 4, ObservedBy: "n1"})
					case strings.HasSuffix(r.URL.Path, "/renew") && renewals.Add(1) <= int64(tc.renewals):
						reply(w, apiv1.Renewal{TTLMS: ttl.Milliseconds()})
					default: // cut off
						<-r.Context().Done()
					}
				})
				defer stop()
				begin := time.Now()
				var stdout, stderr bytes.Buffer
				a := &app{ctx: t.Context(), stdout: &stdout, stderr: &stderr}
				a.Timeout, a.Output = ttl, "table"
				a.leaseClock = func() time.Duration { return time.Since(begin) + time.Duration(slept.Load()) }
				time.AfterFunc(time.Second, func() { slept.Store(int64(tc.sleep)) })
				code := a.report((&roleCampaignCmd{Role: "job", TTL: ttl}).holdRole(a, c))
				after := time.Since(created)
				if code != exitFailed || after < tc.from || after >= tc.till ||
					!strings.HasPrefix(stderr.String(), "northstarctl: role may be lost: ") {
					t.Errorf("exit %d after %v: %s%s", code, after, stdout.String(), stderr.String())
				}
			})
		})
	}
}
