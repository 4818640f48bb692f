package election

import (
	"testing"
	"time"
)

func TestCandidacyPause(t *testing.T) {
	t.Parallel()
	const timeoutMax = 300 * time.Millisecond
	for lost, want := range []time.Duration{0, 0, 0, 1, 2, 4, 8, 8, 8} {
		if got := CandidacyPause(lost, timeoutMax); got != want*timeoutMax {
			t.Errorf("after %d lost candidacies: %v", lost, got)
		}
	}
	if got := CandidacyPause(1<<40, timeoutMax); got != 8*timeoutMax {
		t.Errorf("after very many: %v", got)
	}
}
