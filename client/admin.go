package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// A backup or a restore that makes no progress for this long is given up.
const stallTimeout = 30 * time.Second

// AddMember takes a node into the cluster: as a non-voter, which becomes a
// voter once it is caught up, unless the request says otherwise.
func (c *Client) AddMember(ctx context.Context, m apiv1.MemberAdd) (apiv1.MemberResult, error) {
	m.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "add member "+m.ID, http.MethodPost, apiv1.PathMembers, m)
}

// PlanAddMember says what AddMember would do.
func (c *Client) PlanAddMember(ctx context.Context, m apiv1.MemberAdd) (apiv1.Plan, error) {
	m.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to add member "+m.ID, http.MethodPost, apiv1.PathMembers, m)
}

// PlanPatchMember says what PatchMember would do.
func (c *Client) PlanPatchMember(ctx context.Context, id cluster.NodeID, m apiv1.MemberPatch) (apiv1.Plan, error) {
	m.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to change member "+string(id), http.MethodPatch, memberPath(id), m)
}

// PatchMember changes what the request names of a member.
func (c *Client) PatchMember(ctx context.Context, id cluster.NodeID, m apiv1.MemberPatch) (apiv1.MemberResult, error) {
	m.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "change member "+string(id), http.MethodPatch, memberPath(id), m)
}

// Drain takes a node out of the way, until Undrain: it does not lead, is not
// ready, and sends attached clients elsewhere. It goes on voting. The node has
// seen that, and does not lead any more, a moment after the call.
func (c *Client) Drain(ctx context.Context, id cluster.NodeID, d apiv1.Drain) (apiv1.MemberResult, error) {
	d.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "drain "+string(id), http.MethodPost, drainPath(id, "drain"), d)
}

// PlanDrain says what Drain would do, and does nothing. So do the others of their
// calls; the same request with the plan's ID does exactly that.
func (c *Client) PlanDrain(ctx context.Context, id cluster.NodeID, d apiv1.Drain) (apiv1.Plan, error) {
	d.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to drain "+string(id), http.MethodPost, drainPath(id, "drain"), d)
}

// Undrain ends a drain.
func (c *Client) Undrain(ctx context.Context, id cluster.NodeID, d apiv1.Drain) (apiv1.MemberResult, error) {
	d.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "undrain "+string(id), http.MethodPost, drainPath(id, "undrain"), d)
}

// PlanUndrain says what Undrain would do.
func (c *Client) PlanUndrain(ctx context.Context, id cluster.NodeID, d apiv1.Drain) (apiv1.Plan, error) {
	d.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to undrain "+string(id), http.MethodPost, drainPath(id, "undrain"), d)
}

func drainPath(id cluster.NodeID, what string) string {
	return "/admin/nodes/" + url.PathEscape(string(id)) + "/" + what
}

// RemoveMember takes a node out of the cluster for good.
func (c *Client) RemoveMember(ctx context.Context, id cluster.NodeID, m apiv1.MemberRemove) (apiv1.MemberResult, error) {
	m.DryRun = false
	return admin[apiv1.MemberResult](ctx, c, "remove member "+string(id), http.MethodDelete, memberPath(id), m)
}

// PlanRemoveMember says what RemoveMember would do.
func (c *Client) PlanRemoveMember(ctx context.Context, id cluster.NodeID, m apiv1.MemberRemove) (apiv1.Plan, error) {
	m.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan to remove member "+string(id), http.MethodDelete, memberPath(id), m)
}

func memberPath(id cluster.NodeID) string {
	return apiv1.PathMembers + "/" + url.PathEscape(string(id))
}

// AutoFailover says whether the cluster replaces a failed leader by itself, as
// the node asked has applied it.
func (c *Client) AutoFailover(ctx context.Context) (apiv1.AutoFailoverState, error) {
	return decode[apiv1.AutoFailoverState](c.do(ctx, &call{op: "auto-failover", retryClass: localRead, method: http.MethodGet, path: apiv1.PathAuto}))
}

// SetAutoFailover pauses or resumes automatic failover for the whole cluster.
func (c *Client) SetAutoFailover(ctx context.Context, set apiv1.AutoFailover) (apiv1.AutoFailoverState, error) {
	return admin[apiv1.AutoFailoverState](ctx, c, "auto-failover", http.MethodPost, apiv1.PathAuto, set)
}

// admin sends a change of the cluster itself. It is sent again only when it is
// known not to have happened.
func admin[T any](ctx context.Context, c *Client, op, method, path string, body any) (T, error) {
	data, err := json.Marshal(body)
	if err != nil {
		var none T
		return none, fmt.Errorf("%s: encode: %w", op, err)
	}
	return decode[T](c.do(ctx, &call{
		op: op, retryClass: nonIdempotentWrite, method: method, path: path, body: data,
		header: http.Header{"Content-Type": {apiv1.TypeJSON}},
	}))
}

// SnapshotSave writes a backup of the cluster's state to w and gives its size
// in bytes. What was written is whole, and agrees with the node's checksum,
// only when there is no error.
func (c *Client) SnapshotSave(ctx context.Context, w io.Writer) (int64, error) {
	q := &call{op: "snapshot save", retryClass: leaderRead, method: http.MethodGet, path: apiv1.PathSnapshot}
	if _, err := c.Leader(ctx); err != nil { // so that it comes straight from there
		return 0, err
	}
	s, err := c.open(ctx, q, "", c.cfg.Timeout)
	if err != nil {
		return 0, err
	}
	defer s.cancel(nil)
	defer s.res.Body.Close()
	idle := time.AfterFunc(stallTimeout, func() { s.cancel(errNodeUnresponsive) })
	defer idle.Stop()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), &progressReader{r: s.res.Body, idle: idle})
	if err != nil {
		return n, fmt.Errorf("%s: %s: %w", q.op, s.node, firstError(context.Cause(s.ctx), err))
	}
	want := s.res.Trailer.Get(apiv1.HeaderChecksum)
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != want {
		return n, fmt.Errorf("%s: %s: checksum of what arrived is %s, the node's is %q: the backup is damaged", q.op, s.node, got, want)
	}
	return n, nil
}

// SnapshotRestore replaces the keys and settings of the cluster by those of a
// backup. It sends the backup once, to the leader; a connection lost on the
// way is ErrOutcomeUnknown. A damaged backup is refused and changes nothing.
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
	defer cancel()
	ctx, stall := context.WithCancelCause(ctx)
	defer stall(nil)
	idle := time.AfterFunc(stallTimeout, func() { stall(errNodeUnresponsive) })
	defer idle.Stop()
	body := &progressReader{r: r, idle: idle}
	a := &response{node: node}
	res, err := c.send(ctx, q, node, body, -1)
	if err == nil {
		a.status, a.header = res.StatusCode, res.Header
		a.body, err = readAll(res, 0)
	}
	a.err, a.sent = err, body.read.Load()
	v := classify(q, a)
	switch {
	case v.err == nil:
		return decode[apiv1.RestoreResult](a, nil)
	case v.mayHaveApplied:
		return apiv1.RestoreResult{}, q.unknown(v.err)
	}
	return apiv1.RestoreResult{}, q.failed(a, v.err)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
