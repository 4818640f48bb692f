package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// stallTimeout ends a backup or a restore that makes no progress.
const stallTimeout = 30 * time.Second

// restoreTimeout is how long a cluster may take for a restore after it has received the backup. Without it, only the
// context would end the wait for a node that hangs. If its machine is lost, TCP ends it.
const restoreTimeout = 10 * time.Minute

// AddMember adds a node to the cluster. It joins as a non-voter and becomes a voter once it has caught up, unless
// the request says otherwise.
func (c *Client) AddMember(ctx context.Context, m MemberAdd) (MemberResult, error) {
	m.DryRun = false
	return admin[MemberResult](ctx, c, "add member "+m.ID, http.MethodPost, apiv1.PathMembers, m)
}

// PlanAddMember returns what AddMember would do.
func (c *Client) PlanAddMember(ctx context.Context, m MemberAdd) (Plan, error) {
	m.DryRun = true
	return admin[Plan](ctx, c, "plan to add member "+m.ID, http.MethodPost, apiv1.PathMembers, m)
}

// PlanPatchMember returns what PatchMember would do.
func (c *Client) PlanPatchMember(ctx context.Context, id NodeID, m MemberPatch) (Plan, error) {
	m.DryRun = true
	return admin[Plan](ctx, c, "plan to change member "+string(id), http.MethodPatch, memberPath(id), m)
}

// PatchMember changes the given settings of a member.
func (c *Client) PatchMember(ctx context.Context, id NodeID, m MemberPatch) (MemberResult, error) {
	m.DryRun = false
	return admin[MemberResult](ctx, c, "change member "+string(id), http.MethodPatch, memberPath(id), m)
}

// Drain drains a node until Undrain: it does not lead, is not ready, and sends attached clients to other nodes. It
// still votes. The node has applied this and stopped leading shortly after the call.
func (c *Client) Drain(ctx context.Context, id NodeID, d Drain) (MemberResult, error) {
	d.DryRun = false
	return admin[MemberResult](ctx, c, "drain "+string(id), http.MethodPost, drainPath(id, "drain"), d)
}

// PlanDrain returns what Drain would do, and changes nothing. The other Plan methods do the same for their calls.
// The same request with the ID of the plan carries the plan out.
func (c *Client) PlanDrain(ctx context.Context, id NodeID, d Drain) (Plan, error) {
	d.DryRun = true
	return admin[Plan](ctx, c, "plan to drain "+string(id), http.MethodPost, drainPath(id, "drain"), d)
}

// Undrain ends a drain.
func (c *Client) Undrain(ctx context.Context, id NodeID, d Drain) (MemberResult, error) {
	d.DryRun = false
	return admin[MemberResult](ctx, c, "undrain "+string(id), http.MethodPost, drainPath(id, "undrain"), d)
}

// PlanUndrain returns what Undrain would do.
func (c *Client) PlanUndrain(ctx context.Context, id NodeID, d Drain) (Plan, error) {
	d.DryRun = true
	return admin[Plan](ctx, c, "plan to undrain "+string(id), http.MethodPost, drainPath(id, "undrain"), d)
}

func drainPath(id NodeID, what string) string {
	return "/admin/nodes/" + url.PathEscape(string(id)) + "/" + what
}

// RemoveMember permanently removes a node from the cluster.
func (c *Client) RemoveMember(
	ctx context.Context, id NodeID, m MemberRemove,
) (MemberResult, error) {
	m.DryRun = false
	return admin[MemberResult](ctx, c, "remove member "+string(id), http.MethodDelete, memberPath(id), m)
}

// PlanRemoveMember returns what RemoveMember would do.
func (c *Client) PlanRemoveMember(ctx context.Context, id NodeID, m MemberRemove) (Plan, error) {
	m.DryRun = true
	return admin[Plan](ctx, c, "plan to remove member "+string(id), http.MethodDelete, memberPath(id), m)
}

func memberPath(id NodeID) string {
	return apiv1.PathMembers + "/" + url.PathEscape(string(id))
}

// AutoFailover reports whether automatic failover is on, according to the contacted node.
func (c *Client) AutoFailover(ctx context.Context) (AutoFailoverState, error) {
	return get[AutoFailoverState](ctx, c, &call{op: "auto-failover", retryClass: localRead, path: apiv1.PathAuto})
}

// SetAutoFailover pauses or resumes automatic failover for the whole cluster.
func (c *Client) SetAutoFailover(ctx context.Context, set AutoFailover) (AutoFailoverState, error) {
	return admin[AutoFailoverState](ctx, c, "auto-failover", http.MethodPost, apiv1.PathAuto, set)
}

// PlanSetAutoFailover returns what SetAutoFailover would do, and changes nothing.
func (c *Client) PlanSetAutoFailover(ctx context.Context, set AutoFailover) (Plan, error) {
	set.DryRun = true
	return admin[Plan](ctx, c, "plan auto-failover", http.MethodPost, apiv1.PathAuto, set)
}

// SnapshotSave writes a backup of the cluster's state to w and returns its size in bytes. Without an error, the
// backup is complete and its checksum matches the node's.
func (c *Client) SnapshotSave(ctx context.Context, w io.Writer) (int64, error) {
	q := &call{
		op: "snapshot save", retryClass: leaderRead, method: http.MethodGet, path: apiv1.PathSnapshot, long: true,
	}
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

// SnapshotRestore replaces the keys and settings of the cluster by those of a backup. It sends the backup once, and
// then waits for up to ten minutes. If the connection is lost, or the time is over, the error is ErrOutcomeUnknown. A
// damaged backup is rejected and changes nothing.
func (c *Client) SnapshotRestore(ctx context.Context, r io.Reader) (RestoreResult, error) {
	q := &call{
		op: "snapshot restore", retryClass: nonIdempotentWrite, method: http.MethodPost, path: apiv1.PathRestore,
		header: http.Header{"Content-Type": {apiv1.TypeBinary}},
	}
	if _, err := c.Leader(ctx); err != nil {
		return RestoreResult{}, err
	}
	node, _ := c.finder.leader()
	ctx, cancel := c.closeContext(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(stallTimeout, func() { cancel(errNodeUnresponsive) })
	defer idle.Stop()
	body := &progressReader{r: r, idle: idle, afterEnd: restoreTimeout}
	res, err := c.send(ctx, q, node, body, -1)
	a := newResponse(node, 0, res, err)
	a.sent = body.read.Load()
	return decode[RestoreResult](a, q.conclude(a, c.classify(q, a)))
}

// Transfer moves leadership, and returns once the target is observed as leader. The context must outlast the
// transfer's own timeout (30 s by default).
func (c *Client) Transfer(ctx context.Context, t Transfer) (TransferResult, error) {
	t.DryRun = false
	return admin[TransferResult](ctx, c, "transfer", http.MethodPost, apiv1.PathTransfer, t)
}

// PlanTransfer returns what Transfer would do, and changes nothing. The same request with the plan's ID carries the
// plan out.
func (c *Client) PlanTransfer(ctx context.Context, t Transfer) (Plan, error) {
	t.DryRun = true
	return admin[Plan](ctx, c, "plan a transfer", http.MethodPost, apiv1.PathTransfer, t)
}

// Failover moves leadership through any node that responds. The leader transfers it if possible; otherwise an
// election does.
func (c *Client) Failover(ctx context.Context, f Failover) (TransferResult, error) {
	f.DryRun = false
	return sendToResponding[TransferResult](ctx, c, "failover", apiv1.PathFailover, f)
}

// PlanFailover returns what Failover would do, and changes nothing.
func (c *Client) PlanFailover(ctx context.Context, f Failover) (Plan, error) {
	f.DryRun = true
	return sendToResponding[Plan](ctx, c, "plan a failover", apiv1.PathFailover, f)
}

// EmergencyFailover makes a node start an election immediately, through any node that responds. If the voters
// refuse, the *Problem in the error has their votes.
func (c *Client) EmergencyFailover(ctx context.Context, e Emergency) (TransferResult, error) {
	e.DryRun = false
	return sendToResponding[TransferResult](ctx, c, "emergency failover", apiv1.PathEmergency, e)
}

// PlanEmergency returns what EmergencyFailover would do, and changes nothing.
func (c *Client) PlanEmergency(ctx context.Context, e Emergency) (Plan, error) {
	e.DryRun = true
	return sendToResponding[Plan](ctx, c, "plan an emergency failover", apiv1.PathEmergency, e)
}

// Recover recovers from a permanent loss of quorum, through any survivor. The context should last for a minute.
func (c *Client) Recover(ctx context.Context, r Recover) (RecoverResult, error) {
	r.DryRun = false
	return sendToResponding[RecoverResult](ctx, c, "recover", apiv1.PathRecover, r)
}

// PlanRecover returns what Recover would do, and changes nothing.
func (c *Client) PlanRecover(ctx context.Context, r Recover) (Plan, error) {
	r.DryRun = true
	return sendToResponding[Plan](ctx, c, "plan a recovery", apiv1.PathRecover, r)
}

// TransferRole hands a role over to one of its candidates. The node waits some seconds for the previous holder. If
// it still waits after that, the message of the result says so. The context should last for half a minute.
func (c *Client) TransferRole(ctx context.Context, role string, t RoleTransfer) (RoleMove, error) {
	t.DryRun = false
	return admin[RoleMove](ctx, c, "transfer role "+role, http.MethodPost, adminRolePath(role)+"/transfer", t)
}

// PlanTransferRole returns what TransferRole would do, and changes nothing.
func (c *Client) PlanTransferRole(ctx context.Context, role string, t RoleTransfer) (Plan, error) {
	t.DryRun = true
	path := adminRolePath(role) + "/transfer"
	return admin[Plan](ctx, c, "plan to transfer role "+role, http.MethodPost, path, t)
}

// EvictRole takes a role from its holder. The next candidate, if there is one, is elected, as by TransferRole.
func (c *Client) EvictRole(ctx context.Context, role string, e RoleEvict) (RoleMove, error) {
	e.DryRun = false
	return admin[RoleMove](ctx, c, "evict from role "+role, http.MethodDelete, adminRolePath(role), e)
}

// PlanEvictRole returns what EvictRole would do, and changes nothing.
func (c *Client) PlanEvictRole(ctx context.Context, role string, e RoleEvict) (Plan, error) {
	e.DryRun = true
	return admin[Plan](ctx, c, "plan to evict from role "+role, http.MethodDelete, adminRolePath(role), e)
}

func adminRolePath(role string) string { return "/admin/roles/" + url.PathEscape(role) }

// respondingRounds is how often all nodes are asked for one that responds. On a busy machine one may take longer than
// probeTimeout.
const respondingRounds = 5

// sendToResponding sends an admin call that any node accepts to a node that has just responded, because the leader may
// be hung. It tries another node only if the request was not sent.
func sendToResponding[T any](ctx context.Context, c *Client, op, path string, body any) (T, error) {
	var none T
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	q := &call{op: op, retryClass: nonIdempotentWrite, method: http.MethodPost, path: path}
	if err := q.setJSON(body); err != nil {
		return none, err
	}
	var last error
	for slow, round := true, 0; slow && round < respondingRounds && ctx.Err() == nil; round++ {
		slow = false
		for node, err := range c.finder.askAll(ctx, c.nodes.urls()) {
			if err != nil {
				slow = slow || errors.Is(err, context.DeadlineExceeded)
				continue
			}
			var sent atomic.Bool
			a := c.doAttempt(ctx, q, node, &sent)
			v := c.classify(q, a)
			if !v.noResponse || a.sent {
				return decode[T](a, q.conclude(a, v))
			}
			last = a.err
		}
	}
	if last == nil {
		last = errors.New(c.finder.unreachableReason())
	}
	problem := cluster.Errorf(cluster.CodeNoLeader, "no node responds: %w", cmp.Or(context.Cause(ctx), last))
	return none, &Error{Op: op, Retry: true, Problem: problem}
}
