package roles

import "time"

// pauseClock counts the time in which this process was able to take in renewals.
// Whoever keeps it turns it, and says by when it will again. When the next turn
// comes later than that and a slack for a busy machine, the process or the
// machine was stopped in between, and nothing of that time counts: nobody knows
// when in it renewals came that wait to be read now.
//
// The clock never runs faster than the raw one. It is a value without locks.
type pauseClock struct {
	counted time.Duration // as of the last turn
	at      time.Duration // of the raw clock, at the last turn
	allowed time.Duration // until the next turn; what takes longer is a pause
}

// pauseSlack is how late a turn may be without counting as a pause. Deadlines
// are later by it, so that not even such a delay can cost a session anything.
const pauseSlack = 100 * time.Millisecond

func newPauseClock(raw time.Duration) pauseClock { return pauseClock{at: raw} }

// read is the time counted up to raw, which must not be before the last turn. A
// pause takes back what was read in it before it was known for one, which makes
// deadlines later, never earlier.
func (c *pauseClock) read(raw time.Duration) time.Duration {
	if passed := raw - c.at; passed > 0 && passed <= c.allowed {
		return c.counted + passed
	}
	return c.counted
}

// tick counts up to raw and expects the next turn within next. It gives the
// length of a pause, which was not counted, or 0.
func (c *pauseClock) tick(raw, next time.Duration) (pause time.Duration) {
	if raw-c.at > c.allowed {
		pause = raw - c.at
	}
	*c = pauseClock{counted: c.read(raw), at: raw, allowed: next + pauseSlack}
	return pause
}
