package check

import (
	"cmp"
	"fmt"
	"slices"
)

// Observation is what a client saw of a key in the state at a revision.
type Observation struct {
	By       string
	At       uint64 // revision of the state
	Key      string
	Value    string // "": the key was absent
	Revision uint64 // of the value; 0: the key was absent
}

func (s Observation) String() string {
	return fmt.Sprintf("%s saw %s = %q of revision %d at revision %d", s.By, s.Key, s.Value, s.Revision, s.At)
}

// history returns the changes of each key up to LastRevision.
func (w *Watch) history() map[string][]Change {
	byKey := map[string][]Change{}
	last := w.LastRevision()
	for _, c := range w.Changes {
		if c.Revision <= last {
			byKey[c.Key] = append(byKey[c.Key], c)
		}
	}
	return byKey
}

// CheckObservations compares what clients saw with the history of all keys, as a watcher from the first revision has
// received it.
func CheckObservations(w *Watch, all []Observation) (violations []Violation) {
	byKey, last := w.history(), w.LastRevision()
	for _, s := range all {
		if s.At > last {
			continue
		}
		changes := byKey[s.Key]
		after, _ := slices.BinarySearchFunc(changes, s.At+1, func(c Change, r uint64) int {
			return cmp.Compare(c.Revision, r)
		})
		var then Change
		if after > 0 && changes[after-1].Value != "" {
			then = changes[after-1]
		}
		if then.Value != s.Value || then.Revision != s.Revision {
			violations = append(violations, Violationf(OneHistory, "%v; %s has %q of revision %d there", s, w.Name,
				then.Value, then.Revision))
		}
	}
	return violations
}

// CheckTogether checks that keys which are only written together changed at the same revisions to the same values.
func CheckTogether(w *Watch, keys ...string) (violations []Violation) {
	byKey := w.history()
	first := byKey[keys[0]]
	for _, k := range keys[1:] {
		same := func(a, b Change) bool { return a.Revision == b.Revision && a.Value == b.Value }
		if other := byKey[k]; !slices.EqualFunc(first, other, same) {
			i := 0
			for i < min(len(first), len(other)) && same(first[i], other[i]) {
				i++
			}
			violations = append(violations, Violationf(AtomicTransactions,
				"%s and %s are written together, and differ from change %d on: %s, %s", keys[0], k, i,
				changeAt(first, i), changeAt(other, i)))
		}
	}
	return violations
}

func changeAt(changes []Change, i int) string {
	if i >= len(changes) {
		return "no change"
	}
	return fmt.Sprintf("%q at revision %d", changes[i].Value, changes[i].Revision)
}
