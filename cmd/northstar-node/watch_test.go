package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/node"
)

// Ctrl-C while the nodes are being asked is no loss of the leader.
func TestLeaderTrackerStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer slow.Close()
	var out strings.Builder
	members := node.InitialCluster{{HTTPAddress: strings.TrimPrefix(slow.URL, "http://")}}
	tr := newLeaderTracker(members, &printer{w: &out})
	tr.observe(apiv1.Leader{LeaderID: "n1", Term: 2}, time.Now())
	out.Reset()
	tr.run(ctx)
	if out.Len() > 0 {
		t.Errorf("printed %q", out.String())
	}
}

func TestLeaderTracker(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	tr := newLeaderTracker(nil, &printer{w: &out})
	start := time.Now()
	tr.startedAt = start
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	leads := func(id string, term uint64) apiv1.Leader { return apiv1.Leader{LeaderID: id, Term: term} }

	observe := func(l apiv1.Leader, ms int, el *apiv1.Election) {
		if elected, from := tr.observe(l, at(ms)); elected.LeaderID != "" {
			tr.report(from, elected, el)
		}
	}
	record := func(trigger string, leaderless int64) *apiv1.Election {
		return &apiv1.Election{Trigger: trigger, LeaderlessMS: leaderless}
	}
	observe(apiv1.Leader{}, 10, nil)
	observe(leads("n2", 2), 312, nil) // elected
	observe(leads("n2", 2), 400, nil)
	tr.exited("n3")                   // a follower
	tr.exited("n2")                   // the leader
	observe(leads("n2", 2), 510, nil) // the others have not noticed
	observe(apiv1.Leader{}, 650, nil)
	observe(leads("n1", 3), 790, record("connection_lost", 17)) // elected
	observe(leads("n2", 2), 800, nil)                           // stale
	observe(leads("n3", 4), 900, record("transfer", 6))
	observe(leads("n3", 5), 950, record("timeout", 280)) // it lost the others briefly
	observe(leads("n1", 6), 960, nil)                    // its record is not known
	observe(apiv1.Leader{}, 1000, nil)
	observe(leads("n1", 6), 1100, nil) // it was only partitioned
	tr.exited("n1")
	observe(leads("n2", 7), 1200, record("connection_lost", 21))
	tr.print.line("%s", tr.summary())
	want := []string{
		"leader elected: n2 in 312 ms (term 2)",
		"leader elected: n1 after 17 ms without a leader (term 3, connection_lost)",
		"leader changed: n1 to n3 after 6 ms without a leader (term 4, transfer)",
		"leader elected: n3 after 280 ms without a leader (term 5, timeout)",
		"leader changed: n3 to n1 (term 6)",
		"leader lost: was n1, no node reports a leader",
		"leader found again: n1 (term 6)",
		"leader elected: n2 after 21 ms without a leader (term 7, connection_lost)",
		"2 failovers after crashes: 19 ms without a leader in the median, 21 ms at most",
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.TrimSpace(line[len("15:04:05.000"):]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
