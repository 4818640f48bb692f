package consensus

import (
	"testing"

	"northstar/state"
)

// Transactions name revisions of the history. So a node with few trailing logs keeps what the others do, too.
func TestHistoryOfFewTrailingLogs(t *testing.T) {
	t.Parallel()
	for logs, want := range map[uint64]int{1000: state.DefaultHistoryRevisions, 50_000: 50_000} {
		if got := (&Config{TrailingLogs: logs}).stateOptions(); got.HistoryRevisions != want || got.HistoryBytes != 0 {
			t.Errorf("%d trailing logs: %+v", logs, got)
		}
	}
}
