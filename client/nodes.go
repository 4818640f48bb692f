package client

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// How long a node that failed is passed over: the first time, and at most.
// Passed over means asked last, not never.
const (
	minDownTime = 250 * time.Millisecond
	maxDownTime = 5 * time.Second
	maxNodes    = 64 // endpoints given and learnt
)

// node is one endpoint, by its base URL ("http://10.0.0.1:7701").
type node struct {
	url        string
	configured bool // named in Config: never forgotten
	fails      int  // in a row
	down       time.Time
}

// nodes is the set of endpoints, those given and those learnt from the
// cluster. Safe for use by several goroutines; nothing blocks under its lock.
type nodes struct {
	scheme string // of addresses learnt as host:port

	mu  sync.Mutex
	all []*node
}

func newNodes(endpoints []string, scheme string) (*nodes, error) {
	n := &nodes{scheme: scheme}
	for _, e := range endpoints {
		u, err := baseURL(e, scheme)
		if err != nil {
			return nil, err
		}
		n.addLocked(u, true)
	}
	if len(n.all) == 0 {
		return nil, fmt.Errorf("no endpoints: want at least one host:port or URL")
	}
	if len(n.all) > maxNodes {
		return nil, fmt.Errorf("%d endpoints: at most %d", len(n.all), maxNodes)
	}
	return n, nil
}

// baseURL checks an endpoint and brings it to the form scheme://host:port.
func baseURL(endpoint, scheme string) (string, error) {
	endpoint = strings.TrimSpace(endpoint)
	if !strings.Contains(endpoint, "://") {
		endpoint = scheme + "://" + endpoint
	}
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("endpoint %q: scheme %q, want http or https", endpoint, u.Scheme)
	case u.Hostname() == "":
		return "", fmt.Errorf("endpoint %q: no host", endpoint)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || (u.Path != "" && u.Path != "/"):
		return "", fmt.Errorf("endpoint %q: want scheme, host and port only", endpoint)
	}
	return u.Scheme + "://" + u.Host, nil
}

func (n *nodes) find(u string) *node {
	i := slices.IndexFunc(n.all, func(x *node) bool { return x.url == u })
	if i < 0 {
		return nil
	}
	return n.all[i]
}

func (n *nodes) addLocked(u string, given bool) {
	if x := n.find(u); x != nil {
		x.configured = x.configured || given
		return
	}
	n.all = append(n.all, &node{url: u, configured: given})
}

// add takes a node that the cluster named, and gives its URL.
func (n *nodes) add(address string) (string, bool) {
	u, err := baseURL(address, n.scheme)
	if err != nil {
		return "", false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.find(u) == nil && len(n.all) >= maxNodes {
		return "", false
	}
	n.addLocked(u, false)
	return u, true
}

// refresh replaces the learnt nodes by the members' addresses.
func (n *nodes) refresh(addresses []string) {
	keep := make(map[string]bool, len(addresses))
	for _, a := range addresses {
		if u, ok := n.add(a); ok {
			keep[u] = true
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = slices.DeleteFunc(n.all, func(x *node) bool { return !x.configured && !keep[x.url] })
}

// urls lists every endpoint.
func (n *nodes) urls() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]string, len(n.all))
	for i, x := range n.all {
		out[i] = x.url
	}
	return out
}

// markUp notes that a node is there.
func (n *nodes) markUp(u string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x := n.find(u); x != nil {
		x.fails, x.down = 0, time.Time{}
	}
}

// renewFailed notes that a node could not be reached, or was silent.
func (n *nodes) markDown(u string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.find(u)
	if x == nil || now.Before(x.down) {
		return // many calls notice one failure: it counts once
	}
	x.down = now.Add(min(minDownTime<<min(x.fails, 8), maxDownTime))
	x.fails++
}

// pick chooses where the next try of a call goes. tried counts the call's
// tries at each node, busy says where one is still under way; leader is ""
// when unknown. It gives "" when every node is busy.
func (n *nodes) pick(now time.Time, leader string, tried map[string]int, busy func(string) bool) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return selectNode(n.all, now, leader, tried, busy, rand.Perm(len(n.all)))
}

// selectNode is pick as a pure function; order breaks ties. The leader comes first
// unless this call has tried it already; then the nodes that are up, the least
// tried of them first.
func selectNode(all []*node, now time.Time, leader string, tried map[string]int, busy func(string) bool, order []int) string {
	best, bestRank := "", 0
	for _, i := range order {
		x := all[i]
		if busy(x.url) {
			continue
		}
		rank := 2 * tried[x.url]
		if now.Before(x.down) {
			rank += 3 // an untried node that is down comes after a second try at one that is up
		}
		if x.url == leader && tried[x.url] == 0 {
			rank = -1
		}
		if best == "" || rank < bestRank {
			best, bestRank = x.url, rank
		}
	}
	return best
}

// hasUntried says whether some node that is up and not busy has not been tried yet.
func (n *nodes) hasUntried(now time.Time, tried map[string]int, busy func(string) bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.all, func(x *node) bool {
		return tried[x.url] == 0 && !now.Before(x.down) && !busy(x.url)
	})
}
