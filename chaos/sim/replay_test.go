//go:build exactreplay

package sim

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

// Which of two timers of one instant comes first is the seed's to say, wherever
// in memory they lie: that differs from process to process.
func TestTimersOfOneSelect(t *testing.T) {
	for seed := range uint64(20) {
		if up, down := firstOfTwo(t, seed, true), firstOfTwo(t, seed, false); up != down {
			t.Errorf("seed %d: case %d where addresses rise, case %d where they fall", seed, up, down)
		}
	}
}

// firstOfTwo reports which case of a select was ready first, of two timers whose
// channels' addresses rise or fall.
func firstOfTwo(t *testing.T, seed uint64, rise bool) (which int) {
	synctest.Test(t, func(*testing.T) {
		a, b := time.NewTimer(time.Second), time.NewTimer(time.Second)
		if rise != (reflect.ValueOf(a.C).Pointer() < reflect.ValueOf(b.C).Pointer()) {
			a, b = b, a
		}
		seedScheduler(seed)
		select {
		case <-a.C:
		case <-b.C:
			which = 1
		}
	})
	return which
}
