package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/node"
)

// Poll intervals of the demo.
const (
	pollWithLeader  = 100 * time.Millisecond
	pollNoLeader    = 5 * time.Millisecond // short, to measure the time without a leader
	pollTimeout     = 500 * time.Millisecond
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

// leaderTracker polls all nodes for the leader, and prints every change.
type leaderTracker struct {
	members   node.InitialCluster
	print     *printer
	startedAt time.Time
	http      *http.Client
	wake      chan struct{} // capacity 1: a process has exited

	mu             sync.Mutex
	id             string    // "" if there is none
	term           uint64    // of the latest leader
	deadLeaderTerm uint64    // term of the leader whose process has exited: reports of that term are stale
	lost           time.Time // start of the time without a leader; zero before the first
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
func (t *leaderTracker) exited(id string, at time.Time) {
	t.mu.Lock()
	if t.id == id {
		t.id, t.lost, t.deadLeaderTerm = "", at, t.term
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
		t.observe(t.ask(ctx), time.Now())
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

// observe processes the latest response; the zero Leader if no node reports one.
func (t *leaderTracker) observe(l apiv1.Leader, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case l.LeaderID == "":
		if t.id != "" {
			t.print.line("leader lost: was %s, no node reports a leader", t.id)
			t.id, t.lost = "", now
		}
		return
	case l.Term < t.term, l.Term == t.term && (t.id == l.LeaderID || t.deadLeaderTerm == l.Term):
		return
	case t.term == 0:
		t.print.line("leader elected: %s in %d ms (term %d)", l.LeaderID, now.Sub(t.startedAt).Milliseconds(), l.Term)
	case t.id == "":
		t.print.line("leader elected: %s after %d ms without a leader (term %d)",
			l.LeaderID, now.Sub(t.lost).Milliseconds(), l.Term)
	case t.id == l.LeaderID:
		t.print.line("leader elected again: %s (term %d)", l.LeaderID, l.Term)
	default:
		t.print.line("leader changed: %s to %s (term %d)", t.id, l.LeaderID, l.Term)
	}
	t.id, t.term = l.LeaderID, l.Term
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return l
	}
	resp, err := t.http.Do(req)
	if err != nil {
		return l
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(body, &l) != nil {
		return apiv1.Leader{}
	}
	return l
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
