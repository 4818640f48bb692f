package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/node"
)

// Poll intervals of the demo.
const (
	pollWithLeader  = 100 * time.Millisecond
	pollNoLeader    = 5 * time.Millisecond // short, to measure the time without a leader
	pollTimeout     = 500 * time.Millisecond
	eventRetryDelay = 500 * time.Millisecond
	maxEventLine    = 1 << 20
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
		t.print.line("leader elected: %s after %d ms without a leader (term %d)", l.LeaderID,
			now.Sub(t.lost).Milliseconds(),
			l.Term)
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
		go func() {
			var l apiv1.Leader
			if err := getJSON(ctx, t.http, "http://"+m.HTTPAddress+"/leader", &l); err != nil {
				l = apiv1.Leader{}
			}
			answers <- l
		}()
	}
	var newest apiv1.Leader
	for range t.members {
		if l := <-answers; l.Term > newest.Term {
			newest = l
		}
	}
	return newest
}

func getJSON(ctx context.Context, c *http.Client, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(into)
}

// followEvents prints the events of one node until ctx ends, across its restarts. The leaderTracker reports
// elections, once for all nodes.
func followEvents(ctx context.Context, id, addr string, print *printer) {
	c := &http.Client{}
	defer c.CloseIdleConnections()
	for ctx.Err() == nil {
		_ = readEvents(ctx, c, "http://"+addr+"/v1/events", func(e apiv1.Event) {
			if e.Node == id && e.Type != "election" {
				print.line("%s: %s", id, e.Message)
			}
		}) // it ends with the node's process, which child reports
		select {
		case <-ctx.Done():
		case <-time.After(eventRetryDelay):
		}
	}
}

// readEvents reads one server-sent stream until it ends.
func readEvents(ctx context.Context, c *http.Client, url string, handle func(apiv1.Event)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEventLine)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue
		}
		var e apiv1.Event
		if json.Unmarshal([]byte(data), &e) == nil {
			handle(e)
		}
	}
	return lines.Err()
}
