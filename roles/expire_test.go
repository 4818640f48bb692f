package roles

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/state"
)

// A client starts and ends sessions with a long TTL again and again. The leader does not keep the timers of all.
func TestEndedSessionsLeaveNoTimers(t *testing.T) {
	withLeader(t, func(b *bench) {
		lasting := b.session(t, "lasting", time.Hour)
		for range 5 * fewTimers {
			id := b.session(t, "short-lived", time.Hour)
			b.mustRenew(id) // its timer starts
			if err := b.apply(state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{
				IDs: []string{id}, Cause: state.CauseSessionEnded,
			}}).Err; err != nil {
				t.Fatal(err)
			}
		}
		for range 5 * fewTimers {
			b.session(t, "expires", time.Second)
		}
		time.Sleep(time.Minute)
		b.SessionManager.mu.Lock()
		timers, due := len(b.leaderState.sessions), len(b.leaderState.due)
		b.SessionManager.mu.Unlock()
		if timers > fewTimers+2 || due != timers || !b.lives(lasting) {
			t.Errorf("%d timers, %d of them due, the lasting session lives: %v", timers, due, b.lives(lasting))
		}
	})
}

// The sessions of one command have no more keys than one transaction may change, unless one alone has more.
func TestNextExpireBatch_Keys(t *testing.T) {
	t.Parallel()
	f := newFake()
	k := New(Deps{Consensus: f, Clock: func() time.Duration { return 0 }, Logger: hclog.NewNullLogger()})
	r, keysOf := &leaderState{}, map[string]int{}
	for i, keys := range []int{
		0, 15_000, state.MaxTxnChanges - 15_000, 0, // all that one command may delete
		1, state.MaxTxnChanges + 1, // more than that alone
		0, 2,
	} {
		id := f.session(t, "s", time.Minute)
		keysOf[id] = keys
		r.expiring = append(r.expiring, &sessionTimer{id: id})
		puts := make([]state.Command, keys)
		for n := range puts {
			puts[n] = state.Command{Kind: state.KindPut, Put: &state.Put{Key: fmt.Sprint(i, "/", n), Session: id}}
		}
		f.index++
		f.state.Apply(f.index, 1, puts)
	}
	var batches [][]int // numbers of keys
	for {
		batch, _ := k.nextExpireBatch(r)
		if batch == nil {
			break
		}
		var keys []int
		for _, e := range batch {
			keys = append(keys, keysOf[e.id])
		}
		batches = append(batches, keys)
	}
	want := [][]int{{0, 15_000, 10_000, 0}, {1}, {state.MaxTxnChanges + 1}, {0, 2}}
	if !reflect.DeepEqual(batches, want) {
		t.Errorf("batches with %v keys, want %v", batches, want)
	}
}

// A session that begins while ended ones are dropped keeps its timer, and with that its connection.
func TestEndedSessionsAreDropped_BesideANewOne(t *testing.T) {
	withLeader(t, func(b *bench) {
		b.set(func() { b.barrier = func(context.Context) error { return nil } }) // no tick before all are there
		for range 2 * fewTimers {
			id := b.session(t, "short-lived", time.Hour)
			b.mustRenew(id)
			b.apply(state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{
				IDs: []string{id}, Cause: state.CauseSessionEnded,
			}})
		}
		var id string
		var renewed atomic.Bool
		b.set(func() {
			b.viewed = func() {
				id = b.session(t, "new", time.Hour)
				go func() { b.renewAttached(held(id, "1")); renewed.Store(true) }()
				for range 1000 {
					runtime.Gosched() // it may have to wait until the tick is over
				}
			}
		})
		time.Sleep(time.Second)
		if !renewed.Load() {
			t.Fatal("it was not renewed")
		}
		b.SessionManager.mu.Lock()
		defer b.SessionManager.mu.Unlock()
		if timer := b.leaderState.sessions[id]; timer == nil || len(timer.streams) != 1 {
			t.Errorf("its connection was forgotten: %+v", timer)
		}
	})
}
