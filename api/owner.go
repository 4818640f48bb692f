package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

// A session belongs to the identity that made it. Only that identity and operators may renew, attach, use or end it.
// A session without an owner was made while some member could not record one, and is any client's.

// mayUse reports whether a caller may use a session.
func (i identity) mayUse(s *state.Session) bool {
	kind, name, _ := strings.Cut(s.Owner, " ")
	return s.Owner == "" || i.role == token.Operator || kind == string(i.role) && name == i.name || i.wasOwner(s)
}

// wasOwner reports whether an earlier build made a lease for a certificate like the caller's. That build did not tell
// certificates without a usable common name apart: their leases are any such client's until they end.
func (i identity) wasOwner(s *state.Session) bool {
	if s.Lease == 0 || !strings.HasPrefix(i.name, digestName) {
		return false
	}
	kind, name, _ := strings.Cut(s.Owner, " ")
	return kind == string(i.role) && (name == "cert" || name == "cert-")
}

// userOf returns as whom the caller uses the leases of a command. The state compares that with their owner.
func (k *Call) userOf(cmd *state.Command) string {
	if strings.HasPrefix(k.c.caller.name, digestName) {
		var ids []int64
		switch {
		case cmd.LeaseRevoke != nil:
			ids = []int64{cmd.LeaseRevoke.ID}
		case cmd.Txn != nil:
			ids = leasesOf(cmd.Txn, nil)
		}
		view := k.c.s.reads.View()
		for _, id := range ids {
			if lease, ok := view.Lease(id); ok && k.c.caller.wasOwner(lease) {
				return lease.Owner
			}
		}
	}
	return k.c.caller.header()
}

// leasesOf appends the leases to which a transaction attaches keys.
func leasesOf(p *state.Txn, ids []int64) []int64 {
	for _, ops := range [][]state.Op{p.Success, p.Failure} {
		for i := range ops {
			switch op := &ops[i]; {
			case op.Put != nil && op.Put.Lease != 0:
				ids = append(ids, op.Put.Lease)
			case op.Txn != nil:
				ids = leasesOf(op.Txn, ids)
			}
		}
	}
	return ids
}

// checkOwner refuses sessions of another identity. The leader calls it. The owner of a session never changes, and its
// ID is never used again, so the session of any view tells it.
func (c *request) checkOwner(ctx context.Context, ids ...string) error {
	view, current := c.s.reads.View(), false
	for _, id := range ids {
		s, ok := view.Session(id)
		if !ok && !current && c.caller.role != token.Operator {
			// A new leader may not have applied its creation yet.
			if err := c.s.reads.ReadBarrier(ctx); err != nil {
				return err
			}
			view, current = c.s.reads.View(), true
			s, ok = view.Session(id)
		}
		if ok && !c.caller.mayUse(s) {
			return notOwner(s)
		}
	}
	return nil
}

func notOwner(s *state.Session) *cluster.Error {
	return cluster.Errorf(cluster.CodeForbidden, "session %q belongs to another identity: only that and operators may use it",
		s.ID)
}

// recordRevoke has an operator's end of another identity's lease recorded, unlike other writes of other protocols. This
// node may not know the lease yet: whose it is, is then unknown.
func (k *Call) recordRevoke(cmd *state.Command) {
	if cmd.LeaseRevoke == nil {
		return
	}
	if lease, ok := k.c.s.reads.View().Lease(cmd.LeaseRevoke.ID); !ok || k.c.isForeign(lease) {
		k.c.auditFields.request = fmt.Sprintf(`{"ID":"%d"}`, cmd.LeaseRevoke.ID)
		k.c.route.SkipAudit = false
	}
}

// recordHold records that an operator's connection ends another identity's lease. It does so immediately: a connection
// may last for months.
func (k *Call) recordHold(session string) {
	lease, ok := k.c.s.reads.View().Session(session)
	if !ok || !k.c.isForeign(lease) || k.c.audited {
		return
	}
	k.c.auditFields.request = fmt.Sprintf(`{"ID":"%d"}`, lease.Lease)
	k.c.route.SkipAudit = false
	k.c.audit(http.StatusOK)
}

// isForeign reports whether a session belongs to another identity than the caller.
func (c *request) isForeign(s *state.Session) bool {
	return s.Owner != "" && s.Owner != c.caller.header()
}

// checkCommand is checkOwner for the session that a command uses.
func (c *request) checkCommand(ctx context.Context, cmd *state.Command) error {
	session := ""
	switch cmd.Kind {
	case state.KindPut:
		session = cmd.Put.Session
	case state.KindSessionEnd:
		return c.checkOwner(ctx, cmd.SessionEnd.IDs...)
	case state.KindRoleCampaign:
		session = cmd.RoleCampaign.Session
	case state.KindRoleRelease:
		session = cmd.RoleRelease.Session
	case state.KindAppNodePut:
		session = cmd.AppNodePut.Node.Session
	}
	if session == "" {
		return nil
	}
	return c.checkOwner(ctx, session)
}

// attachedSession looks at the state less and less often: any client may ask for a session that never was.
const (
	ownerWait    = apiv1.DefaultTimeoutMS * time.Millisecond
	minOwnerPoll = 5 * time.Millisecond
	maxOwnerPoll = 160 * time.Millisecond
)

// attachedSession returns the session to which the caller attaches, nil if it has ended. This node need not lead: it
// waits until it has applied what made the session.
func (c *request) attachedSession(id string) (*state.Session, error) {
	step := minOwnerPoll
	for deadline := time.Now().Add(ownerWait); ; step = min(2*step, maxOwnerPoll) {
		view := c.s.reads.View()
		s, ok := view.Session(id)
		made, possible := view.MadeBefore(id)
		switch {
		case ok && !c.caller.mayUse(s):
			return nil, notOwner(s)
		case ok:
			return s, nil
		case made, !possible:
			return nil, nil
		case time.Now().After(deadline):
			return nil, problem.NoLeader("node %s does not know session %q yet", c.s.deps.Node.ID, id)
		}
		select {
		case <-time.After(step):
		case <-c.r.Context().Done():
			return nil, c.r.Context().Err()
		}
	}
}
