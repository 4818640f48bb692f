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
					"%v; its session had ended at %v, and somebody waited from %v to %v", t, end, w.From, w.To))
				break
			}
		}
	}
	return violations
}
