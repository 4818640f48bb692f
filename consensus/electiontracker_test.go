package consensus

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

var update = flag.Bool("update", false, "rewrite the expected records in testdata")

// trackerStart is the zero of all times in testdata.
var trackerStart = time.Unix(1_700_000_000, 0)

// TestElectionTracker runs the cases of testdata/elections.txt. A case is "case NAME",
// one step a line, "----" and the records that come of the steps. A step is a time in
// milliseconds, and
//
//	follower|candidate|leader TERM [LEADER] [contact=MS]   a sample
//	check                                                  is the candidacy to be reported?
//	won TERM [trigger=] [reason=] [started=MS] [led=MS]    the record of an election that was won, with facts
//	finish TERM                                            that record was made
func TestElectionTracker(t *testing.T) {
	t.Parallel()
	path := filepath.Join("testdata", "elections.txt")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for part := range strings.SplitSeq(strings.TrimSpace(string(raw)), "\n\n") {
		steps, want, _ := strings.Cut(part, "\n----")
		got := trackSteps(t, steps)
		if !*update && got != want {
			t.Errorf("%s\n--- got%s\n--- want%s", steps, got, want)
		}
		out = append(out, steps+"\n----"+got+"\n")
	}
	if *update {
		if err := os.WriteFile(path, []byte(strings.Join(out, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// trackSteps runs the steps of a case, and returns one line for each record and each change of the leader.
func trackSteps(t *testing.T, steps string) string {
	t.Helper()
	e := newElectionTracker("n1", 300*time.Millisecond)
	e.leaderlessSince = trackerStart
	var out strings.Builder
	for line := range strings.Lines(steps) {
		words := strings.Fields(line)
		if words[0] == "case" || words[0] == "#" {
			continue
		}
		now := millis(t, words[0])
		fmt.Fprint(&out, trackStep(t, &e, now, words[1], words[2:]))
	}
	return out.String()
}

func trackStep(t *testing.T, e *electionTracker, now time.Time, what string, words []string) string {
	t.Helper()
	var term uint64
	var plain []string
	values := map[string]string{}
	for _, w := range words {
		if key, value, ok := strings.Cut(w, "="); ok {
			values[key] = value
		} else if n, err := strconv.ParseUint(w, 10, 64); err == nil {
			term = n
		} else {
			plain = append(plain, w)
		}
	}
	switch what {
	case "check":
		return record(e.unresolved(now))
	case "won":
		facts := ElectionFacts{Trigger: values["trigger"], Reason: values["reason"]}
		if s := values["started"]; s != "" {
			facts.StartedAt = millis(t, s)
		}
		if s := values["led"]; s != "" {
			facts.LeaderlessSince = millis(t, s)
		}
		won := e.won(term, facts, now)
		return record(&won)
	case "finish":
		e.finish(term)
		return ""
	case "follower", "candidate", "leader":
		s, lastContact := raftnode.SoftState{Role: cluster.Role(what), Term: term}, time.Time{}
		if s.Role == cluster.Leader {
			plain = []string{"n1"}
		}
		if len(plain) > 0 {
			s.Leader = cluster.NodeID(plain[0])
		}
		if at := values["contact"]; at != "" {
			lastContact = millis(t, at)
		}
		changed, lost := e.observe(s, lastContact, now)
		text := ""
		if changed {
			text = fmt.Sprintf("\n%s: leader %q in term %d", at(now), s.Leader, term)
		}
		return text + record(lost)
	}
	t.Fatalf("there is no step %q", what)
	return ""
}

func millis(t *testing.T, s string) time.Time {
	t.Helper()
	ms, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return trackerStart.Add(time.Duration(ms) * time.Millisecond)
}

// at is a time of testdata; "-" is the zero time.
func at(when time.Time) string {
	if when.IsZero() {
		return "-"
	}
	return strconv.FormatInt(when.Sub(trackerStart).Milliseconds(), 10)
}

func record(e *Election) string {
	if e == nil {
		return ""
	}
	result := "lost"
	switch {
	case e.Won:
		result = "won by " + string(e.Candidate) + ", elected at " + at(e.LedAt)
	case e.Open:
		result = "unresolved"
	}
	return fmt.Sprintf("\nterm %d (from %d), %s: %s, started %s, took %v, leaderless %v\n  %s",
		e.Term, e.FromTerm, result, e.Trigger, at(e.StartedAt), e.Duration, e.Leaderless, e.Reason)
}
