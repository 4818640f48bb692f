package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// Leader finds the leader by asking all nodes; the highest term wins. It waits for a leader until ctx ends, and
// then returns ErrNoLeader. The result was true a moment ago; only a linearizable read proves that it still is.
func (c *Client) Leader(ctx context.Context) (apiv1.Leader, error) {
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	start := time.Now()
	c.finder.pollAll(ctx)
	c.finder.acquire()
	defer c.finder.release()
	tick := time.NewTicker(minPollInterval) // a report of the same leader is no change, but newer
	defer tick.Stop()
	for {
		s, changed := c.finder.report()
		if !s.askedAt.Before(start) {
			return s.info, nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			cause := context.Cause(ctx)
			if errors.Is(cause, ErrClosed) {
				return apiv1.Leader{}, cause
			}
			problem := cluster.Errorf(cluster.CodeNoLeader, "%s: %w", c.finder.unreachableReason(), cause)
			return apiv1.Leader{}, &Error{Op: "leader", Retry: true, Problem: problem}
		}
	}
}

// searchTimeout bounds the leader search after a node reported no leader.
const searchTimeout = time.Second

// Cluster returns the members and their health as the leader sees them, or as some node does if there is no leader.
func (c *Client) Cluster(ctx context.Context) (apiv1.Cluster, error) {
	view, err := c.cluster(ctx, false)
	if err != nil || view.LeaderID != "" {
		return view, err
	}
	// A partitioned or rejected node knows no leader: ask the others.
	search, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	leader, err := c.Leader(search)
	if err != nil {
		return view, nil
	}
	q := &call{op: "cluster", retryClass: localRead, method: http.MethodGet, path: apiv1.PathCluster}
	if better, err := fromNode[apiv1.Cluster](search, c, leader.LeaderAddress, q); err == nil {
		return better, nil
	}
	return view, nil
}

func (c *Client) cluster(ctx context.Context, background bool) (apiv1.Cluster, error) {
	return get[apiv1.Cluster](ctx, c,
		&call{op: "cluster", retryClass: localRead, path: apiv1.PathCluster, internal: background})
}

// Endpoints lists the known nodes as base URLs: configured and learned ones.
func (c *Client) Endpoints() []string { return c.nodes.urls() }

// Status returns one node's view of itself. endpoint is host:port or URL of any node; only that node is asked,
// once.
func (c *Client) Status(ctx context.Context, endpoint string) (apiv1.Status, error) {
	q := &call{op: "status of " + endpoint, retryClass: localRead, method: http.MethodGet, path: apiv1.PathStatus}
	return fromNode[apiv1.Status](ctx, c, endpoint, q)
}

// SplitBrain returns the latest split-brain report of one node. endpoint is as for Status; "" asks any node.
func (c *Client) SplitBrain(ctx context.Context, endpoint string) (apiv1.SplitBrain, error) {
	q := &call{op: "splitbrain", retryClass: localRead, method: http.MethodGet, path: apiv1.PathSplit}
	if endpoint == "" {
		return decode[apiv1.SplitBrain](c.do(ctx, q))
	}
	return fromNode[apiv1.SplitBrain](ctx, c, endpoint, q)
}

// CheckSplitBrain runs a check now and returns its report, as SplitBrain does.
func (c *Client) CheckSplitBrain(
	ctx context.Context, endpoint string, check apiv1.SplitBrainCheck,
) (apiv1.SplitBrain, error) {
	if endpoint == "" {
		return admin[apiv1.SplitBrain](ctx, c, "splitbrain", http.MethodPost, apiv1.PathCheck, check)
	}
	q := &call{op: "splitbrain", retryClass: nonIdempotentWrite, method: http.MethodPost, path: apiv1.PathCheck}
	if err := q.setJSON(check); err != nil {
		return apiv1.SplitBrain{}, err
	}
	return fromNode[apiv1.SplitBrain](ctx, c, endpoint, q)
}

// fromNode asks only one node, once.
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

// Elections returns the newest elections first, at most limit of them; 0 leaves the number to the server.
func (c *Client) Elections(ctx context.Context, limit int) (apiv1.Elections, error) {
	q := &call{op: "elections", path: apiv1.PathElection, query: params("limit", limitParam(limit))}
	return get[apiv1.Elections](ctx, c, q)
}

// Events returns the nodes' events after since, the Seq of an event or a response's Next; "" asks for all kept
// events. kind, if not empty, selects one event type.
func (c *Client) Events(ctx context.Context, since, kind string) (apiv1.Events, error) {
	q := &call{op: "events", retryClass: localRead, path: apiv1.PathEvents, query: params("since", since, "type", kind)}
	return get[apiv1.Events](ctx, c, q)
}

// AuditQuery selects records of the audit log. The zero value selects the newest 100.
type AuditQuery struct {
	Since string // Seq of a record, or Next of a response: only later records
	Limit int    // 0: the server's default
	Class string // operators or clients; "": both
	Who   string // name of a token or certificate
	Stale bool   // read from the contacted node, also without a leader
}

// Audit returns records of the audit log, oldest first.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (apiv1.Audit, error) {
	query := params("since", q.Since, "class", q.Class, "who", q.Who, "limit", limitParam(q.Limit))
	class := leaderRead
	if q.Stale {
		query.Set("consistency", apiv1.Stale)
		class = localRead
	}
	return get[apiv1.Audit](ctx, c, &call{op: "audit", retryClass: class, path: apiv1.PathAudit, query: query})
}
