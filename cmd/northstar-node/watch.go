package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/node"
)

// Poll intervals of the demo.
const (
	pollWithLeader  = 100 * time.Millisecond
	pollNoLeader    = 20 * time.Millisecond
	pollTimeout     = 500 * time.Millisecond
	recordTimeout   = 3 * time.Second // wait for the record of an election
	eventRetryDelay = 500 * time.Millisecond
)

// printer prints whole lines, from any goroutine.
type printer struct {
	mu sync.Mutex
	w  io.Writer
}

func (p *printer) text(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprint(p.w, s)
}

func (p *printer) line(format string, args ...any) {
	p.text(time.Now().Format("15:04:05.000") + "  " + fmt.Sprintf(format, args...) + "\n")
}

// leaderTracker polls all nodes for the leader, and prints every change with what the cluster has recorded of it.
type leaderTracker struct {
	members   node.InitialCluster
	print     *printer
	startedAt time.Time
	http      *http.Client
	wake      chan struct{} // capacity 1: a process has exited

	mu             sync.Mutex
	id             string  // "" if there is none
	term           uint64  // of the latest leader
	deadLeaderTerm uint64  // term of the leader whose process has exited: reports of that term are stale
	crashed        bool    // the process of the last leader has exited, and none was elected since
	failovers      []int64 // milliseconds without a leader after each crash of a leader
}

func newLeaderTracker(members node.InitialCluster, print *printer) *leaderTracker {
	return &leaderTracker{
		members: members, print: print, wake: make(chan struct{}, 1),
		http: &http.Client{Timeout: pollTimeout},
	}
}

func (t *leaderTracker) current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

// exited records that the process of a node has exited.
func (t *leaderTracker) exited(id string) {
	t.mu.Lock()
	if t.id == id {
		t.id, t.deadLeaderTerm, t.crashed = "", t.term, true
	}
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// run polls until ctx ends.
func (t *leaderTracker) run(ctx context.Context) {
	defer t.http.CloseIdleConnections()
	for {
		answer := t.ask(ctx)
		if ctx.Err() != nil {
			return // the end of ctx breaks off the requests, so no answer means nothing
		}
		if l, from := t.observe(answer, time.Now()); l.LeaderID != "" {
			t.report(from, l, t.election(ctx, l))
		}
		wait := pollWithLeader
		if t.current() == "" {
			wait = pollNoLeader
		}
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-time.After(wait):
		}
	}
}

// observe processes the latest response; the zero Leader if no node reports one. It returns a leader whose election is
// to be reported, and the one before; else the zero Leader.
func (t *leaderTracker) observe(l apiv1.Leader, now time.Time) (elected apiv1.Leader, from string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case l.LeaderID == "":
		if t.id != "" {
			t.print.line("leader lost: was %s, no node reports a leader", t.id)
			t.id = ""
		}
		return elected, ""
	case l.Term < t.term, l.Term == t.term && (t.id == l.LeaderID || t.deadLeaderTerm == l.Term):
		return elected, ""
	case t.term == 0:
		t.print.line("leader elected: %s in %d ms (term %d)", l.LeaderID, now.Sub(t.startedAt).Milliseconds(), l.Term)
	case t.term == l.Term:
		t.print.line("leader found again: %s (term %d)", l.LeaderID, l.Term)
	default:
		elected, from = l, t.id
	}
	t.id, t.term = l.LeaderID, l.Term
	return elected, from
}

// report prints an election by the cluster's own record; nil: it is not known.
func (t *leaderTracker) report(from string, l apiv1.Leader, el *apiv1.Election) {
	what := "leader elected: " + l.LeaderID
	if from != "" && from != l.LeaderID {
		what = "leader changed: " + from + " to " + l.LeaderID
	}
	if el == nil {
		t.print.line("%s (term %d)", what, l.Term)
		return
	}
	t.print.line("%s after %d ms without a leader (term %d, %s)", what, el.LeaderlessMS, l.Term, el.Trigger)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.crashed {
		t.failovers, t.crashed = append(t.failovers, el.LeaderlessMS), false
	}
}

// summary describes the failovers after crashes; "" without any.
func (t *leaderTracker) summary() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failovers) == 0 {
		return ""
	}
	all := slices.Sorted(slices.Values(t.failovers))
	return fmt.Sprintf("%d failovers after crashes: %d ms without a leader in the median, %d ms at most", len(all), (all[(len(all)-1)/2]+all[len(all)/2])/2,
		all[len(all)-1])
}

// election returns the leader's record of its election. It waits for it for a short time: the record is the first entry
// that the leader commits.
func (t *leaderTracker) election(ctx context.Context, l apiv1.Leader) *apiv1.Election {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	for {
		var list apiv1.Elections
		if t.get(ctx, "http://"+l.LeaderAddress+apiv1.PathElection+"?limit=10", &list) {
			for _, el := range list.Items {
				if el.Term == l.Term && el.Won() {
					return &el
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollNoLeader):
		}
	}
}

// ask asks every node and returns the response with the highest term.
func (t *leaderTracker) ask(ctx context.Context) apiv1.Leader {
	answers := make(chan apiv1.Leader, len(t.members))
	for _, m := range t.members {
		go func() { answers <- t.askNode(ctx, "http://"+m.HTTPAddress+apiv1.PathLeader) }()
	}
	var newest apiv1.Leader
	for range t.members {
		if l := <-answers; l.Term > newest.Term {
			newest = l
		}
	}
	return newest
}

// askNode returns the zero Leader if the node does not respond or knows none.
func (t *leaderTracker) askNode(ctx context.Context, url string) (l apiv1.Leader) {
	if !t.get(ctx, url, &l) {
		return apiv1.Leader{}
	}
	return l
}

// get decodes the JSON of a successful response, and reports whether there was one.
func (t *leaderTracker) get(ctx context.Context, url string, out any) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := t.http.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return err == nil && resp.StatusCode == http.StatusOK && json.Unmarshal(body, out) == nil
}

// followEvents prints the events of one node until ctx ends, across its restarts. The leaderTracker reports
// elections, once for all nodes.
func followEvents(ctx context.Context, id, addr string, print *printer) {
	c, err := client.New(client.Config{Endpoints: []string{addr}})
	if err != nil {
		print.line("cannot follow the events of %s: %v", id, err)
		return
	}
	defer c.Close()
	for ctx.Err() == nil {
		for e, err := range c.FollowEvents(ctx, "", "") {
			if err == nil && e.Node == id && e.Type != "election" {
				print.line("%s: %s", id, e.Message)
			}
		} // it ends when the node does not start again
		select {
		case <-ctx.Done():
		case <-time.After(eventRetryDelay):
		}
	}
}
