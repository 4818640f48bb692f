package state

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"northstar/cluster"
)

// nestedTxn returns a valid transaction with as many levels and as long keys as are allowed together.
func nestedTxn() Txn {
	const levels, width, puts = 79, 21, 22
	key := strings.Repeat("k", 1600)
	branch := func(from int) (ops []Op) {
		for i := range puts {
			ops = append(ops, putOp(fmt.Sprintf("/%s%04d", key, from+i), ""))
		}
		return ops
	}
	var p Txn
	for i := range width {
		p.Success = append(p.Success, Op{Txn: &Txn{Success: branch(2 * i * puts), Failure: branch((2*i + 1) * puts)}})
	}
	for range levels {
		p = Txn{Success: []Op{{Txn: new(p)}}}
	}
	return p
}

// changesOf is changedBy of the builds that copied the keys of each level.
func changesOf(ops []Op) (changedKeys, *cluster.Error) {
	all := changedKeys{puts: map[string]bool{}}
	put := func(key string) bool {
		if all.puts[key] {
			return false
		}
		for _, d := range all.deletes {
			if key == d.Key && d.End == "" || key >= d.Key && strings.Compare(key, d.End) < 0 {
				return false
			}
		}
		all.puts[key] = true
		return true
	}
	for i := range ops {
		if d := ops[i].Delete; d != nil {
			all.deletes = append(all.deletes, d)
		}
	}
	for i := range ops {
		if ops[i].Txn == nil {
			continue
		}
		then, err := changesOf(ops[i].Txn.Success)
		if err != nil {
			return all, err
		}
		otherwise, err := changesOf(ops[i].Txn.Failure)
		if err != nil {
			return all, err
		}
		for k := range otherwise.puts {
			then.puts[k] = true
		}
		for k := range then.puts {
			if !put(k) {
				return all, refused(DuplicateKey)
			}
		}
		all.deletes = append(append(all.deletes, then.deletes...), otherwise.deletes...)
	}
	for i := range ops {
		if p := ops[i].Put; p != nil && !put(p.Key) {
			return all, refused(DuplicateKey)
		}
	}
	return all, nil
}

// randomChanges returns operations on keys keys, some of them in nested transactions.
func randomChanges(rng *rand.Rand, keys, depth int) (ops []Op) {
	key := func() string { return fmt.Sprintf("k%03d", rng.IntN(keys)) }
	for range rng.IntN(5) {
		switch n := rng.IntN(12); {
		case n < 1:
			ops = append(ops, delOp(key(), []string{"", key(), "\x00"}[rng.IntN(3)]))
		case n < 6 && depth > 0:
			ops = append(ops, Op{Txn: &Txn{
				Success: randomChanges(rng, keys, depth-1), Failure: randomChanges(rng, keys, depth-1),
			}})
		default:
			ops = append(ops, putOp(key(), ""))
		}
	}
	return ops
}

// Apply checks what a transaction may change, and all builds decide alike.
func TestChangedByAgainstOlderBuilds(t *testing.T) {
	t.Parallel()
	refusals, accepted := 0, 0
	for seed := range uint64(20_000) {
		rng := rand.New(rand.NewPCG(seed, 4))
		ops := randomChanges(rng, 10+rng.IntN(500), rng.IntN(6))
		want, refusal := changesOf(ops)
		got, err := changedBy(ops)
		if (err == nil) != (refusal == nil) || err != nil && err.Error() != refusal.Error() {
			t.Fatalf("seed %d: %v, want %v", seed, err, refusal)
		}
		if err != nil {
			refusals++
			continue
		}
		if len(want.puts) > 1 && len(want.deletes) > 0 {
			accepted++
		}
		for k := range want.puts {
			if !got.puts[k] {
				t.Fatalf("seed %d: the put of %s is missing", seed, k)
			}
		}
		if len(got.puts) != len(want.puts) || fmt.Sprint(got.deletes) != fmt.Sprint(want.deletes) {
			t.Fatalf("seed %d: %v and %v, want %v and %v", seed, got.puts, got.deletes, want.puts, want.deletes)
		}
	}
	if refusals < 1000 || accepted < 1000 {
		t.Errorf("%d refusals, and %d accepted lists with puts and deletions", refusals, accepted)
	}
}

// The keys of a nested transaction are not copied on each level above it. No other test runs meanwhile.
func TestNestedTxnIsCheckedOnce(t *testing.T) {
	p := nestedTxn()
	allocs := testing.AllocsPerRun(3, func() {
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 600 {
		t.Errorf("%v allocations", allocs)
	}
}
