package consensus

import "time"

// suspendWatch notices suspensions of the machine: Go's monotonic clock stops meanwhile, and the lease clock does not.
type suspendWatch struct {
	clock  func() time.Duration // the lease clock
	epoch  time.Time
	offset time.Duration // lease clock minus monotonic clock, when last read
}

// suspendSlack is how far the two clocks may differ between two readings without a suspension: they are not read in one
// step.
const suspendSlack = 5 * time.Millisecond

func newSuspendWatch(clock func() time.Duration, now time.Time) suspendWatch {
	return suspendWatch{clock: clock, epoch: now, offset: clock()}
}

// slept returns for how long the machine was suspended since the last call; 0: not at all.
func (w *suspendWatch) slept(now time.Time) time.Duration {
	offset := w.clock() - now.Sub(w.epoch)
	slept := offset - w.offset
	w.offset = offset
	if slept <= suspendSlack {
		return 0
	}
	return slept
}
