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
	minPollInterval   = 4 * time.Millisecond
	maxPollInterval   = 100 * time.Millisecond
	pollGrowth        = 1.25
	minorityWait      = 20 * time.Millisecond  // how long a sweep waits for a minority
	probeTimeout      = 300 * time.Millisecond // a probe's own deadline
	unresponsiveAfter = 100 * time.Millisecond // a probe unanswered for this long: the node is hung
)

// leaderReport is one node's word on who leads.
type leaderReport struct {
	endpoint string // that was asked
	leader   string // URL of the leader, as the node knows it
	info     apiv1.Leader
	askedAt  time.Time // when the question was sent
}

func (s leaderReport) isSelfReport() bool { return s.info.ObservedBy == s.info.LeaderID }

// pickLeader decides from the newest word of each node: the highest term wins, and
// within it a node that claims itself, whose endpoint is then known to work
// from here. A leader named in distrusted counts only once it has claimed
// itself later than that; until then the leader is unknown, for a lower term
// is never the answer.
func pickLeader(seen []leaderReport, distrusted map[string]time.Time) (leaderReport, bool) {
	var best leaderReport
	found := false
	for _, s := range seen {
		if s.isSelfReport() {
			s.leader = s.endpoint
		}
		if !found || s.info.Term > best.info.Term || (s.info.Term == best.info.Term && s.isSelfReport() && !best.isSelfReport()) {
			best, found = s, true
		}
	}
	if !found {
		return best, false
	}
	if at, bad := distrusted[best.leader]; bad && (!best.isSelfReport() || best.askedAt.Before(at)) {
		return leaderReport{}, false
	}
	return best, true
}

// leaderFinder knows who leads. It asks only while somebody waits (enter … leave);
// in between it holds the last answer. Nothing blocks under its lock.
type leaderFinder struct {
	c *Client

	mu          sync.Mutex
	users       int
	stop        context.CancelFunc // of the running poll; nil when none
	reports     map[string]leaderReport
	suspects    map[string]time.Time
	lastErrors  map[string]error     // why a node last did not answer
	probing     map[string]time.Time // probes under way, since when
	current     leaderReport
	leaderKnown bool
	changed     chan struct{} // closed when best or known changes
}

func newLeaderFinder(c *Client) *leaderFinder {
	return &leaderFinder{
		c: c, reports: map[string]leaderReport{}, suspects: map[string]time.Time{}, lastErrors: map[string]error{},
		probing: map[string]time.Time{}, changed: make(chan struct{}),
	}
}

// leader gives the leader's URL, "" when unknown, and a channel that is closed
// when that changes.
func (f *leaderFinder) leader() (string, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.leaderKnown {
		return "", f.changed
	}
	return f.current.leader, f.changed
}

// report is leader with all that is known of it.
func (f *leaderFinder) report() (leaderReport, bool, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current, f.leaderKnown, f.changed
}

// markSuspect notes that a node failed while it was thought to lead: others still
// naming it does not count, until it claims itself again.
func (f *leaderFinder) markSuspect(url string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaderKnown && f.current.leader == url {
		f.suspects[url] = now
		f.updateLeaderLocked()
	}
}

// isUnresponsive says whether a node has left a probe unanswered for unresponsiveAfter.
func (f *leaderFinder) isUnresponsive(url string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	since, asking := f.probing[url]
	return asking && now.Sub(since) >= unresponsiveAfter
}

// record takes a node's word; ok is false when it knew no leader or did not
// answer.
func (f *leaderFinder) record(s leaderReport, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ok {
		f.reports[s.endpoint] = s
	} else {
		delete(f.reports, s.endpoint)
	}
	f.updateLeaderLocked()
}

func (f *leaderFinder) updateLeaderLocked() {
	all := make([]leaderReport, 0, len(f.reports))
	for _, s := range f.reports {
		all = append(all, s)
	}
	best, known := pickLeader(all, f.suspects)
	if known && best.isSelfReport() {
		delete(f.suspects, best.leader)
	}
	same := known == f.leaderKnown && best.leader == f.current.leader && best.info.Term == f.current.info.Term
	f.current, f.leaderKnown = best, known
	if !same {
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// acquire starts the asking, when it is not under way already. Each enter needs
// its leave.
func (f *leaderFinder) acquire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users++
	if f.users > 1 {
		return
	}
	ctx, stop := context.WithCancel(f.c.ctx)
	if f.c.spawn(func() { f.poll(ctx) }) {
		f.stop = stop
		return
	}
	stop()
}

func (f *leaderFinder) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	if f.users == 0 && f.stop != nil {
		f.stop()
		f.stop = nil
	}
}

// poll asks every node until ctx ends.
func (f *leaderFinder) poll(ctx context.Context) {
	interval := minPollInterval
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
		interval = min(time.Duration(float64(interval)*pollGrowth), maxPollInterval)
	}
}

// forget drops what nodes said that are endpoints no more.
func (f *leaderFinder) forget(urls []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.reports, func(url string, _ leaderReport) bool { return !slices.Contains(urls, url) })
	maps.DeleteFunc(f.lastErrors, func(url string, _ error) bool { return !slices.Contains(urls, url) })
}

// pollAll asks every node once. It returns when all have answered, or shortly
// after a majority has: the others may be hung, and their word, should it come,
// still counts for later calls.
func (f *leaderFinder) pollAll(ctx context.Context) {
	urls := f.c.nodes.urls()
	f.forget(urls)
	answered := make(chan struct{}, len(urls))
	for _, url := range urls {
		if !f.c.spawn(func() { f.ask(f.c.ctx, url, time.Now()); answered <- struct{}{} }) {
			return
		}
	}
	grace := time.NewTimer(probeTimeout)
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
			grace.Reset(minorityWait)
		}
	}
}

// probe asks one node, unless it still owes an answer.
func (f *leaderFinder) probe(ctx context.Context, url string) {
	asked := time.Now()
	f.mu.Lock()
	_, busy := f.probing[url]
	if !busy {
		f.probing[url] = asked
	}
	f.mu.Unlock()
	if busy {
		return
	}
	done := func() {
		f.mu.Lock()
		delete(f.probing, url)
		f.mu.Unlock()
	}
	if !f.c.spawn(func() { defer done(); f.ask(ctx, url, asked) }) {
		done()
	}
}

// ask sends GET /leader to one node and notes what it says. A probe cut short
// because nobody waits any more says nothing.
func (f *leaderFinder) ask(ctx context.Context, url string, asked time.Time) {
	limit, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	a := f.c.doAttempt(limit, &call{op: "leader", method: http.MethodGet, path: apiv1.PathLeader}, url, nil)
	if ctx.Err() != nil {
		return
	}
	if a.err != nil {
		f.c.nodes.markDown(url, time.Now())
	} else {
		f.c.nodes.markUp(url)
	}
	f.recordResult(url, responseError(a))
	s, ok := f.c.parseLeaderReport(a, asked)
	f.record(s, ok)
}

// responseError is what is wrong with an answer to GET /leader, nil where it is a node's:
// its leader, or that it knows none.
func responseError(a *response) error {
	if a.err != nil || a.status == http.StatusOK || a.status == http.StatusServiceUnavailable {
		return a.err
	}
	e, _ := problemOf("leader", a)
	return e.Problem
}

// recordResult notes whether a node has answered.
func (f *leaderFinder) recordResult(url string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.lastErrors, url)
	} else {
		f.lastErrors[url] = err
	}
}

// unreachableReason says why no leader is known, for people: a wrong CA or address, or plain
// HTTP where there is TLS, is not a cluster without a leader.
func (f *leaderFinder) unreachableReason() string {
	urls := f.c.nodes.urls()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, url := range urls {
		if f.lastErrors[url] == nil {
			return "no node names a leader"
		}
	}
	return fmt.Sprintf("no node answers; %s: %v", urls[0], f.lastErrors[urls[0]])
}

// parseLeaderReport reads an answer to GET /leader.
func (c *Client) parseLeaderReport(a *response, asked time.Time) (leaderReport, bool) {
	s := leaderReport{endpoint: a.node, askedAt: asked}
	if a.err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &s.info) != nil || s.info.LeaderID == "" {
		return s, false
	}
	url, ok := c.nodes.add(s.info.LeaderAddress)
	s.leader = url
	return s, ok || s.isSelfReport()
}
