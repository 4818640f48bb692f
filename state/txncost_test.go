package state

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"northstar/cluster"
)

// manyKeys returns a state with n keys k0000000, k0000001, …
func manyKeys(t *testing.T, n int) *State {
	t.Helper()
	s := New(Options{})
	var cmds []Command
	for i := range n {
		cmds = append(cmds, put(fmt.Sprintf("k%07d", i), "v"))
	}
	mustApply(t, s, cmds...)
	return s
}

// costOf executes a transaction as Apply does and returns what it has cost.
func costOf(s *State, most int, p *Txn) (cost int, err *cluster.Error) {
	v := s.View()
	tree := v.keys
	keys := writerOf(&tree)
	run := txnRun{view: v, keys: &keys, lease: v.findLease, limits: lastTxnLimits, most: most}
	_, err = run.checkAndRun(p)
	return run.examined, err
}

// A transaction is refused as soon as its comparisons have looked at too many keys.
func TestTxnCostOfComparisons(t *testing.T) {
	t.Parallel()
	s := manyKeys(t, 1000)
	p := Txn{Success: []Op{putOp("x", "1")}}
	for range MaxTxnOps {
		p.Compare = append(p.Compare, Compare{Key: "\x00", End: "\x00", Result: CompareGreater})
	}
	if cost, err := costOf(s, 128_000, &p); err != nil || cost != 128_000 {
		t.Errorf("cost %d, %v", cost, err)
	}
	cost, err := costOf(s, 1500, &p)
	if refusalOf(err) != TooManyOps || cost > 1500+MaxTxnOps {
		t.Errorf("cost %d, %v", cost, err)
	}
}

// Ranges at one revision undo the later changes once, and those at many revisions are refused.
func TestTxnCostOfOldRevisions(t *testing.T) {
	t.Parallel()
	s := manyKeys(t, 1000)
	mustTxn(t, s, Txn{Success: []Op{putOp("z", "1")}})
	revision := int64(s.View().Revision())
	for i := range 1000 {
		mustApply(t, s, put(fmt.Sprintf("k%07d", i), "w"))
	}
	at := func(ops int, step int64) *Txn {
		p := &Txn{}
		for i := range ops {
			p.Success = append(p.Success, Op{Range: &RangeQuery{
				Key: "k0000010", End: "k0000020", Revision: revision + step*int64(i),
			}})
		}
		p.Success = append(p.Success, putOp("x", "1"))
		return p
	}
	once := 1000*(1+undoCost) + 100*10
	if cost, err := costOf(s, MaxTxnExamined, at(100, 0)); err != nil || cost != once {
		t.Errorf("cost %d, want %d, %v", cost, once, err)
	}
	cost, err := costOf(s, 2*once, at(100, 1))
	if refusalOf(err) != TooManyOps || cost > 3*once {
		t.Errorf("cost %d, %v", cost, err)
	}
	single := &Txn{Success: []Op{{Range: &RangeQuery{Key: "k0000010", Revision: revision}}}}
	if cost, err := costOf(s, MaxTxnExamined, single); err != nil || cost != 1000+undoCost+1 {
		t.Errorf("one key: cost %d, %v", cost, err)
	}
}

// Comparing values, and sorting by them, costs what they are long: each node does it in Apply.
func TestTxnCostOfValues(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	value := strings.Repeat("v", 64<<10)
	for i := range 10 {
		mustApply(t, s, put(fmt.Sprintf("k%d", i), value))
	}
	compared := &Txn{Compare: []Compare{{Key: "k", End: "l", Target: CompareValue, Value: []byte(value)}}}
	if cost, err := costOf(s, MaxTxnExamined, compared); err != nil || cost != 10*(1+64) {
		t.Errorf("comparison: cost %d, %v", cost, err)
	}
	short := &Txn{Compare: []Compare{{Key: "k", End: "l", Target: CompareValue, Value: []byte("v")}}}
	if cost, err := costOf(s, MaxTxnExamined, short); err != nil || cost != 1 {
		t.Errorf("comparison with a short value: cost %d, %v", cost, err)
	}
	sorted := &Txn{Success: []Op{{Range: &RangeQuery{Key: "k", End: "l", Target: SortByValue}}}}
	if cost, err := costOf(s, MaxTxnExamined, sorted); err != nil || cost != 10*(sortCost+1024) {
		t.Errorf("sorting: cost %d, %v", cost, err)
	}
	if _, err := costOf(s, 5*(sortCost+1024), sorted); refusalOf(err) != TooManyOps {
		t.Errorf("sorting too much: %v", err)
	}
}

// A transaction that would delete too much is refused before it has deleted anything.
func TestTxnCostOfDeletions(t *testing.T) {
	t.Parallel()
	s := manyKeys(t, 1000)
	p, deleteCost := &Txn{Success: []Op{delOp("k", "l")}}, lastTxnLimits.deleteCost
	if cost, err := costOf(s, 1000*deleteCost, p); err != nil || cost != 1000*deleteCost {
		t.Errorf("cost %d, %v", cost, err)
	}
	keys := s.View().keys
	run := txnRun{
		view: s.View(), keys: &treeWriter[string, *Item]{tree: &keys}, limits: lastTxnLimits, most: 1000*deleteCost - 1,
	}
	if _, err := run.checkAndRun(p); refusalOf(err) != TooManyOps || len(run.changes) != 0 {
		t.Errorf("%d changes, %v", len(run.changes), err)
	}
}

// Members that know no numbers decide with other limits. A transaction that was allowed has its result again later.
func TestTxnLimitsByVersion(t *testing.T) {
	t.Parallel()
	s := manyKeys(t, 30_000)
	deletion := Txn{Success: []Op{{Delete: &TxnDelete{Key: "k", End: "l"}}}}
	counts := Txn{Success: []Op{putOp("x", "2")}}
	for range 2 * MaxTxnExamined / 30_000 {
		counts.Success = append(counts.Success, Op{Range: &RangeQuery{Key: "k", End: "l", CountOnly: true}})
	}
	counting := txnCommand(counts)
	counting.Idempotency = &Idempotency{Key: "k"}
	mustTxn(t, s, Txn{Success: []Op{putOp("x", "1")}})
	later := New(Options{})
	restore(t, later, snapshotOf(t, s))
	if s.View().CommandVersion() != txnVersion {
		t.Fatalf("version %d", s.View().CommandVersion())
	}
	if r := apply(s, txnCommand(deletion))[0]; r.Err != nil || r.Txn.Responses[0].Delete.Deleted != 30_000 {
		t.Errorf("version %d: %v", txnVersion, r.Err)
	}
	first := apply(later, counting)[0]
	mustApply(t, later, numbered(put("y", ""), 1, 1, 1))
	if again := apply(later, counting)[0]; again.Err != nil || !reflect.DeepEqual(again.Txn, first.Txn) {
		t.Errorf("first %v, repeated at version %d: %v", first.Err, NumberVersion, again.Err)
	}
	for _, p := range []Txn{deletion, counts} {
		if err := apply(later, txnCommand(p))[0].Err; !errors.Is(err, TooManyOps) {
			t.Errorf("version %d: %v", NumberVersion, err)
		}
	}
}

// Items count in the answer with more than their keys: it is encoded for another node, which reads a bounded message.
func TestTxnCostOfAnswers(t *testing.T) {
	t.Parallel()
	s := manyKeys(t, 4000)
	p := Txn{Success: []Op{putOp("x", "1")}}
	for range MaxTxnReadBytes / ItemOverhead / 4000 {
		p.Success = append(p.Success, Op{Range: &RangeQuery{Key: "k", End: "l", KeysOnly: true}})
	}
	if _, err := costOf(s, MaxTxnExamined, &p); refusalOf(err) != RequestTooLarge {
		t.Errorf("got %v", err)
	}
}

// A read reserves room for what it collects before it does, and ends when there is none.
func TestReadRoom(t *testing.T) {
	t.Parallel()
	s := manyKeys(t, 3000)
	full := errors.New("full")
	for name, c := range map[string]struct {
		q     RangeQuery
		bytes int
	}{
		"list": {RangeQuery{Key: "k", End: "l"}, 2*listPart*elementSize + 3000*(9+ItemOverhead)},
		"keys": {RangeQuery{Key: "k", End: "l", KeysOnly: true}, 2*listPart*elementSize + 3000*(8+ItemOverhead)},
		"the first of a sorted range": {
			RangeQuery{Key: "k", End: "l", Limit: 1, Target: SortByRevision, Order: SortDescend},
			2*listPart*elementSize + 9 + ItemOverhead,
		},
		"limit": {RangeQuery{Key: "k", End: "l", Limit: 2}, 2 * (9 + ItemOverhead)},
		"count": {RangeQuery{Key: "k", End: "l", CountOnly: true}, 0},
	} {
		for most, want := range map[int]error{c.bytes: nil, c.bytes - 1: full} {
			reads := map[string]func(Room) error{
				"range": func(r Room) error { _, err := s.View().Range(t.Context(), &c.q, r); return err },
				"transaction": func(r Room) error {
					_, err := s.View().ReadTxn(t.Context(), &Txn{Success: []Op{{Range: &c.q}}}, r)
					return err
				},
			}
			for of, read := range reads {
				left := most
				err := read(func(n int) error {
					if left -= n; left < 0 {
						return full
					}
					return nil
				})
				if c.bytes > 0 && (!errors.Is(err, want) || err == nil && left != 0) {
					t.Errorf("%s, %s with %d bytes: %v, %d left", of, name, most, err, left)
				}
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.View().Range(ctx, &RangeQuery{Key: "k", End: "l"}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// A transaction that only reads ends with the context of its caller, and when it has cost too much.
func TestReadTxnEnds(t *testing.T) {
	t.Parallel()
	s := manyKeys(t, 3000)
	p := Txn{Success: []Op{rangeOp("k", "l")}}
	ctx, cancel := context.WithCancel(t.Context())
	if r, err := s.View().ReadTxn(ctx, &p, nil); err != nil || r.Responses[0].Range.Count != 3000 {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.View().ReadTxn(ctx, &p, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
	looked := 0
	run := txnRun{most: maxReadExamined, ended: func() bool { return true }}
	for range run.count(itemsIn(s.View().keys, "k", "l"), func(*Item) int { return 1 }) {
		looked++
	}
	if looked > 1024 || refusalOf(run.checkLimits()) != TooManyOps {
		t.Errorf("it has looked at %d keys", looked)
	}
}

// The result of a repeated transaction is not known when a revision that it has read was compacted meanwhile.
func TestReplayOfCompactedRead(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustTxn(t, s, Txn{Success: []Op{putOp("a", "1")}})
	for i := range 5 {
		mustApply(t, s, put("a", fmt.Sprint(i)))
	}
	c := txnCommand(Txn{Success: []Op{{Range: &RangeQuery{Key: "a", Revision: 2}}, putOp("b", "1")}})
	c.Idempotency = &Idempotency{Key: "k"}
	mustApply(t, s, c, c, Command{Kind: KindCompact, Compact: &Compact{Revision: 3}})
	wantCode(t, apply(s, c)[0].Err, cluster.CodeOutcomeUnknown)
}
