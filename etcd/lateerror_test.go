package etcd

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/state"
)

// deadlineWriter is a response with a write deadline, as one on a connection.
type deadlineWriter struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (w *deadlineWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

func (w *deadlineWriter) Write(p []byte) (int, error) {
	if !w.deadline.IsZero() && time.Now().After(w.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	return w.ResponseRecorder.Write(p)
}

// TestGateway_LateError: a call that has waited for longer than an answer may take to send is answered, also when it
// fails.
func TestGateway_LateError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t)
		s := New(testDeps(n))
		defer s.grpc.Stop()
		for lease := range int64(2) {
			n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: lease + 1, TTL: 60}})
		}
		lock := func(lease int) *deadlineWriter {
			body := strings.NewReader(fmt.Sprintf(`{"name":"bA==","lease":%d}`, lease))
			w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder()}
			s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v3/lock/lock", body))
			return w
		}
		if w := lock(1); w.Code != http.StatusOK {
			t.Fatalf("the first: %d %s", w.Code, w.Body)
		}
		time.AfterFunc(2*s.lifetime, func() { // the second finds out when it is its turn
			for _, lease := range []int64{2, 1} {
				n.propose(state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: lease}})
			}
		})
		start := time.Now()
		w := lock(2)
		if !strings.Contains(w.Body.String(), "session is expired") || time.Since(start) != 2*s.lifetime {
			t.Errorf("an error after %v: %d %q", time.Since(start), w.Code, w.Body)
		}
	})
}
