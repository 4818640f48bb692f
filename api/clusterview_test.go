package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"northstar/api/apiv1"
	"northstar/api/token"
)

// A token that only one node knows yet gets no view of the leader. Callers with other tokens do, at the same time.
func TestLeadersViewIsSharedByCredential(t *testing.T) {
	virtual(t, func(t *testing.T) {
		known, tokens := tokenFile()
		added, newTokens := tokenFile()
		files := [][]byte{known, append(slices.Clone(known), strings.ReplaceAll(string(added), "the-", "new-")...)}
		connect := make(chan struct{})
		turn := 0
		_, follower := pair(t, func(d *Deps) {
			d.PrivateViews = true
			withTokens(files[turn])(d)
			turn++
			dial := d.Dial
			d.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				<-connect
				return dial(ctx, addr)
			}
		})
		views := map[string]chan apiv1.Cluster{}
		for _, who := range []string{newTokens[token.Observer], tokens[token.Observer]} {
			answer := make(chan apiv1.Cluster, 1)
			views[who] = answer
			go func() {
				var view apiv1.Cluster
				r := follower.do("GET", "/v1/cluster", "", "Authorization", "Bearer "+who)
				if err := json.Unmarshal([]byte(r.body), &view); err != nil || r.status != 200 {
					t.Errorf("%+v: %v", r, err)
				}
				answer <- view
			}()
			synctest.Wait() // the first one is asking before the second one comes
		}
		close(connect)
		for who, want := range map[string]string{newTokens[token.Observer]: "n2", tokens[token.Observer]: "n1"} {
			if view := <-views[who]; view.ObservedBy != want {
				t.Errorf("the view of %s, want that of %s", view.ObservedBy, want)
			}
		}
	})
}

// Callers who need no identity share one request for the leader's view, also if they invent tokens.
func TestLeadersViewIgnoresInventedTokens(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, _ := tokenFile()
		var dials atomic.Int64
		connect := make(chan struct{})
		_, follower := pair(t, withTokens(data), func(d *Deps) {
			dial := d.Dial
			d.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				dials.Add(1)
				<-connect
				return dial(ctx, addr)
			}
		})
		const callers = 5
		answers := make(chan reply, callers)
		for i := range callers {
			go func() { answers <- follower.do("GET", "/v1/cluster", "", "Authorization", fmt.Sprint("Bearer x", i)) }()
		}
		synctest.Wait()
		if got := dials.Load(); got != 1 {
			t.Errorf("%d callers make %d connections to the leader, want 1", callers, got)
		}
		close(connect)
		for range callers {
			if r := <-answers; r.status != 200 || !strings.Contains(r.body, `"observed_by":"n1"`) {
				t.Errorf("%+v", r)
			}
		}
	})
}
