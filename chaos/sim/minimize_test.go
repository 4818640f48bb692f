package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"northstar/chaos/check"
)

func TestFewest(t *testing.T) {
	for _, need := range [][]int{{}, {0}, {9}, {3, 4}, {0, 5, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}} {
		tries := 0
		got := ddmin(10, func(places []int) bool {
			tries++
			for _, n := range need {
				if !slices.Contains(places, n) {
					return false
				}
			}
			return true
		})
		if fmt.Sprint(got) != fmt.Sprint(need) {
			t.Errorf("%v is needed, %v is left", need, got)
		}
		if tries > 60 {
			t.Errorf("%v: %d tries", need, tries)
		}
	}
}

func TestPlaces(t *testing.T) {
	plan := []Fault{{Bits: 0}, {Bits: 1}, {Bits: 2}}
	at, err := ParseIndexes("2,0,7")
	if err != nil {
		t.Fatal(err)
	}
	if got := SelectFaults(plan, at); len(got) != 2 || got[0].Bits != 2 || got[1].Bits != 0 {
		t.Errorf("%v", got)
	}
	if _, err := ParseIndexes("1,x"); err == nil {
		t.Error("x is taken for a place")
	}
}

// SelectFaults returns the faults of a plan at these places, in their order.
func SelectFaults(plan []Fault, places []int) []Fault {
	var kept []Fault
	for _, i := range places {
		if i >= 0 && i < len(plan) {
			kept = append(kept, plan[i])
		}
	}
	return kept
}

// Minimize looks for fewer faults by which a run still breaks one of the
// invariants that it broke with all of them, running runs for at most so much
// real time. It gives their places in the plan. Without exact replay a run
// that fails again only now and then keeps faults that it does not need.
func Minimize(t *testing.T, cfg Config, broken []check.Violation, limit time.Duration) []int {
	t.Helper()
	plan := cfg.faults()
	end := time.Now().Add(limit)
	return ddmin(len(plan), func(places []int) bool {
		if time.Now().After(end) {
			return false
		}
		cfg.Plan = SelectFaults(plan, places)
		if cfg.Plan == nil {
			cfg.Plan = []Fault{}
		}
		res, _ := Run(t, cfg)
		return slices.ContainsFunc(res.Violations, func(v check.Violation) bool {
			return slices.ContainsFunc(broken, func(b check.Violation) bool { return v.Invariant == b.Invariant })
		})
	})
}

// ddmin removes, of n things, runs of half of those that are left, of a
// quarter, and so on down to single ones, as long as it still fails without
// them (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing
// Input, 2002, without its tests of subsets).
func ddmin(n int, fails func(places []int) bool) []int {
	left := make([]int, n)
	for i := range left {
		left[i] = i
	}
	for size := (n + 1) / 2; size > 0; {
		before := len(left)
		for at := 0; at < len(left); {
			without := slices.Delete(slices.Clone(left), at, min(at+size, len(left)))
			if fails(without) {
				left = without
			} else {
				at += size
			}
		}
		if size > 1 || len(left) == before {
			size /= 2
		}
	}
	return left
}
