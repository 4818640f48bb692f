package election

import "time"

const (
	freeCandidacies = 3 // lost candidacies before which there is no pause
	maxPauses       = 3 // doublings of the first pause
)

// CandidacyPause returns how long a node starts no election by itself after it has lost so many in a row, without a
// leader in between. The pause after the third is timeout-max. Later ones are twice as long each, up to eight times it.
func CandidacyPause(lost int, timeoutMax time.Duration) time.Duration {
	if lost < freeCandidacies {
		return 0
	}
	return timeoutMax << min(lost-freeCandidacies, maxPauses)
}
