package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
)

func TestLeaderTracker(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	tr := newLeaderTracker(nil, &printer{w: &out})
	start := time.Now()
	tr.startedAt = start
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	leads := func(id string, term uint64) apiv1.Leader { return apiv1.Leader{LeaderID: id, Term: term} }

	tr.observe(apiv1.Leader{}, at(10))
	tr.observe(leads("n2", 2), at(312)) // elected
	tr.observe(leads("n2", 2), at(400))
	tr.exited("n3", at(450))            // a follower
	tr.exited("n2", at(500))            // the leader
	tr.observe(leads("n2", 2), at(510)) // the others have not noticed
	tr.observe(apiv1.Leader{}, at(650))
	tr.observe(leads("n1", 3), at(790)) // elected
	tr.observe(leads("n2", 2), at(800)) // stale
	tr.observe(leads("n3", 4), at(900)) // transfer
	tr.observe(leads("n3", 5), at(950)) // it lost the others briefly
	tr.observe(apiv1.Leader{}, at(1000))
	tr.observe(leads("n3", 5), at(1100)) // it was only partitioned
	want := []string{
		"leader elected: n2 in 312 ms (term 2)",
		"leader elected: n1 after 290 ms without a leader (term 3)",
		"leader changed: n1 to n3 (term 4)",
		"leader elected again: n3 (term 5)",
		"leader lost: was n3, no node reports a leader",
		"leader elected: n3 after 100 ms without a leader (term 5)",
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.TrimSpace(line[len("15:04:05.000"):]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
