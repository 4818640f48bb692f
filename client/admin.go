package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// stallTimeout ends a backup or a restore that makes no progress.
const stallTimeout = 30 * time.Second

// AddMember adds a node to the cluster. It joins as a non-voter and becomes a voter once it has caught up, unless
// the request says otherwise.
func (c *Client) AddMember(ctx context.Context, m apiv1.MemberAdd) (apiv1.MemberResult, error) {
	m.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "add member "+m.ID, http.MethodPost, apiv1.PathMembers, m)
}

// PlanAddMember returns what AddMember would do.
func (c *Client) PlanAddMember(ctx context.Context, m apiv1.MemberAdd) (apiv1.Plan, error) {
	m.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to add member "+m.ID, http.MethodPost, apiv1.PathMembers, m)
}

// PlanPatchMember returns what PatchMember would do.
func (c *Client) PlanPatchMember(ctx context.Context, id cluster.NodeID, m apiv1.MemberPatch) (apiv1.Plan, error) {
	m.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to change member "+string(id), http.MethodPatch, memberPath(id), m)
}

// PatchMember changes the given settings of a member.
func (c *Client) PatchMember(ctx context.Context, id cluster.NodeID, m apiv1.MemberPatch) (apiv1.MemberResult, error) {
	m.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "change member "+string(id), http.MethodPatch, memberPath(id), m)
}

// Drain drains a node until Undrain: it does not lead, is not ready, and sends attached clients to other nodes. It
// still votes. The node has applied this and stopped leading shortly after the call.
func (c *Client) Drain(ctx context.Context, id cluster.NodeID, d apiv1.Drain) (apiv1.MemberResult, error) {
	d.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "drain "+string(id), http.MethodPost, drainPath(id, "drain"), d)
}

// PlanDrain returns what Drain would do, and changes nothing. The other Plan methods do the same for their calls.
// The same request with the ID of the plan carries the plan out.
func (c *Client) PlanDrain(ctx context.Context, id cluster.NodeID, d apiv1.Drain) (apiv1.Plan, error) {
	d.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to drain "+string(id), http.MethodPost, drainPath(id, "drain"), d)
}

// Undrain ends a drain.
func (c *Client) Undrain(ctx context.Context, id cluster.NodeID, d apiv1.Drain) (apiv1.MemberResult, error) {
	d.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "undrain "+string(id), http.MethodPost, drainPath(id, "undrain"), d)
}

// PlanUndrain returns what Undrain would do.
func (c *Client) PlanUndrain(ctx context.Context, id cluster.NodeID, d apiv1.Drain) (apiv1.Plan, error) {
	d.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to undrain "+string(id), http.MethodPost, drainPath(id, "undrain"), d)
}

func drainPath(id cluster.NodeID, what string) string {
	return "/admin/nodes/" + url.PathEscape(string(id)) + "/" + what
}

// RemoveMember permanently removes a node from the cluster.
func (c *Client) RemoveMember(
	ctx context.Context, id cluster.NodeID, m apiv1.MemberRemove,
) (apiv1.MemberResult, error) {
	m.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "remove member "+string(id), http.MethodDelete, memberPath(id), m)
}

// PlanRemoveMember returns what RemoveMember would do.
func (c *Client) PlanRemoveMember(ctx context.Context, id cluster.NodeID, m apiv1.MemberRemove) (apiv1.Plan, error) {
	m.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to remove member "+string(id), http.MethodDelete, memberPath(id), m)
}

func memberPath(id cluster.NodeID) string {
	return apiv1.PathMembers + "/" + url.PathEscape(string(id))
}

// AutoFailover reports whether automatic failover is on, according to the contacted node.
func (c *Client) AutoFailover(ctx context.Context) (apiv1.AutoFailoverState, error) {
	return get[apiv1.AutoFailoverState](ctx, c, &call{op: "auto-failover", retryClass: localRead, path: apiv1.PathAuto})
}

// SetAutoFailover pauses or resumes automatic failover for the whole cluster.
func (c *Client) SetAutoFailover(ctx context.Context, set apiv1.AutoFailover) (apiv1.AutoFailoverState, error) {
	return admin[apiv1.AutoFailoverState](ctx, c, "auto-failover", http.MethodPost, apiv1.PathAuto, set)
}

// SnapshotSave writes a backup of the cluster's state to w and returns its size in bytes. Without an error, the
// backup is complete and its checksum matches the node's.
func (c *Client) SnapshotSave(ctx context.Context, w io.Writer) (int64, error) {
	q := &call{op: "snapshot save", retryClass: leaderRead, method: http.MethodGet, path: apiv1.PathSnapshot}
	if _, err := c.Leader(ctx); err != nil { // so that the leader itself sends the backup
		return 0, err
	}
	s, err := c.open(ctx, q, "", c.cfg.Timeout)
	if err != nil {
		return 0, err
	}
	defer s.close()
	idle := time.AfterFunc(stallTimeout, func() { s.cancel(errNodeUnresponsive) })
	defer idle.Stop()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), &progressReader{r: s.res.Body, idle: idle})
	if err != nil {
		return n, fmt.Errorf("%s: %s: %w", q.op, s.node, cmp.Or(context.Cause(s.ctx), err))
	}
	want := s.res.Trailer.Get(apiv1.HeaderChecksum)
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != want {
		return n, fmt.Errorf("%s: %s: backup is damaged: checksum must be %q (got %s)", q.op, s.node, want, got)
	}
	return n, nil
}

// SnapshotRestore replaces the keys and settings of the cluster by those of a backup. It sends the backup once, to
// the leader. If the connection is lost, the error is ErrOutcomeUnknown. A damaged backup is rejected and changes
// nothing.
func (c *Client) SnapshotRestore(ctx context.Context, r io.Reader) (apiv1.RestoreResult, error) {
	q := &call{
		op: "snapshot restore", retryClass: nonIdempotentWrite, method: http.MethodPost, path: apiv1.PathRestore,
		header: http.Header{"Content-Type": {apiv1.TypeBinary}},
	}
	if _, err := c.Leader(ctx); err != nil {
		return apiv1.RestoreResult{}, err
	}
	node, _ := c.finder.leader()
	ctx, cancel := c.closeContext(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(stallTimeout, func() { cancel(errNodeUnresponsive) })
	defer idle.Stop()
	body := &progressReader{r: r, idle: idle}
	res, err := c.send(ctx, q, node, body, -1)
	a := newResponse(node, 0, res, err)
	a.sent = body.read.Load()
	return decode[apiv1.RestoreResult](a, q.conclude(a, classify(q, a)))
}
