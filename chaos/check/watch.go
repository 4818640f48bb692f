package check

import (
	"fmt"
	"slices"
)

// Change is one event of a watch.
type Change struct {
	Revision uint64
	Key      string
	Value    string // "" if the key was deleted
}

// Watch collects the events of one watcher, which resumes where it stopped. It is for one goroutine.
type Watch struct {
	Name    string
	From    uint64 // it receives revisions newer than this
	Changes []Change
}

// LastRevision returns the newest revision that the watcher has received.
func (w *Watch) LastRevision() uint64 {
	if len(w.Changes) == 0 {
		return w.From
	}
	return w.Changes[len(w.Changes)-1].Revision
}

// Add records the next event and describes what is wrong with it: "" if nothing.
func (w *Watch) Add(c Change) string {
	if last := w.LastRevision(); c.Revision <= last {
		return fmt.Sprintf("%s got revision %d after %d", w.Name, c.Revision, last)
	}
	w.Changes = append(w.Changes, c)
	return ""
}

// CheckWatch compares the events of a watcher with the acknowledged writes. Each write up to the newest event must have
// been reported exactly as it was.
func CheckWatch(w *Watch, ops []Op) (violations []Violation) {
	for _, o := range ops {
		if o.Outcome != Done || o.Kind == Get || o.Revision == 0 || o.Revision <= w.From ||
			o.Revision > w.LastRevision() {
			continue
		}
		i, found := slices.BinarySearchFunc(w.Changes, o.Revision, func(c Change, r uint64) int {
			switch {
			case c.Revision < r:
				return -1
			case c.Revision > r:
				return 1
			}
			return 0
		})
		switch {
		case !found:
			violations = append(violations, Violationf(WatchOrder, "%s never showed revision %d: %v", w.Name,
				o.Revision, o))
		case w.Changes[i].Key != o.Key || w.Changes[i].Value != o.Value:
			violations = append(violations, Violationf(WatchOrder, "%s showed %q = %q at revision %d: %v", w.Name,
				w.Changes[i].Key, w.Changes[i].Value, o.Revision, o))
		}
	}
	return violations
}
