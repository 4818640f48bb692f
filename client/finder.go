package client

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"northstar/api/apiv1"
)

// How the leader is looked for while somebody waits for one: every node is
// asked on its own, so that a hung one holds up nobody. The interval starts
// small, since what an application feels of a failover is the server's gap
// plus half of it, and grows, since a cluster without a quorum stays so.
const (
	pollFirst  = 4 * time.Millisecond
	pollMost   = 100 * time.Millisecond
	pollGrowth = 1.25
	sweepGrace = 20 * time.Millisecond  // how long a sweep waits for a minority
	probeLimit = 300 * time.Millisecond // a probe's own deadline
	silentTime = 100 * time.Millisecond // a probe unanswered for this long: the node is hung
)

// sighting is one node's word on who leads.
type sighting struct {
	endpoint string // that was asked
	leader   string // URL of the leader, as the node knows it
	info     apiv1.Leader
	asked    time.Time // when the question was sent
}

func (s sighting) self() bool { return s.info.ObservedBy == s.info.LeaderID }

// elect decides from the newest word of each node: the highest term wins, and
// within it a node that claims itself, whose endpoint is then known to work
// from here. A leader named in distrusted counts only once it has claimed
// itself later than that; until then the leader is unknown, for a lower term
// is never the answer.
func elect(seen []sighting, distrusted map[string]time.Time) (sighting, bool) {
	var best sighting
	found := false
	for _, s := range seen {
		if s.self() {
			s.leader = s.endpoint
		}
		if !found || s.info.Term > best.info.Term || (s.info.Term == best.info.Term && s.self() && !best.self()) {
			best, found = s, true
		}
	}
	if !found {
		return best, false
	}
	if at, bad := distrusted[best.leader]; bad && (!best.self() || best.asked.Before(at)) {
		return sighting{}, false
	}
	return best, true
}

// finder knows who leads. It asks only while somebody waits (enter … leave);
// in between it holds the last answer. Nothing blocks under its lock.
type finder struct {
	c *Client

	mu         sync.Mutex
	waiting    int
	stop       context.CancelFunc // of the running poll; nil when none
	seen       map[string]sighting
	distrusted map[string]time.Time
	mute       map[string]error     // why a node last did not answer
	asking     map[string]time.Time // probes under way, since when
	best       sighting
	known      bool
	changed    chan struct{} // closed when best or known changes
}

func newFinder(c *Client) *finder {
	return &finder{
		c: c, seen: map[string]sighting{}, distrusted: map[string]time.Time{}, mute: map[string]error{},
		asking: map[string]time.Time{}, changed: make(chan struct{}),
	}
}

// leader gives the leader's URL, "" when unknown, and a channel that is closed
// when that changes.
func (f *finder) leader() (string, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.known {
		return "", f.changed
	}
	return f.best.leader, f.changed
}

// sighted is leader with all that is known of it.
func (f *finder) sighted() (sighting, bool, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.best, f.known, f.changed
}

// distrust notes that a node failed while it was thought to lead: others still
// naming it does not count, until it claims itself again.
func (f *finder) distrust(url string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known && f.best.leader == url {
		f.distrusted[url] = now
		f.settleLocked()
	}
}

// silent says whether a node has left a probe unanswered for silentTime.
func (f *finder) silent(url string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	since, asking := f.asking[url]
	return asking && now.Sub(since) >= silentTime
}

// note takes a node's word; ok is false when it knew no leader or did not
// answer.
func (f *finder) note(s sighting, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ok {
		f.seen[s.endpoint] = s
	} else {
		delete(f.seen, s.endpoint)
	}
	f.settleLocked()
}

func (f *finder) settleLocked() {
	all := make([]sighting, 0, len(f.seen))
	for _, s := range f.seen {
		all = append(all, s)
	}
	best, known := elect(all, f.distrusted)
	if known && best.self() {
		delete(f.distrusted, best.leader)
	}
	same := known == f.known && best.leader == f.best.leader && best.info.Term == f.best.info.Term
	f.best, f.known = best, known
	if !same {
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// enter starts the asking, when it is not under way already. Each enter needs
// its leave.
func (f *finder) enter() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting++
	if f.waiting > 1 {
		return
	}
	ctx, stop := context.WithCancel(f.c.ctx)
	if f.c.spawn(func() { f.poll(ctx) }) {
		f.stop = stop
		return
	}
	stop()
}

func (f *finder) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting--
	if f.waiting == 0 && f.stop != nil {
		f.stop()
		f.stop = nil
	}
}

// poll asks every node until ctx ends.
func (f *finder) poll(ctx context.Context) {
	interval := pollFirst
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		urls := f.c.nodes.urls()
		f.forget(urls)
		for _, url := range urls {
			f.probe(ctx, url)
		}
		timer.Reset(interval*3/4 + rand.N(interval/2))
		interval = min(time.Duration(float64(interval)*pollGrowth), pollMost)
	}
}

// forget drops what nodes said that are endpoints no more.
func (f *finder) forget(urls []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.seen, func(url string, _ sighting) bool { return !slices.Contains(urls, url) })
	maps.DeleteFunc(f.mute, func(url string, _ error) bool { return !slices.Contains(urls, url) })
}

// sweep asks every node once. It returns when all have answered, or shortly
// after a majority has: the others may be hung, and their word, should it come,
// still counts for later calls.
func (f *finder) sweep(ctx context.Context) {
	urls := f.c.nodes.urls()
	f.forget(urls)
	answered := make(chan struct{}, len(urls))
	for _, url := range urls {
		if !f.c.spawn(func() { f.ask(f.c.ctx, url, time.Now()); answered <- struct{}{} }) {
			return
		}
	}
	grace := time.NewTimer(probeLimit)
	defer grace.Stop()
	for n := 1; n <= len(urls); n++ {
		select {
		case <-answered:
		case <-grace.C:
			return
		case <-ctx.Done():
			return
		}
		if n == len(urls)/2+1 {
			grace.Reset(sweepGrace)
		}
	}
}

// probe asks one node, unless it still owes an answer.
func (f *finder) probe(ctx context.Context, url string) {
	asked := time.Now()
	f.mu.Lock()
	_, busy := f.asking[url]
	if !busy {
		f.asking[url] = asked
	}
	f.mu.Unlock()
	if busy {
		return
	}
	done := func() {
		f.mu.Lock()
		delete(f.asking, url)
		f.mu.Unlock()
	}
	if !f.c.spawn(func() { defer done(); f.ask(ctx, url, asked) }) {
		done()
	}
}

// ask sends GET /leader to one node and notes what it says. A probe cut short
// because nobody waits any more says nothing.
func (f *finder) ask(ctx context.Context, url string, asked time.Time) {
	limit, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	a := f.c.attempt(limit, &call{op: "leader", method: http.MethodGet, path: apiv1.PathLeader}, url, nil)
	if ctx.Err() != nil {
		return
	}
	if a.err != nil {
		f.c.nodes.failed(url, time.Now())
	} else {
		f.c.nodes.answered(url)
	}
	f.heard(url, complaintOf(a))
	s, ok := f.c.sightingOf(a, asked)
	f.note(s, ok)
}

// complaintOf is what is wrong with an answer to GET /leader, nil where it is a node's:
// its leader, or that it knows none.
func complaintOf(a *answer) error {
	if a.err != nil || a.status == http.StatusOK || a.status == http.StatusServiceUnavailable {
		return a.err
	}
	e, _ := problemOf("leader", a)
	return e.Problem
}

// heard notes whether a node has answered.
func (f *finder) heard(url string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.mute, url)
	} else {
		f.mute[url] = err
	}
}

// complaint says why no leader is known, for people: a wrong CA or address, or plain
// HTTP where there is TLS, is not a cluster without a leader.
func (f *finder) complaint() string {
	urls := f.c.nodes.urls()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, url := range urls {
		if f.mute[url] == nil {
			return "no node names a leader"
		}
	}
	return fmt.Sprintf("no node answers; %s: %v", urls[0], f.mute[urls[0]])
}

// sightingOf reads an answer to GET /leader.
func (c *Client) sightingOf(a *answer, asked time.Time) (sighting, bool) {
	s := sighting{endpoint: a.node, asked: asked}
	if a.err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &s.info) != nil || s.info.LeaderID == "" {
		return s, false
	}
	url, ok := c.nodes.add(s.info.LeaderAddress)
	s.leader = url
	return s, ok || s.self()
}
