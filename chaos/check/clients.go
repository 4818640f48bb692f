package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Tenure is one session's time as the holder of a role, as its client knows it. The client certainly held the role from
// GrantedAt to Until. Times are since the start of the history.
type Tenure struct {
	Client      int
	Session     string
	Token       uint64
	RequestedAt time.Duration // when the request was sent whose response granted the role
	GrantedAt   time.Duration // when that response arrived
	Until       time.Duration // its own deadline, or when it began to resign
}

func (t Tenure) String() string {
	return fmt.Sprintf("client %d held it with token %d from %v (asked %v) to %v", t.Client, t.Token, t.GrantedAt,
		t.RequestedAt, t.Until)
}

// FencedWrite is a completed write with a role's token.
type FencedWrite struct {
	Client     int
	Token      uint64
	Begin, End time.Duration
}

// CheckMutualExclusion checks the observations of one role. It has at most one holder at a time, and each tenure has a
// greater token than earlier tenures. No write succeeds with a token after a client has learned of a greater one.
func CheckMutualExclusion(tenures []Tenure, writes []FencedWrite) (violations []Violation) {
	tenures = slices.Clone(tenures)
	slices.SortStableFunc(tenures, func(a, b Tenure) int { return int(a.GrantedAt - b.GrantedAt) })
	for i, a := range tenures {
		for _, b := range tenures[i+1:] {
			switch {
			case a.Token == b.Token && a.Session != b.Session:
				violations = append(violations, Violationf(OneHolder, "two sessions got one token: %v; %v", a, b))
			case a.Token != b.Token && a.GrantedAt < b.RequestedAt && b.Token < a.Token:
				violations = append(violations, Violationf(OneHolder, "tokens went back: %v; %v", a, b))
			case a.Session != b.Session && b.GrantedAt < a.Until:
				violations = append(violations, Violationf(OneHolder, "two at a time: %v; %v", a, b))
			}
		}
	}
	for _, w := range writes {
		for _, t := range tenures {
			if t.Token > w.Token && t.GrantedAt < w.Begin {
				violations = append(violations, Violationf(Fencing,
					"client %d wrote with token %d from %v to %v, after %v", w.Client, w.Token, w.Begin, w.End, t))
				break
			}
		}
	}
	return violations
}

// WaitInterval is a period in which a candidate waited for a role without success.
type WaitInterval struct{ From, To time.Duration }

// takeoverBound is how long the next holder may take to learn of its election after the previous holder's session ends.
const takeoverBound = time.Second

// CheckVacancies checks that a role is not vacant for long while a candidate waits for it. over holds the latest end of
// each session: its last renewal plus its TTL.
func CheckVacancies(tenures []Tenure, over map[string]time.Duration, waits []WaitInterval) (violations []Violation) {
	tenures = slices.Clone(tenures)
	slices.SortStableFunc(tenures, func(a, b Tenure) int { return cmp.Compare(a.Token, b.Token) })
	waits = slices.Clone(waits)
	for _, t := range tenures {
		waits = append(waits, WaitInterval{t.RequestedAt, t.GrantedAt})
	}
	for i, t := range tenures {
		end, ended := over[t.Session]
		if !ended {
			continue
		}
		for _, w := range waits {
			if w.From > end || w.To <= end+takeoverBound {
				continue
			}
			if next := tenures[i+1:]; !slices.ContainsFunc(next, func(n Tenure) bool {
				return n.Token > t.Token &&
					n.GrantedAt <= end+takeoverBound
			}) {
				violations = append(violations, Violationf(TakeoverBound,
					"%v; its session had ended at %v, and a candidate waited from %v to %v", t, end, w.From, w.To))
				break
			}
		}
	}
	return violations
}

// Change is one event of a watch.
type Change struct {
	Revision uint64
	Key      string
	Value    string // "" if the key was deleted
	More     bool   // the next event has the same revision
}

// Watch collects the events of one watcher, which resumes where it stopped. It is for one goroutine.
type Watch struct {
	Name    string
	From    uint64 // it receives revisions newer than this
	Changes []Change
}

// LastRevision returns the newest revision that the watcher has received with all its events.
func (w *Watch) LastRevision() uint64 {
	for _, c := range slices.Backward(w.Changes) {
		if !c.More {
			return c.Revision
		}
	}
	return w.From
}

// Resume must be called before the watcher continues after LastRevision on a new stream: the events of a revision that
// was cut off come again.
func (w *Watch) Resume() {
	for len(w.Changes) > 0 && w.Changes[len(w.Changes)-1].More {
		w.Changes = w.Changes[:len(w.Changes)-1]
	}
}

// Add records the next event and describes what is wrong with it: "" if nothing.
func (w *Watch) Add(c Change) string {
	before := Change{Revision: w.From}
	if n := len(w.Changes); n > 0 {
		before = w.Changes[n-1]
	}
	switch {
	case before.More && c.Revision != before.Revision:
		return fmt.Sprintf("%s got revision %d before all events of %d", w.Name, c.Revision, before.Revision)
	case !before.More && c.Revision <= before.Revision:
		return fmt.Sprintf("%s got revision %d after %d", w.Name, c.Revision, before.Revision)
	}
	for _, other := range slices.Backward(w.Changes) {
		if other.Revision != c.Revision {
			break
		}
		if other.Key == c.Key {
			return fmt.Sprintf("%s got two changes of %q at revision %d", w.Name, c.Key, c.Revision)
		}
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
			return cmp.Compare(c.Revision, r)
		})
		switch {
		case !found:
			violations = append(violations, Violationf(WatchOrder, "%s never showed revision %d: %v", w.Name,
				o.Revision, o))
		case !w.shows(i, o):
			violations = append(violations, Violationf(WatchOrder, "%s showed %q = %q at revision %d: %v", w.Name,
				w.Changes[i].Key, w.Changes[i].Value, o.Revision, o))
		}
	}
	return violations
}

// shows reports whether an operation is among the events of its revision, the first of which has index i.
func (w *Watch) shows(i int, o Op) bool {
	for ; i < len(w.Changes) && w.Changes[i].Revision == o.Revision; i++ {
		if w.Changes[i].Key == o.Key && w.Changes[i].Value == o.Value {
			return true
		}
	}
	return false
}

// AttachedSession is a session that its client attached to a connection and later detached.
type AttachedSession struct {
	Session, Node string
	DetachedAt    time.Duration
}

// FaultInterval is a period in which a fault affected a node. An empty node means all nodes.
type FaultInterval struct {
	Node     string
	From, To time.Duration
}

// reportTimeout is how long a node may take to report a closed connection to a leader that takes writes.
const reportTimeout = 3 * time.Second

// CheckAttachedSessionsEnd checks that no session outlives the connection that it was attached to. A node may fail
// before it reports the closed connection: that session falls back to its TTL. without lists, in order, the periods
// without an acknowledged write.
func CheckAttachedSessionsEnd(held []AttachedSession, alive map[string]bool, hits,
	without []FaultInterval,
) (violations []Violation) {
	for _, h := range held {
		by := reportDeadline(h.DetachedAt, without)
		hit := slices.ContainsFunc(hits, func(f FaultInterval) bool {
			return (f.Node == "" || f.Node == h.Node) && f.From <= by && f.To >= h.DetachedAt
		})
		if alive[h.Session] && !hit {
			violations = append(violations, Violationf(AttachedSessionEnds,
				"session %s lives on; its connection to %s ended at %v", h.Session, h.Node, h.DetachedAt))
		}
	}
	return violations
}

// reportDeadline returns the time by which a node must have reported what it knew at the given time.
func reportDeadline(at time.Duration, without []FaultInterval) time.Duration {
	left := reportTimeout
	for _, w := range without {
		if w.To <= at {
			continue
		}
		if w.From >= at+left {
			break
		}
		left -= max(0, w.From-at)
		at = w.To
	}
	return at + left
}
