package state

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"northstar/chaos/testenv"
)

// manyPuts returns a transaction with 100 puts, and perhaps a read at a revision that may be compacted.
func manyPuts(rng *rand.Rand, revision uint64) Command {
	var p Txn
	for i := range 100 {
		p.Success = append(p.Success, putOp(fmt.Sprint("k", i), fmt.Sprint(rng.IntN(1000))))
	}
	if rng.IntN(8) == 0 {
		at := int64(revision) - 90 - rng.Int64N(20) // 10,240 changes are 102 revisions
		p.Success = append(p.Success, Op{Range: &RangeQuery{Key: "k1", End: "k2", Revision: max(at, 0)}})
	}
	return txnCommand(p)
}

// Nodes that keep different amounts of history for watchers, one that is restored from snapshots, and one whose older
// build kept little, have the same results and the same state.
func TestHistoryOptionsDecideNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(testenv.Repeats(2)) {
		rng := rand.New(rand.NewPCG(seed, 2))
		states := map[string]*State{
			"default": New(Options{}), "more": New(Options{HistoryRevisions: 30_000, HistoryBytes: 1 << 30}),
			"restored": New(Options{HistoryRevisions: 11_000}), "upgraded": New(Options{HistoryRevisions: 10}),
		}
		compacted := 0
		for step := range 400 {
			var c Command
			switch v := states["default"].View(); {
			case step < 50: // before txnVersion
				c = put(fmt.Sprint("k", rng.IntN(10)), "v")
			case rng.IntN(20) == 0:
				c = Command{Kind: KindCompact, Compact: &Compact{Revision: int64(v.Revision()) - 90 - rng.Int64N(30)}}
			default:
				c = manyPuts(rng, v.Revision())
			}
			want := apply(states["default"], c)[0]
			if refusalOf(want.Err) == Compacted {
				compacted++
			}
			for name, s := range states {
				if name == "default" {
					continue
				}
				if got := apply(s, c)[0]; !sameResult(got, want) {
					t.Fatalf("seed %d, step %d, %s: %+v, want %+v", seed, step, name, got, want)
				}
			}
			if step == 50 || rng.IntN(100) == 0 {
				next := New(Options{HistoryRevisions: 20_000})
				restore(t, next, snapshotOf(t, states["upgraded"]))
				states["upgraded"] = next
				restore(t, states["restored"], snapshotOf(t, states["default"]))
			}
		}
		if compacted < 3 {
			t.Errorf("seed %d: only %d commands named a compacted revision", seed, compacted)
		}
		want := states["default"].View().Fingerprint()
		for name, s := range states {
			same := New(Options{}) // a snapshot also has what is kept for watchers only
			restore(t, same, snapshotOf(t, s))
			if same.View().Fingerprint() != want {
				t.Errorf("seed %d: %s differs", seed, name)
			}
		}
	}
}
