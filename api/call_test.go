package api

import (
	"net/http"
	"runtime"
	"testing"

	"northstar/api/token"
)

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
