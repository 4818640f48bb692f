package state

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// rewound returns the keys before changes, as a tree, and what undoing the changes in a range costs.
func rewound(v *View, own []change, revision uint64, from, end string) (*tree[string, *Item], int) {
	keys := v.keys.edit()
	for _, c := range own {
		if c.deleted {
			keys.remove(c.item.Key)
		} else {
			keys.put(c.item.Key, c.item)
		}
	}
	for _, c := range slices.Backward(own) {
		c.undo(keys)
	}
	cost := undoCost * len(own)
	for pos := v.history.after(v.revision); pos > v.history.after(revision); pos-- {
		cost++
		if c := v.history.changes.at(pos - 1); inRange(c.item.Key, from, end) {
			c.undo(keys)
			cost += undoCost
		}
	}
	return &keys.tree, cost
}

// Reads at earlier revisions find the items of a tree in which each later change is undone, and count the same cost:
// members of different builds must decide alike.
func TestPastAgainstTree(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		s := New(Options{HistoryRevisions: 60})
		for range 100 {
			apply(s, randomCommand(rng, s.View()))
		}
		v := s.View()
		for range 200 {
			tree := v.keys
			keys := writerOf(&tree)
			run := txnRun{view: v, keys: &keys, lease: v.findLease, limits: lastTxnLimits, most: MaxTxnExamined}
			if p := randomCommand(rng, v).Txn; p != nil {
				_, _ = run.checkAndRun(p) // own changes, and perhaps the past of another revision
			}
			revision := max(uint64(v.CompactRevision()), 1)
			revision += rng.Uint64N(v.revision - revision + 1)
			q := RangeQuery{
				Key: fmt.Sprint("k", rng.IntN(6)), End: []string{"", fmt.Sprint("k", rng.IntN(7)), "\x00"}[rng.IntN(3)],
			}
			from, end := "", "\x00"
			if q.End == "" {
				from, end = q.Key, ""
			}
			want, cost := rewound(v, run.changes, revision, from, end)
			for range 2 { // the second time it is kept
				before := run.examined
				got := slices.Collect(run.itemsAt(revision, &q))
				if !slices.Equal(got, slices.Collect(itemsIn(want, q.Key, q.End))) || run.examined != before+cost {
					t.Fatalf("seed %d, %+v at %d of %d: %s, cost %d, want %d",
						seed, q, revision, v.revision, shown(got), run.examined-before, cost)
				}
				if q.End != "" {
					cost = 0
				}
			}
		}
	}
}

// scattered returns a state of n keys, a key of each leaf of which was changed since the revision.
func scattered(t *testing.T, n int) (s *State, revision int64, changes int) {
	t.Helper()
	s = manyKeys(t, n)
	mustTxn(t, s, Txn{Success: []Op{putOp("z", "1")}})
	revision = int64(s.View().Revision())
	for i := 0; i < n; i += treeWidth / 2 {
		mustApply(t, s, put(fmt.Sprintf("k%07d", i), "w"))
		changes++
	}
	return s, revision, changes
}

// A read of an earlier revision reserves room for what it takes before it does, and no more.
func TestReadRoomOfThePast(t *testing.T) {
	t.Parallel()
	s, revision, changes := scattered(t, 48_000)
	full := errors.New("full")
	all := RangeQuery{Key: "\x00", End: "\x00", Revision: revision, CountOnly: true}
	key := RangeQuery{Key: "k0000000", Revision: revision, CountOnly: true}
	page := RangeQuery{Key: "k0016000", End: "k0016160", Revision: revision, CountOnly: true}
	read := func(q *RangeQuery) func(context.Context, Room) error {
		return func(ctx context.Context, r Room) error { _, err := s.View().Range(ctx, q, r); return err }
	}
	txn := func(revisions ...int64) func(context.Context, Room) error {
		var p Txn
		for _, at := range revisions {
			q := all
			q.Revision = at
			p.Success = append(p.Success, Op{Range: &q})
		}
		return func(ctx context.Context, r Room) error { _, err := s.View().ReadTxn(ctx, &p, r); return err }
	}
	for name, c := range map[string]struct {
		read    func(context.Context, Room) error
		changes int
	}{
		"all keys":                       {read(&all), changes},
		"a page":                         {read(&page), 10},
		"a key":                          {read(&key), 1},
		"the present":                    {read(&RangeQuery{Key: "k", End: "l", CountOnly: true}), 0},
		"a transaction":                  {txn(revision, revision), changes},
		"a transaction at more and more": {txn(revision+1, revision, revision+9, revision), 2 * (changes - 1)},
	} {
		enough := c.changes * undoneSize
		for most, want := range map[int]error{enough: nil, max(enough-1, 0): full} {
			left := most
			err := c.read(t.Context(), func(n int) error {
				if left -= n; left < 0 {
					return full
				}
				return nil
			})
			if c.changes > 0 && !errors.Is(err, want) || err == nil && left != 0 {
				t.Errorf("%s with %d bytes: %v, %d left", name, most, err, left)
			}
		}
	}
}

// A read of an earlier revision does not go on when its caller has gone.
func TestReadOfThePastEnds(t *testing.T) {
	t.Parallel()
	s, revision, _ := scattered(t, 48_000)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q := &RangeQuery{Key: "\x00", End: "\x00", Revision: revision, CountOnly: true}
	for name, read := range map[string]func(Room) error{
		"range":       func(r Room) error { _, err := s.View().Range(ctx, q, r); return err },
		"transaction": func(r Room) error { _, err := s.View().ReadTxn(ctx, &Txn{Success: []Op{{Range: q}}}, r); return err },
	} {
		reserved := 0
		err := read(func(n int) error { reserved += n; return nil })
		if !errors.Is(err, context.Canceled) || reserved > 1024*undoneSize {
			t.Errorf("%s: %v, and %d bytes are reserved", name, err, reserved)
		}
	}
}

// A read of an earlier revision copies no part of the tree: it allocates no more for many changes than for few. No
// other test runs meanwhile.
func TestReadOfThePastCopiesNoKeys(t *testing.T) {
	s, revision, changes := scattered(t, 48_000)
	txn := Txn{}
	for i := range 20 {
		txn.Success = append(txn.Success, Op{Range: &RangeQuery{
			Key: "k", End: "l", Revision: revision + int64(i), CountOnly: true,
		}})
	}
	q := &RangeQuery{Key: "\x00", End: "\x00", Revision: revision, Limit: 1}
	for name, read := range map[string]func() error{
		"range":       func() error { _, err := s.View().Range(t.Context(), q, nil); return err },
		"transaction": func() error { _, err := s.View().ReadTxn(t.Context(), &txn, nil); return err },
	} {
		allocs := testing.AllocsPerRun(3, func() {
			if err := read(); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 500 {
			t.Errorf("%s: %v allocations for %d changes", name, allocs, changes)
		}
	}
}
