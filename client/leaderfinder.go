package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Limits of the leader search. Every node is polled independently, so that a hung node delays nothing. The interval
// starts small, because half of it adds to the failover time that an application sees. It grows, because a cluster
// without quorum may stay so.
const (
	minPollInterval   = 4 * time.Millisecond
	maxPollInterval   = 100 * time.Millisecond
	pollGrowth        = 1.25
	minorityWait      = 20 * time.Millisecond  // how long pollAll waits for the last nodes
	probeTimeout      = 300 * time.Millisecond // timeout of one probe
	unresponsiveAfter = 100 * time.Millisecond // a node is hung if a probe is pending for this long
)

// leaderReport is one node's response to GET /leader.
type leaderReport struct {
	endpoint string    // the node
	leader   string    // URL of the leader according to the node
	info     Leader    // without LeaderID if the node names no leader
	askedAt  time.Time // when the request was sent
	err      error     // the response is missing, or not from a NorthStar node
}

func (s leaderReport) isSelfReport() bool { return s.info.ObservedBy == s.info.LeaderID }

// pickLeader selects the leader from the latest report of each node. The highest term wins; within a term, a report
// of the leader about itself wins, because its endpoint is known to work. If the same node reports itself under several
// URLs, current, the URL so far, wins: another address is no other leader. A leader in suspects counts only if it
// reported itself after that time. Until then the leader is unknown: a lower term is never the answer.
func pickLeader(reports []leaderReport, suspects map[string]time.Time, current string) leaderReport {
	var best leaderReport
	for _, s := range reports {
		if s.info.LeaderID == "" {
			continue
		}
		if s.isSelfReport() {
			s.leader = s.endpoint
		}
		stays := s.leader == current && s.info.LeaderID == best.info.LeaderID
		betterSource := s.info.Term == best.info.Term && s.isSelfReport() && (!best.isSelfReport() || stays)
		if best.leader == "" || s.info.Term > best.info.Term || betterSource {
			best = s
		}
	}
	if at, suspect := suspects[best.leader]; suspect && (!best.isSelfReport() || best.askedAt.Before(at)) {
		return leaderReport{}
	}
	return best
}

// leaderFinder finds the leader. It polls only between acquire and release, and keeps the last result otherwise.
// Nothing blocks under its lock.
type leaderFinder struct {
	c *Client

	mu       sync.Mutex
	users    int
	stop     context.CancelFunc // of the poll, while there are users
	results  map[string]leaderReport
	suspects map[string]time.Time
	probing  map[string]time.Time // start times of pending probes
	current  leaderReport
	changed  chan struct{} // closed when the leader or term of current changes
}

// leader returns the leader's URL, "" if unknown, and a channel that is closed when that changes.
func (f *leaderFinder) leader() (string, <-chan struct{}) {
	s, changed := f.report()
	return s.leader, changed
}

// report returns the report that names the leader, like leader.
func (f *leaderFinder) report() (leaderReport, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current, f.changed
}

// markSuspect records that a node failed while it was the presumed leader. Reports of other nodes that name it do
// not count until it reports itself again.
func (f *leaderFinder) markSuspect(url string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current.leader == url {
		f.suspects[url] = now
		f.updateLeaderLocked()
	}
}

// isUnresponsive reports whether a probe of the node has been pending for unresponsiveAfter.
func (f *leaderFinder) isUnresponsive(url string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	since, probing := f.probing[url]
	return probing && now.Sub(since) >= unresponsiveAfter
}

// record stores the result of a probe.
func (f *leaderFinder) record(url string, r leaderReport) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.results[url] = r
	f.updateLeaderLocked()
}

func (f *leaderFinder) updateLeaderLocked() {
	best := pickLeader(slices.Collect(maps.Values(f.results)), f.suspects, f.current.leader)
	if best.isSelfReport() {
		delete(f.suspects, best.leader)
	}
	if best.leader != f.current.leader || best.info.Term != f.current.info.Term {
		close(f.changed)
		f.changed = make(chan struct{})
	}
	f.current = best
}

// acquire starts polling if it is not running. Each acquire needs a release.
func (f *leaderFinder) acquire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users++
	if f.users > 1 {
		return
	}
	ctx, stop := context.WithCancel(f.c.ctx)
	f.stop = stop
	f.c.spawn(func() { f.poll(ctx) }) // not after Close
}

func (f *leaderFinder) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	if f.users == 0 {
		f.stop()
	}
}

// poll probes every node until ctx ends.
func (f *leaderFinder) poll(ctx context.Context) {
	for interval := minPollInterval; ctx.Err() == nil; {
		urls := f.c.nodes.urls()
		f.forget(urls)
		for _, url := range urls {
			f.probe(ctx, url)
		}
		_ = pause(ctx, interval*3/4+rand.N(interval/2)) // ends with ctx
		interval = min(time.Duration(float64(interval)*pollGrowth), maxPollInterval)
	}
}

// forget drops the results of nodes that are no longer endpoints.
func (f *leaderFinder) forget(urls []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.results, func(url string, _ leaderReport) bool { return !slices.Contains(urls, url) })
}

// pollAll probes every node once. It returns when all have responded, or shortly after a majority has. Later
// responses still count for later calls.
func (f *leaderFinder) pollAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	urls, responded := f.c.nodes.urls(), 0
	for range f.askAll(ctx, urls) {
		if responded++; responded == len(urls)/2+1 {
			defer time.AfterFunc(minorityWait, cancel).Stop()
		}
	}
}

// askAll asks every node, and yields each with the error of the request in the order of the responses, until ctx
// ends.
func (f *leaderFinder) askAll(ctx context.Context, urls []string) iter.Seq2[string, error] {
	type result struct {
		url string
		err error
	}
	return func(yield func(string, error) bool) {
		f.forget(urls)
		results := make(chan result, len(urls))
		for _, url := range urls {
			if !f.c.spawn(func() { results <- result{url, f.ask(f.c.ctx, url, time.Now())} }) {
				return
			}
		}
		for range urls {
			select {
			case r := <-results:
				if !yield(r.url, r.err) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// probe asks one node, unless a probe of it is pending.
func (f *leaderFinder) probe(ctx context.Context, url string) {
	asked := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, busy := f.probing[url]; busy {
		return
	}
	if f.c.spawn(func() {
		_ = f.ask(ctx, url, asked) // recorded
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.probing, url)
	}) {
		f.probing[url] = asked
	}
}

// ask sends GET /leader to one node and records the response. It records nothing if ctx ended. The error is that of
// the request.
func (f *leaderFinder) ask(ctx context.Context, url string, asked time.Time) error {
	limit, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	a := f.c.askLeader(limit, url)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if a.err != nil {
		f.c.nodes.markDown(url, time.Now())
	} else {
		f.c.nodes.markUp(url)
	}
	f.record(url, f.c.parseLeaderReport(a, asked))
	return a.err
}

// responseError returns what is wrong with a response to GET /leader; nil if a NorthStar node sent it.
func responseError(a *response) error {
	if a.err != nil || a.status == http.StatusOK || a.status == http.StatusServiceUnavailable {
		return a.err
	}
	e, _ := problemOf("leader", a)
	return e.Problem
}

// unreachableReason returns why no leader is known. It distinguishes a wrong CA or address, or HTTP without TLS,
// from a cluster without a leader.
func (f *leaderFinder) unreachableReason() string {
	urls := f.c.nodes.urls()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, url := range urls {
		if f.results[url].err == nil {
			return "no node reports a leader"
		}
	}
	return fmt.Sprintf("no node responds; %s: %v", urls[0], f.results[urls[0]].err)
}

// parseLeaderReport reads a response to GET /leader.
func (c *Client) parseLeaderReport(a *response, asked time.Time) leaderReport {
	s := leaderReport{endpoint: a.node, askedAt: asked, err: responseError(a)}
	if a.err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &s.info) != nil {
		s.info = Leader{}
		return s
	}
	var ok bool
	if s.leader, ok = c.nodes.add(s.info.LeaderAddress); !ok && !s.isSelfReport() {
		s.info = Leader{}
	}
	return s
}
