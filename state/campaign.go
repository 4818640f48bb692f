package state

import (
	"slices"
	"time"

	"northstar/cluster"
)

// RoleCampaign makes a session a candidate for a role. Result.Role shows the outcome: the session holds the role,
// waits for it, or, without Wait, neither. A holder keeps its tenure. A candidate that already waits keeps its place
// and changes its other fields.
type RoleCampaign struct {
	Role          string
	Session       string
	Value         string        // public while the session holds the role
	Wait          bool          // queue behind other candidates
	TakeoverDelay time.Duration // whole milliseconds
	Ineligible    bool          // wait without being elected
	Required      bool          // the role is to have a holder at all times: see Role.Required
}

// RoleWithdraw removes a session from a role's queue. Result.Role is the role afterwards. If the session holds the
// role, it keeps it.
type RoleWithdraw struct {
	Role    string
	Session string
}

// RoleRelease ends a session's tenure, acknowledges that a role was revoked from it, or ends its candidacy.
type RoleRelease struct {
	Role    string
	Session string
	// Token, if not 0, limits the command to the tenure with that token: CodeFenced for a later one.
	Token uint64
}

// RoleTransfer takes a role from its holder. ToSession is the candidate that gets it, "" the next one.
type RoleTransfer struct {
	Role      string
	ToSession string
	// IfStateRevision, if not 0, must be Role.StateRevision: CodeTermStale otherwise.
	IfStateRevision uint64
	// AwaitPreviousHolder delays the next election until the previous holder has stopped (Role.RevokedFrom). Without
	// it, as in logs of older builds, the next candidate is elected immediately.
	AwaitPreviousHolder bool
}

// RoleElect elects the next candidates of roles whose delay is over and that have not changed since.
type RoleElect struct {
	Roles []ElectableRole // 1 to MaxElectableRoles
}

// ElectableRole identifies a vacancy. Without a role it identifies the lock delay of the whole cluster after a
// recovery. Only logs of lockDelayVersion or later have one without a role.
type ElectableRole struct {
	Role          string
	StateRevision uint64 // Role.StateRevision, or the epoch that View.ClusterLockDelay returned
}

func (p *RoleCampaign) check() *cluster.Error {
	return firstError(
		checkUTF8("value", p.Value, MaxRoleValue), checkMillis("takeover_delay_ms", p.TakeoverDelay, 0,
			MaxTakeoverDelay),
		checkRoleSession(p.Role, p.Session))
}

func (p *RoleWithdraw) check() *cluster.Error { return checkRoleSession(p.Role, p.Session) }

func (p *RoleRelease) check() *cluster.Error { return checkRoleSession(p.Role, p.Session) }

func (p *RoleTransfer) check() *cluster.Error {
	if p.ToSession == "" {
		return CheckRole(p.Role)
	}
	return firstError(CheckRole(p.Role), CheckSession("to_session_id", p.ToSession))
}

func (p *RoleElect) check() *cluster.Error {
	return firstError(
		checkRange("roles", len(p.Roles), 1, MaxElectableRoles),
		checkEach(p.Roles, func(e ElectableRole) *cluster.Error {
			if e.Role == "" {
				return nil
			}
			return CheckRole(e.Role)
		}))
}

func checkRoleSession(role, session string) *cluster.Error {
	return firstError(CheckRole(role), CheckSession("session_id", session))
}

func (p *RoleCampaign) apply(w *txn) Result {
	s, err := w.liveSession(p.Session)
	if err != nil {
		return Result{Err: err}
	}
	r := w.role(p.Role)
	if r.Current.Session == p.Session {
		if r.Required != p.Required {
			r.Required = p.Required
			r = w.setRole(r, false)
		}
		return Result{Role: r}
	}
	at := r.find(p.Session)
	c := Candidate{
		Session: s.ID, Name: s.Name, Value: p.Value, TakeoverDelay: p.TakeoverDelay, Ineligible: p.Ineligible,
		Since: w.revision,
	}
	if err := p.admit(w, r, at, &c, s.Owner); err != nil {
		return Result{Err: err, Role: r}
	}
	if at >= 0 {
		c.Since = r.Queue[at].Since
		r.Queue = slices.Clone(r.Queue)
		r.Queue[at] = c
	} else {
		r.Queue = append(slices.Clip(r.Queue), c)
		w.link(s.ID, ownedCandidacy, r.Name)
	}
	r.Required = p.Required
	r = w.setRole(r, false)
	if at < 0 && !p.Wait && r.Waits(p.Session) {
		r = w.withdraw(p.Role, p.Session)
	}
	return Result{Role: r}
}

// admit rejects a candidate if the queue, the list of roles, the state or its identity's share is full. at is its place
// in the queue, or negative.
func (p *RoleCampaign) admit(w *txn, r *Role, at int, c *Candidate, owner string) *cluster.Error {
	growth := c.footprint()
	if at >= 0 {
		growth -= r.Queue[at].footprint()
	} else if len(r.Queue) >= MaxCandidates {
		return cluster.Errorf(cluster.CodeBusy, "%d candidates wait for role %q already", len(r.Queue), p.Role)
	}
	known, _ := w.write.roles.get(p.Role)
	if known == nil {
		growth += r.footprint()
	}
	if leaves := at < 0 || w.version < RolesVersion; leaves && !p.Wait && r.Held() { // the queue, immediately
		growth = 0
	}
	if err := w.room(growth); err != nil {
		return err
	}
	if !r.Held() && len(r.Queue) == 0 { // the record will count to this identity
		err := w.shareLeft(owner, "roles", MaxRolesPerIdentity, func(n share) int { return n.roles })
		if err != nil {
			return err
		}
	}
	if known == nil && !w.evictVacantRoles() {
		return cluster.Errorf(cluster.CodeBusy, "there are %d roles already", MaxRoles)
	}
	return nil
}

func (p *RoleWithdraw) apply(w *txn) Result { return Result{Role: w.withdraw(p.Role, p.Session)} }

func (p *RoleRelease) apply(w *txn) Result {
	r := w.role(p.Role)
	switch {
	case p.Token != 0 && p.Token != r.tokenOf(p.Session):
		err := cluster.Errorf(cluster.CodeFenced, "session %q has no tenure of role %q with token %d to give back",
			p.Session, p.Role, p.Token)
		return Result{Err: err, Role: r}
	case r.Current.Session == p.Session:
		return Result{Role: w.vacate(p.Role, CauseResigned)}
	case r.RevokedFrom == p.Session:
		return Result{Role: w.acknowledgeRevocation(p.Role)}
	case r.Waits(p.Session):
		return Result{Role: w.withdraw(p.Role, p.Session)}
	case r.Held():
		err := cluster.Errorf(cluster.CodeRoleHeld, "role %q is held by %q since token %d", r.Name, r.Current.Holder,
			r.Current.Token)
		return Result{Err: err, Role: r}
	}
	return Result{Err: vacantRole(p.Role)}
}

func (p *RoleTransfer) apply(w *txn) Result {
	r := w.role(p.Role)
	if p.IfStateRevision != 0 && p.IfStateRevision != r.StateRevision {
		return failed(cluster.CodeTermStale, "role %q has changed since the plan was made", p.Role)
	}
	if p.ToSession == "" {
		if !r.Held() {
			return Result{Err: vacantRole(p.Role)}
		}
		p.endHolder(w, r, CauseEvicted)
		return Result{Role: w.setRole(r, false)}
	}
	if r.Current.Session == p.ToSession {
		return Result{Role: r}
	}
	at := r.find(p.ToSession)
	if at < 0 {
		return Result{Err: notFound("to_session_id: session %q is not a candidate for role %q", p.ToSession, p.Role)}
	}
	to := r.Queue[at]
	if to.Ineligible {
		return failed(cluster.CodeTransferFailed, "to_session_id: candidate %q of role %q is not eligible", to.Name,
			p.Role)
	}
	if r.Held() {
		p.endHolder(w, r, CauseTransferred)
	}
	r.Queue = slices.Insert(slices.Delete(slices.Clone(r.Queue), at, at+1), 0, to)
	r.TakeoverPending = false // the operator wants this candidate now
	return Result{Role: w.setRole(r, false)}
}

// endHolder ends the holder's tenure, which invalidates its token. The caller calls setRole.
func (p *RoleTransfer) endHolder(w *txn, r *Role, cause Cause) {
	if p.AwaitPreviousHolder {
		r.RevokedFrom = r.Current.Session
		w.link(r.RevokedFrom, ownedRevocation, r.Name)
	}
	w.endTenure(r, cause)
}

func (p *RoleElect) apply(w *txn) Result {
	for _, e := range p.Roles {
		if e.Role == "" {
			w.endLockDelay(e.StateRevision)
		} else if r := w.role(e.Role); !r.Held() && r.StateRevision == e.StateRevision {
			r.LockDelay = 0
			w.setRole(r, true)
		}
	}
	return Result{Revision: w.revision}
}

func vacantRole(name string) *cluster.Error { return notFound("role: nobody holds %q", name) }
