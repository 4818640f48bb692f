package client

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"time"

	"northstar/api/apiv1"
)

// A client that is in use follows the leader by a stream from a node that does not lead. After the death of the
// leader's process the kernel may keep its connections open for tens of milliseconds; the survivors have elected
// another leader by then. When the client reads of it, it sends the calls in flight to that one.
const (
	// After the first call. A short-lived client opens no stream. Without one, a call waits for HedgeAfter at a leader
	// that hangs.
	leaderStreamDelay = 100 * time.Millisecond

	leaderStreamIdle    = time.Minute      // the stream ends when there has been no call for this long
	leaderStreamSilence = 30 * time.Second // without a byte, not even a keep-alive, the stream is broken
	minLeaderStreamWait = 100 * time.Millisecond
	maxLeaderStreamWait = time.Minute
)

// followLeader keeps the stream while the client is in use. It runs at most once at a time.
func (c *Client) followLeader() {
	defer c.followingLeader.Store(false)
	if pause(c.ctx, leaderStreamDelay) != nil {
		return
	}
	for wait := minLeaderStreamWait; c.calledAt.since(time.Now()) < leaderStreamIdle; {
		node := c.pickFollower()
		began := time.Now()
		if node != "" && c.readLeaderStream(node) && time.Since(began) > stableAfter {
			wait = minLeaderStreamWait // a node that leads under another address ends each stream with its first event
		}
		if pause(c.ctx, wait/2+rand.N(wait/2)) != nil {
			return
		}
		wait = min(2*wait, maxLeaderStreamWait)
	}
}

// startLeaderStream starts followLeader, unless it runs or there is no second node.
func (c *Client) startLeaderStream() {
	c.calledAt.set(time.Now())
	if c.cfg.ConnsPerNode < 2 || c.followingLeader.Load() || len(c.nodes.urls()) < 2 || c.followingLeader.Swap(true) {
		return
	}
	if !c.spawn(c.followLeader) {
		c.followingLeader.Store(false)
	}
}

// pickFollower returns a node that is up and not known to lead, "" if there is none.
func (c *Client) pickFollower() string {
	leader, _ := c.finder.leader()
	now := time.Now()
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	for _, i := range rand.Perm(len(c.nodes.all)) {
		if x := c.nodes.all[i]; x.url != leader && !now.Before(x.down) {
			return x.url
		}
	}
	return ""
}

// readLeaderStream reads the stream of one node until it ends, the node leads, or the client is not in use. It reports
// whether anything was received.
func (c *Client) readLeaderStream(node string) (received bool) {
	q := &call{
		op: "follow the leader", method: http.MethodGet, path: apiv1.PathLeaderWatch, internal: true,
		header: http.Header{"Accept": {apiv1.TypeEventStream}}, long: true,
	}
	s, v := c.openAt(c.ctx, q, node, minOpenTimeout)
	if v.err != nil {
		return false
	}
	defer s.close()
	silent := time.AfterFunc(leaderStreamSilence, func() { s.cancel(errNodeUnresponsive) })
	defer silent.Stop()
	from := readerFunc(func(p []byte) (int, error) {
		n, err := s.res.Body.Read(p)
		silent.Reset(leaderStreamSilence)
		if err == nil && c.calledAt.since(time.Now()) >= leaderStreamIdle {
			err = context.Canceled
		}
		return n, err
	})
	received, _, _ = c.readEvents(s, q.op, from, func(e event) (bool, error) {
		l := leaderReport{endpoint: node, askedAt: time.Now()}
		if e.name != apiv1.EventLeader || json.Unmarshal(e.data, &l.info) != nil || l.info.LeaderID == "" {
			return false, nil
		}
		if url, ok := c.nodes.add(l.info.LeaderAddress); ok {
			l.leader = url
		} else if !l.isSelfReport() {
			return false, nil
		}
		c.finder.record(node, l)
		return l.isSelfReport(), nil // another node tells of this one's end
	})
	return received
}
