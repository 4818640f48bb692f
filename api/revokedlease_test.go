package api

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/state"
)

// TestRenewLeases_Revoked: an operator takes a role from the session of a lease. No answer about the lease promises
// more time than it has. Once the session has resigned, the lease is renewed again.
func TestRenewLeases_Revoked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.lead()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/x", nil)
		r.RemoteAddr = "127.0.0.1:1234"
		call, err := n.Begin(t.Context(), r, nil, CallSpec{Name: "x", Role: token.Client})
		if err != nil {
			t.Fatal(err)
		}
		defer call.Leave(nil)
		grant := state.Command{Kind: state.KindLeaseGrant, Now: 1, LeaseGrant: &state.LeaseGrant{ID: 7, TTL: 10}}
		lease := n.fake.apply(grant).Session
		renew := func() time.Duration {
			t.Helper()
			left, err := call.RenewLeases(t.Context(), []*state.Session{lease})
			if err != nil || len(left) != 1 {
				t.Fatal(left, err)
			}
			return left[0]
		}
		evict := func() {
			t.Helper()
			into[apiv1.Role](t, n.campaign("r", lease.ID, 0))
			into[apiv1.RoleChange](t, n.do("DELETE", "/admin/roles/r", ""))
		}
		evict()
		time.Sleep(4 * time.Second)
		if left := renew(); left > 7*time.Second || left < 5*time.Second { // its time counts from a later tick on
			t.Errorf("%v left", left)
		}
		into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+lease.ID, ""))
		if left := renew(); left != lease.TTL {
			t.Errorf("%v left after it has resigned", left)
		}
		evict()
		var promised, ended time.Time
		for began := time.Now(); ended.IsZero(); time.Sleep(100 * time.Millisecond) {
			if left := renew(); n.lives(lease.ID) {
				promised = time.Now().Add(left)
			} else if ended = time.Now(); left != 0 {
				t.Errorf("%v left after its end", left)
			}
			if time.Since(began) > time.Minute {
				t.Fatal("it does not end")
			}
		}
		if promised.After(ended) {
			t.Errorf("it ended at %v and was promised until %v", ended, promised)
		}
	})
}
