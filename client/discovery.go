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
func (c *Client) Leader(ctx context.Context) (Leader, error) {
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
				return Leader{}, cause
			}
			problem := cluster.Errorf(cluster.CodeNoLeader, "%s: %w", c.finder.unreachableReason(), cause)
			return Leader{}, &Error{Op: "leader", Retry: true, Problem: problem}
		}
	}
}

// searchTimeout bounds the leader search after a node reported no leader.
const searchTimeout = time.Second

// Cluster returns the members and their health as the leader sees them, or as some node does if there is no leader.
func (c *Client) Cluster(ctx context.Context) (Cluster, error) {
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
	if better, err := fromNode[Cluster](search, c, leader.LeaderAddress, q); err == nil {
		return better, nil
	}
	return view, nil
}

func (c *Client) cluster(ctx context.Context, background bool) (Cluster, error) {
	return get[Cluster](ctx, c,
		&call{op: "cluster", retryClass: localRead, path: apiv1.PathCluster, internal: background})
}

// ClusterInfo is the whole of a cluster as its users see it.
type ClusterInfo struct {
	Cluster Cluster           // leader, members and quorum
	Nodes   Counts            // application nodes by status
	Holders map[string]Holder // of the roles that are held
}

// ClusterInfo returns the leader and the members, the number of application nodes, and the holders of all roles. The
// parts are read one after the other: each is current, but not of the same moment. Without a leader it fails; Cluster
// does not.
func (c *Client) ClusterInfo(ctx context.Context) (ClusterInfo, error) {
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	info := ClusterInfo{Holders: map[string]Holder{}}
	var err error
	if info.Cluster, err = c.Cluster(ctx); err != nil {
		return info, err
	}
	if info.Nodes, err = c.NodeCounts(ctx); err != nil {
		return info, err
	}
	for after := ""; ; {
		page, err := c.Roles(ctx, false, after)
		if err != nil {
			return info, err
		}
		for _, role := range page.Items {
			info.Holders[role.Role] = holderOf(role)
		}
		if after = page.Next; after == "" {
			return info, nil
		}
	}
}

// Endpoints lists the known nodes as base URLs: configured and learned ones.
func (c *Client) Endpoints() []string { return c.nodes.urls() }

// Status returns one node's view of itself. endpoint is host:port or URL of any node; only that node is asked,
// once.
func (c *Client) Status(ctx context.Context, endpoint string) (Status, error) {
	q := &call{op: "status of " + endpoint, retryClass: localRead, method: http.MethodGet, path: apiv1.PathStatus}
	return fromNode[Status](ctx, c, endpoint, q)
}

// SplitBrain returns the latest split-brain report of one node. endpoint is as for Status; "" asks any node.
func (c *Client) SplitBrain(ctx context.Context, endpoint string) (SplitBrain, error) {
	q := &call{op: "splitbrain", retryClass: localRead, method: http.MethodGet, path: apiv1.PathSplit}
	if endpoint == "" {
		return decode[SplitBrain](c.do(ctx, q))
	}
	return fromNode[SplitBrain](ctx, c, endpoint, q)
}

// CheckSplitBrain runs a check now and returns its report, as SplitBrain does.
func (c *Client) CheckSplitBrain(
	ctx context.Context, endpoint string, check SplitBrainCheck,
) (SplitBrain, error) {
	if endpoint == "" {
		return admin[SplitBrain](ctx, c, "splitbrain", http.MethodPost, apiv1.PathCheck, check)
	}
	q := &call{op: "splitbrain", retryClass: nonIdempotentWrite, method: http.MethodPost, path: apiv1.PathCheck}
	if err := q.setJSON(check); err != nil {
		return SplitBrain{}, err
	}
	return fromNode[SplitBrain](ctx, c, endpoint, q)
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
	if v := c.classify(q, a); v.err != nil {
		if a.err != nil {
			return none, fmt.Errorf("%s: %w", q.op, a.err)
		}
		return none, v.err
	}
	return decode[T](a, nil)
}

// Elections returns the newest elections first, at most limit of them; 0 leaves the number to the server.
func (c *Client) Elections(ctx context.Context, limit int) (Elections, error) {
	q := &call{op: "elections", path: apiv1.PathElection, query: params("limit", limitParam(limit))}
	return get[Elections](ctx, c, q)
}

// Events returns the nodes' events after since, the Seq of an event or a response's Next; "" asks for all kept
// events. kind, if not empty, selects one event type.
func (c *Client) Events(ctx context.Context, since, kind string) (Events, error) {
	q := &call{op: "events", retryClass: localRead, path: apiv1.PathEvents, query: params("since", since, "type", kind)}
	return get[Events](ctx, c, q)
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
func (c *Client) Audit(ctx context.Context, q AuditQuery) (Audit, error) {
	query := params("since", q.Since, "class", q.Class, "who", q.Who, "limit", limitParam(q.Limit))
	class := leaderRead
	if q.Stale {
		query.Set("consistency", apiv1.Stale)
		class = localRead
	}
	return get[Audit](ctx, c, &call{op: "audit", retryClass: class, path: apiv1.PathAudit, query: query})
}
