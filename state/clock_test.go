package state

import (
	"fmt"
	"testing"
	"time"
)

// One command with a clock that is a hundred days ahead makes everything old, and forgets almost nothing. Commands with
// a right clock expire what is old.
func TestClockFarAhead(t *testing.T) {
	t.Parallel()
	const kept = 50
	write := func(key string, at time.Duration) Command {
		c := audited(withIdempotency(put("k", key), key, "f"), "ann", int64(at))
		c.Audit.Class = AuditOperators
		return c
	}
	for _, bounded := range []bool{false, true} {
		s := New(Options{})
		if bounded {
			mustApply(t, s, keysPerSession(9))
		}
		for i := range kept {
			mustApply(t, s, write(fmt.Sprint(i), time.Hour))
		}
		revision := s.View().Revision()
		mustApply(t, s, write("ahead", 2400*time.Hour))
		dropped := s.View().AuditCounts().Dropped[AuditOperators]
		retry := write(fmt.Sprint(kept-1), time.Hour)
		retry.Audit = nil
		again := apply(s, retry)[0]
		if bounded != (again.Revision == revision) || bounded != (dropped == maxAgedOut) ||
			!bounded && dropped != kept {
			t.Errorf("bounded %v: a retry has revision %d, written at %d; %d records are dropped", bounded, again.Revision,
				revision, dropped)
		}
		// After a stop of a hundred days everything is old indeed.
		for i := range kept {
			mustApply(t, s, write(fmt.Sprint("later", i), 2401*time.Hour))
		}
		v := s.View()
		if n := v.AuditCounts().Dropped[AuditOperators]; n != kept {
			t.Errorf("%d records are dropped", n)
		}
		if _, known := v.idempotency.byKey.get("0"); known {
			t.Error("a key is kept for ever")
		}
	}
}
