package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
)

// brokenBody ends in the middle, as that of a client that has gone.
type brokenBody struct{ io.Reader }

func (b brokenBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// brokenWriter is the response to a client that has gone.
type brokenWriter struct{ *httptest.ResponseRecorder }

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// budgetsInUse names the budgets of which something is held.
func (s *Server) budgetsInUse() (used []string) {
	all := reflect.ValueOf(s.budgets)
	for i := range all.NumField() {
		name := all.Type().Field(i).Name
		b := [...]*budget{
			s.requests, s.queued, s.admin, s.streams, s.attaching, s.waitingCampaigns, s.pages, s.eventStreams,
			s.scrapes, s.bodies, s.bodyBytes, s.answers, s.calling, s.received, s.watching, s.watchKeys,
		}[i]
		if all.Field(i).Pointer() != reflect.ValueOf(b).Pointer() {
			return []string{"the list of this test is not that of the budgets"}
		}
		if held := max(b.held.Load(), b.identities.most(), b.addresses.most()); held != 0 {
			used = append(used, fmt.Sprintf("%s: %d", name, held))
		}
	}
	return used
}

// TestNothingStaysTaken calls each route in ways that fail at each point: no budget may lose a place, which would be a
// slow denial of service.
func TestNothingStaysTaken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := tokenFile()
		f := newFakeCluster("n1", true)
		f.put("big", strings.Repeat("v", 2*smallAnswer))
		s := bareServerOf(t, f, withTokens(file))
		noLeader := newFakeCluster("n1", false)
		without := bareServerOf(t, noLeader, withTokens(file))
		panics := newFakeCluster("n1", true)
		panics.barrier = func(context.Context) error { panic("of the test") }
		broken := bareServerOf(t, panics, withTokens(file))
		bodies := map[string]func() io.Reader{
			"none": func() io.Reader { return nil }, "object": func() io.Reader { return strings.NewReader("{}") },
			"half":  func() io.Reader { return strings.NewReader("{") },
			"large": func() io.Reader { return strings.NewReader(strings.Repeat(" ", apiv1.MaxValueBytes+2)) },
			"unknown length": func() io.Reader {
				return io.MultiReader(strings.NewReader(strings.Repeat(" ", maxJSONBody+2)))
			},
			"ends in the middle": func() io.Reader { return brokenBody{strings.NewReader("{")} },
		}
		for _, row := range table {
			for name, body := range bodies {
				for _, role := range []token.Role{token.Observer, token.Operator} {
					for where, at := range map[string]*Server{"leader": s, "no leader": without, "panics": broken} {
						for _, query := range []string{"", "?x=y", "?timeout_ms=1"} {
							r := httptest.NewRequest(row.Method, "http://127.0.0.1"+concrete(row.Pattern)+query, body())
							r.RemoteAddr = someAddress
							r.Header.Set("Authorization", "Bearer "+tokens[role])
							r.Header.Set("Accept", apiv1.TypeEventStream)
							serveAndLeave(at, r)
						}
						if used := at.budgetsInUse(); used != nil {
							t.Fatalf("%s %s by %s, body %q, %s: %v", row.Method, row.Pattern, role, name, where, used)
						}
					}
				}
			}
		}
	})
}

// serveAndLeave serves a request whose client goes after a moment, and takes nothing of the response.
func serveAndLeave(s *Server, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Millisecond)
	defer cancel()
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	s.ServeHTTP(brokenWriter{httptest.NewRecorder()}, r.WithContext(ctx))
	synctest.Wait()
}
