package api

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"northstar/api/token"
	"northstar/cluster"
)

// TestLeave_CountsUnknownOutcomes: a call whose write may have been applied counts, as a request of HTTP does. A
// request that it has made to this API has counted already.
func TestLeave_CountsUnknownOutcomes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		unknown := cluster.Errorf(cluster.CodeOutcomeUnknown, "the leader is lost")
		for _, c := range []struct {
			native bool
			err    error
			want   string // so far
		}{{false, nil, "0"}, {false, unknown, "1"}, {true, unknown, "1"}} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/x", nil)
			r.RemoteAddr = "127.0.0.1:5"
			call, err := n.Begin(t.Context(), r, nil, CallSpec{Name: "x", Role: token.Client})
			if err != nil {
				t.Fatal(err)
			}
			call.native = c.native
			call.Leave(c.err)
			metrics := n.do("GET", "/metrics", "").body
			if !strings.Contains(metrics, "\nnorthstar_outcome_unknown_total "+c.want+"\n") {
				t.Errorf("%+v: not counted so", c)
			}
		}
	})
}

// TestTakeAnswerKeepsNoCall: the function that returns an answer's bytes to the budget does not keep its call in
// memory. gRPC frees no answer of a broken connection, and only the garbage collector notices that.
func TestTakeAnswerKeepsNoCall(t *testing.T) {
	t.Parallel()
	s := &Server{budgets: newBudgets(Limits{}.withDefaults())}
	collected := make(chan struct{})
	give := func() func() {
		k := &Call{c: &request{
			s: s, r: new(http.Request), caller: identity{name: "a", role: token.Client}, from: "127.0.0.1:1",
		}}
		runtime.AddCleanup(k.c, func(done chan struct{}) { close(done) }, collected)
		give, err := k.TakeAnswer(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		return give
	}()
	for done := false; !done; {
		runtime.GC()
		select {
		case <-collected:
			done = true
		case <-t.Context().Done():
			t.Fatal("the call stays in memory")
		default:
		}
	}
	give()
	if left := s.answers.Load(); left != 0 {
		t.Errorf("%d bytes are not given back", left)
	}
}
