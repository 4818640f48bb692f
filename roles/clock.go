package roles

import "time"

// pauseClock counts the time in which this process could receive renewals. Its owner calls tick and announces the
// next call. A call that is later than announced, plus a slack for a busy machine, reveals a pause of the process or
// the machine. No part of the pause counts: renewals that wait to be read may have arrived at any time in it.
//
// The clock never runs faster than the raw clock. It is a value without locks.
type pauseClock struct {
	counted time.Duration // as of the last tick
	at      time.Duration // raw time of the last tick
	allowed time.Duration // until the next tick; a longer time is a pause
}

// pauseSlack is how late a tick may be without counting as a pause. Deadlines are extended by it, so that such a
// delay costs no session anything.
const pauseSlack = 100 * time.Millisecond

func newPauseClock(raw time.Duration) pauseClock { return pauseClock{at: raw} }

// read returns the time counted up to raw, which must not be before the last tick. When a pause is detected, the
// clock goes back behind earlier reads: deadlines become later, never earlier.
func (c *pauseClock) read(raw time.Duration) time.Duration {
	if passed := raw - c.at; passed > 0 && passed <= c.allowed {
		return c.counted + passed
	}
	return c.counted
}

// tick counts up to raw and expects the next tick within next. It returns the length of an uncounted pause, or 0.
func (c *pauseClock) tick(raw, next time.Duration) (pause time.Duration) {
	if raw-c.at > c.allowed {
		pause = raw - c.at
	}
	*c = pauseClock{counted: c.read(raw), at: raw, allowed: next + pauseSlack}
	return pause
}
