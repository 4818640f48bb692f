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

// How long a failed node is avoided: after the first failure, and at most. An avoided node is tried last.
const (
	minDownTime = 250 * time.Millisecond
	maxDownTime = 5 * time.Second
	maxNodes    = 64 // configured and learned endpoints
)

// node is one endpoint, by its base URL ("http://10.0.0.1:7701").
type node struct {
	url        string
	configured bool // named in Config: never removed
	fails      int  // failures in a row
	down       time.Time
}

// nodes is the set of endpoints: configured ones and those learned from the cluster. It is safe for concurrent use;
// nothing blocks under its lock.
type nodes struct {
	scheme string // of addresses learned as host:port

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
		if strings.HasPrefix(u, "https:") {
			n.scheme = "https" // the token must not go to the other nodes in the clear
		}
	}
	if len(n.all) == 0 {
		return nil, fmt.Errorf("no endpoints: at least one host:port or URL is required")
	}
	if len(n.all) > maxNodes {
		return nil, fmt.Errorf("endpoints: must be at most %d (got %d)", maxNodes, len(n.all))
	}
	return n, nil
}

// baseURL checks an endpoint and returns it in the form scheme://host:port.
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
		return "", fmt.Errorf("endpoint %q: scheme must be http or https (got %q)", endpoint, u.Scheme)
	case u.Hostname() == "":
		return "", fmt.Errorf("endpoint %q: no host", endpoint)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || (u.Path != "" && u.Path != "/"):
		return "", fmt.Errorf("endpoint %q: must be scheme, host and port only", endpoint)
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

func (n *nodes) addLocked(u string, configured bool) {
	if x := n.find(u); x != nil {
		x.configured = x.configured || configured
		return
	}
	n.all = append(n.all, &node{url: u, configured: configured})
}

// add records a node that the cluster named, and returns its URL.
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

// known reports whether an address is that of an endpoint.
func (n *nodes) known(address string) bool {
	u, err := baseURL(address, n.scheme)
	n.mu.Lock()
	defer n.mu.Unlock()
	return err == nil && n.find(u) != nil
}

// refresh replaces the learned nodes by the members' addresses, unless none is known.
func (n *nodes) refresh(addresses []string) {
	keep := make(map[string]bool, len(addresses))
	for _, a := range addresses {
		if u, ok := n.add(a); ok {
			keep[u] = true
		}
	}
	if len(keep) == 0 {
		return
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

// markUp records that a node responded.
func (n *nodes) markUp(u string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x := n.find(u); x != nil {
		x.fails, x.down = 0, time.Time{}
	}
}

// markDown records that a node could not be reached or was silent.
func (n *nodes) markDown(u string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.find(u)
	if x == nil || now.Before(x.down) {
		return // many calls notice the same failure: it counts once
	}
	x.down = now.Add(min(minDownTime<<min(x.fails, 8), maxDownTime))
	x.fails++
}

// pick returns the node for the next attempt of a call; "" if every node is busy. tried counts the attempts of the
// call for each node. busy reports whether an attempt is in progress at a node.
func (c *Client) pick(q *call, tried map[string]int, busy func(string) bool) string {
	leader := ""
	if q.retryClass != localRead {
		leader, _ = c.finder.leader()
	}
	n := c.nodes
	n.mu.Lock()
	defer n.mu.Unlock()
	return selectNode(n.all, time.Now(), leader, tried, busy, rand.Perm(len(n.all)))
}

// selectNode is pick as a pure function; leader is "" if unknown, order breaks ties. The leader comes first unless
// this call has tried it. Then come the nodes that are up, the least tried first.
func selectNode(
	all []*node, now time.Time, leader string, tried map[string]int, busy func(string) bool, order []int,
) string {
	best, bestRank := "", 0
	for _, i := range order {
		x := all[i]
		if busy(x.url) {
			continue
		}
		rank := 2 * tried[x.url]
		if now.Before(x.down) {
			rank += 3 // an untried node that is down ranks below a second attempt at one that is up
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

// hasUntried reports whether some node that is up and not busy is untried.
func (n *nodes) hasUntried(now time.Time, tried map[string]int, busy func(string) bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.all, func(x *node) bool {
		return tried[x.url] == 0 && !now.Before(x.down) && !busy(x.url)
	})
}
