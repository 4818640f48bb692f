package node

import (
	"testing"
	"time"

	"northstar/failover"
)

// An event tells only of the steps that a failover went through, each by its
// time since the first.
func TestSteps(t *testing.T) {
	if got := steps(failover.Steps{}, time.Now(), time.Now()); got != nil {
		t.Errorf("no failover has steps: %v", got)
	}
	noticed := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	after := func(us int) time.Time { return noticed.Add(time.Duration(us) * time.Microsecond) }
	got := steps(failover.Steps{Noticed: noticed, Agreed: after(1500), Stood: after(1700)}, after(4000), after(7000))
	want := map[string]any{"noticed_at": noticed, "agreed_us": int64(1500), "stood_us": int64(1700), "elected_us": int64(4000), "serving_us": int64(7000)}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s is %v, want %v", name, got[name], v)
		}
	}
}
