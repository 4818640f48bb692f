package client

import (
	"net/http"
	"testing"
	"time"
)

func TestAtomicTime(t *testing.T) {
	t.Parallel()
	var m atomicTime
	now := time.Now()
	if d := m.since(now); d < 1000*time.Hour {
		t.Errorf("never was %v ago", d)
	}
	m.set(now)
	if d := m.since(now.Add(time.Second)); d != time.Second {
		t.Errorf("%v", d)
	}
}

// A node that answers the request for a stream with something else is asked again.
func TestStream_AnswerIsNoStream(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		s, calls := &streamer{revisions: []uint64{11}}, 0
		fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
			if calls++; calls == 1 {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			s.serve(w, r)
		}
		c := fc.client("n1")
		defer c.Close()
		if got, err := collect(t.Context(), c, 10, 1); err != nil || len(got) != 1 || calls != 2 {
			t.Errorf("%v, %v after %d requests", got, err, calls)
		}
	}, "n1")
}
