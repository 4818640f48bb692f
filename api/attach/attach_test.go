package attach

import (
	"net/http/httptest"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/stream"
	"northstar/cluster"
)

// TestKeepAlives_Age: a stream ends directly after the first renewal at its age. The client never gets an elapsed_ms of
// more than maxAge TTLs, also if there was no leader for long.
func TestKeepAlives_Age(t *testing.T) {
	t.Parallel()
	const ttl, age = time.Second, 60 * time.Second
	const alive = "event: alive\ndata: {\"ttl_ms\":1000,\"elapsed_ms\":"
	const moving = "event: moving\ndata: {}\n\n"
	for _, tt := range []struct {
		elapsed time.Duration
		want    string
		last    bool
	}{
		{-time.Second, alive + "0}\n\n", false},
		{age - time.Millisecond, alive + "59999}\n\n", false},
		{age, alive + "60000}\n\n" + moving, true},
		{maxAge * ttl, alive + "100000}\n\n" + moving, true},
		{maxAge*ttl + time.Millisecond, moving, true},
	} {
		w := httptest.NewRecorder()
		e, err := stream.Start(w, func(*cluster.Error) apiv1.Problem { return apiv1.Problem{} })
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Reset()
		since := time.Now()
		s := keepAlives{to: e, session: "s", ttl: ttl, since: since, age: age}
		last, err := s.write(cluster.KeepAlive{RenewedAt: since.Add(tt.elapsed)})
		if got := w.Body.String(); got != tt.want || last != tt.last || err != nil {
			t.Errorf("after %v: %q, last %v, %v", tt.elapsed, got, last, err)
		}
	}
}
