package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// revisionModel remembers the keys of every revision.
type revisionModel struct {
	at map[uint64]map[string]string
}

func (m *revisionModel) note(s *State, before uint64) {
	v := s.View()
	now := map[string]string{}
	for it := range v.keys.after("") {
		now[it.Key] = shown([]*Item{it})
	}
	for r := before + 1; r <= v.Revision(); r++ {
		m.at[r] = now
	}
	m.at[v.Revision()] = now
}

// randomTxn returns a transaction on a few keys that Check accepts.
func randomTxn(rng *rand.Rand) Command {
	for {
		p := Txn{Success: randomOps(rng, 2), Failure: randomOps(rng, 2)}
		if rng.IntN(2) == 0 {
			p.Compare = []Compare{{
				Key: fmt.Sprint("k", rng.IntN(6)), Target: CompareTarget(rng.IntN(5)),
				Result: CompareResult(rng.IntN(4)), Number: int64(rng.IntN(4)),
			}}
		}
		if p.Check() == nil {
			return txnCommand(p)
		}
	}
}

func randomOps(rng *rand.Rand, depth int) (ops []Op) {
	for range rng.IntN(4) {
		key := fmt.Sprint("k", rng.IntN(6))
		end := []string{"", "", fmt.Sprint("k", rng.IntN(7)), "\x00"}[rng.IntN(4)]
		switch rng.IntN(6) {
		case 0:
			ops = append(ops, Op{Delete: &TxnDelete{Key: key, End: end, PrevKV: true}})
		case 1:
			ops = append(ops, Op{Range: &RangeQuery{Key: key, End: end}})
		case 2:
			if depth > 0 {
				ops = append(ops, Op{Txn: &Txn{Success: randomOps(rng, depth-1), Failure: randomOps(rng, depth-1)}})
			}
		default:
			ops = append(ops, Op{Put: &TxnPut{
				Key: key, Value: fmt.Append(nil, rng.IntN(100)), Lease: int64(rng.IntN(3)), PrevKV: true,
			}})
		}
	}
	return ops
}

// randomCommand returns a native or an etcd command.
func randomCommand(rng *rand.Rand, v *View) Command {
	key := fmt.Sprint("k", rng.IntN(6))
	switch rng.IntN(12) {
	case 0:
		return put(key, fmt.Sprint(rng.IntN(100)))
	case 1:
		return del(key)
	case 2:
		return grant(int64(1+rng.IntN(2)), 10)
	case 3:
		return revoke(int64(1 + rng.IntN(2)))
	case 4:
		if rng.IntN(20) == 0 {
			return Command{Kind: KindCompact, Compact: &Compact{Revision: int64(v.Revision()) - rng.Int64N(5)}}
		}
	}
	return randomTxn(rng)
}

func resultText(r *TxnResult) string {
	var b strings.Builder
	fmt.Fprint(&b, r.Succeeded, "(")
	for _, one := range r.Responses {
		switch {
		case one.Range != nil:
			fmt.Fprintf(&b, "range %s %d;", shown(one.Range.Items), one.Range.Revision)
		case one.Put != nil:
			if p := one.Put.Prev; p != nil {
				fmt.Fprint(&b, shown([]*Item{p}))
			}
			fmt.Fprintf(&b, " put %d;", one.Put.Revision)
		case one.Delete != nil:
			fmt.Fprintf(&b, "delete %s %d %d;", shown(one.Delete.Prev), one.Delete.Deleted, one.Delete.Revision)
		case one.Txn != nil:
			b.WriteString(resultText(one.Txn))
		}
	}
	return b.String() + ")"
}

// TestHistoryAgainstModel applies random commands to a state, and to one that is restored from its snapshot now and
// then. Both have the keys of every revision that is not compacted, the same changes with the items that they replaced,
// and the result of a repeated transaction.
func TestHistoryAgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		options := Options{HistoryRevisions: 30, HistoryBytes: []int{200, 1 << 20}[seed%2]}
		s, other := New(options), New(options)
		m := revisionModel{at: map[uint64]map[string]string{0: {}}}
		var last Command
		var result Result
		for step := range 300 {
			c := randomCommand(rng, s.View())
			if step < 10 { // before txnVersion
				c = put(fmt.Sprint("k", step%3), fmt.Sprint(step))
			}
			if c.Kind == KindTxn {
				c.Idempotency = &Idempotency{Key: fmt.Sprint(step)}
			}
			before := s.View().Revision()
			r := apply(s, c)[0]
			apply(other, c)
			if r.Err == nil && c.Kind == KindTxn {
				last, result = c, r
			}
			m.note(s, before)
			if rng.IntN(20) == 0 {
				restore(t, other, snapshotOf(t, s))
			}
		}
		for name, s := range map[string]*State{"applied": s, "restored": other} {
			m.compare(t, fmt.Sprintf("seed %d, %s", seed, name), s)
			if again := apply(s, last)[0]; again.Err == nil && resultText(again.Txn) != resultText(result.Txn) {
				t.Errorf("seed %d, %s: repeated %s, at first %s", seed, name, resultText(again.Txn), resultText(result.Txn))
			} else if again.Err != nil && int64(result.Revision)-1 > s.View().CompactRevision() {
				t.Errorf("seed %d, %s: %v", seed, name, again.Err)
			}
		}
		if a, b := s.View().Fingerprint(), other.View().Fingerprint(); a != b {
			t.Errorf("seed %d: the two states differ", seed)
		}
		if s.View().stateBytes != recounted(s.View()) {
			t.Errorf("seed %d: %d bytes, counted %d", seed, s.View().stateBytes, recounted(s.View()))
		}
	}
}

func recounted(v *View) int64 {
	fresh := *v
	fresh.recount()
	return fresh.stateBytes
}

func (m *revisionModel) compare(t *testing.T, name string, s *State) {
	t.Helper()
	v := s.View()
	least := max(v.CompactRevision(), 0)
	for r := least; r <= int64(v.Revision()); r++ {
		want := strings.Join(slices.Collect(func(yield func(string) bool) {
			for _, key := range slices.Sorted(maps.Keys(m.at[uint64(r)])) {
				if !yield(m.at[uint64(r)][key]) {
					return
				}
			}
		}), " ")
		if r > 0 && allKeys(t, v, r) != want {
			t.Errorf("%s: at %d: %q, want %q", name, r, allKeys(t, v, r), want)
		}
	}
	c, err := s.Feed().RangeCursor("k", "l", least)
	if err != nil {
		t.Fatal(name, err)
	}
	for seen := least; c.seen < v.Revision(); {
		changes, err := c.Next(t.Context(), 2)
		if err != nil {
			t.Fatal(name, err)
		}
		for _, ch := range changes {
			if int64(ch.Revision) < seen {
				t.Errorf("%s: revision %d after %d", name, ch.Revision, seen)
			}
			seen = int64(ch.Revision)
			twice := ch.Prev != nil && ch.Prev.Revision == ch.Revision
			old := ""
			if ch.Prev != nil {
				old = shown([]*Item{ch.Prev})
			}
			if before, ok := m.at[ch.Revision-1]; ok && !twice && old != before[ch.Key] && old != "" {
				t.Errorf("%s: %d replaced %q, and there was %q", name, ch.Revision, old, before[ch.Key])
			}
		}
	}
}
