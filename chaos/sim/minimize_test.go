package sim

import (
	"fmt"
	"slices"
	"testing"
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
