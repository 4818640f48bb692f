package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// Leader finds out who leads, by asking all nodes at once: the highest term
// wins. It waits for a leader until ctx ends, and then reports ErrNoLeader.
// What it gives was true a moment ago; only the cluster itself can say that it
// still is (a linearizable read does).
func (c *Client) Leader(ctx context.Context) (apiv1.Leader, error) {
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	start := time.Now()
	c.finder.pollAll(ctx)
	c.finder.acquire()
	defer c.finder.release()
	again := time.NewTicker(minPollInterval) // that the same node leads is no change, and may be news
	defer again.Stop()
	for {
		s, known, changed := c.finder.report()
		if known && !s.askedAt.Before(start) {
			return s.info, nil
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			cause := context.Cause(ctx)
			if errors.Is(cause, ErrClosed) {
				return apiv1.Leader{}, cause
			}
			return apiv1.Leader{}, &Error{Op: "leader", Retry: true, Problem: cluster.Errorf(cluster.CodeNoLeader, "%s: %w", c.finder.unreachableReason(), cause)}
		}
	}
}

// searchTimeout bounds the search for a leader that the node asked first does not
// know.
const searchTimeout = time.Second

// Cluster gives the members and their health, as the leader sees them, or any
// node when there is no leader.
func (c *Client) Cluster(ctx context.Context) (apiv1.Cluster, error) {
	view, err := c.cluster(ctx, false)
	if err != nil || view.LeaderID != "" {
		return view, err
	}
	// A node that is cut off, or that its cluster refuses, knows nobody.
	search, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	leader, err := c.Leader(search)
	if err != nil {
		return view, nil
	}
	node, err := baseURL(leader.LeaderAddress, c.nodes.scheme)
	if err != nil {
		return view, nil
	}
	q := &call{op: "cluster", retryClass: localRead, method: http.MethodGet, path: apiv1.PathCluster}
	if a := c.doAttempt(search, q, node, nil); classify(q, a).err == nil {
		return decode[apiv1.Cluster](a, nil)
	}
	return view, nil
}

func (c *Client) cluster(ctx context.Context, background bool) (apiv1.Cluster, error) {
	return decode[apiv1.Cluster](c.do(ctx, &call{op: "cluster", retryClass: localRead, method: http.MethodGet, path: apiv1.PathCluster, internal: background}))
}

// Endpoints lists the nodes that this client knows by now, as base URLs: those
// given and those learnt.
func (c *Client) Endpoints() []string { return c.nodes.urls() }

// Status gives one node's view of itself. endpoint is host:port or URL, of any
// node; it is asked once and no other is.
func (c *Client) Status(ctx context.Context, endpoint string) (apiv1.Status, error) {
	return fromNode[apiv1.Status](ctx, c, endpoint, &call{op: "status of " + endpoint, retryClass: localRead, method: http.MethodGet, path: apiv1.PathStatus})
}

// SplitBrain gives what one node makes of what the members say of themselves:
// its last report. endpoint is as for Status; "" asks any node.
func (c *Client) SplitBrain(ctx context.Context, endpoint string) (apiv1.SplitBrain, error) {
	q := &call{op: "splitbrain", retryClass: localRead, method: http.MethodGet, path: apiv1.PathSplit}
	if endpoint == "" {
		return decode[apiv1.SplitBrain](c.do(ctx, q))
	}
	return fromNode[apiv1.SplitBrain](ctx, c, endpoint, q)
}

// CheckSplitBrain is SplitBrain, of a check that is made now.
func (c *Client) CheckSplitBrain(ctx context.Context, endpoint string, check apiv1.SplitBrainCheck) (apiv1.SplitBrain, error) {
	if endpoint == "" {
		return admin[apiv1.SplitBrain](ctx, c, "splitbrain", http.MethodPost, apiv1.PathCheck, check)
	}
	body, err := json.Marshal(check)
	if err != nil {
		return apiv1.SplitBrain{}, fmt.Errorf("splitbrain: encode: %w", err)
	}
	return fromNode[apiv1.SplitBrain](ctx, c, endpoint, &call{
		op: "splitbrain", retryClass: nonIdempotentWrite, method: http.MethodPost, path: apiv1.PathCheck, body: body,
		header: http.Header{"Content-Type": {apiv1.TypeJSON}},
	})
}

// fromNode asks one node, once, and no other.
func fromNode[T any](ctx context.Context, c *Client, endpoint string, q *call) (none T, err error) {
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	node, err := baseURL(endpoint, c.nodes.scheme)
	if err != nil {
		return none, err
	}
	a := c.doAttempt(ctx, q, node, nil)
	if v := classify(q, a); v.err != nil {
		if a.err != nil {
			return none, fmt.Errorf("%s: %w", q.op, a.err)
		}
		return none, v.err
	}
	return decode[T](a, nil)
}

// Elections gives the newest elections first, at most limit of them; 0 leaves
// the number to the server.
func (c *Client) Elections(ctx context.Context, limit int) (apiv1.Elections, error) {
	query := url.Values{}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return decode[apiv1.Elections](c.do(ctx, &call{op: "elections", retryClass: leaderRead, method: http.MethodGet, path: apiv1.PathElection, query: query}))
}

// Events gives what happened on the nodes after since, the Seq of an event or
// an answer's Next; "" asks for what is kept. kind, when not empty, asks for
// events of that type only.
func (c *Client) Events(ctx context.Context, since, kind string) (apiv1.Events, error) {
	return decode[apiv1.Events](c.do(ctx, &call{op: "events", retryClass: localRead, method: http.MethodGet, path: apiv1.PathEvents, query: eventsQuery(since, kind)}))
}

func eventsQuery(since, kind string) url.Values {
	query := url.Values{}
	if since != "" {
		query.Set("since", since)
	}
	if kind != "" {
		query.Set("type", kind)
	}
	return query
}

// decode reads the JSON of a successful answer.
func decode[T any](a *response, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(a.body, &v); err != nil {
		return v, fmt.Errorf("decode answer of %s: %w", a.node, err)
	}
	return v, nil
}
