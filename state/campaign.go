package state

import (
	"slices"
	"time"
	"unicode/utf8"

	"northstar/cluster"
)

// RoleCampaign is a session's wish to hold a role. Result.Role tells what became
// of it: the session holds the role, waits for it, or, without Wait, neither. A
// holder keeps its tenure. A candidate that waits already keeps its place; the
// other fields are taken over.
type RoleCampaign struct {
	Role          string
	Session       string
	Value         string        // for everybody to see while it holds the role
	Wait          bool          // queue behind others
	TakeoverDelay time.Duration // whole milliseconds
	Ineligible    bool          // wait without being elected
}

// RoleWithdraw takes a session out of a role's queue. Result.Role is the role
// after it, which the session may hold by then: that stays.
type RoleWithdraw struct {
	Role    string
	Session string
}

// RoleRelease gives a role back, or, when it was taken from the session, says that
// this is known, or, when the session only waits for it, gives back the place in
// the queue.
type RoleRelease struct {
	Role    string
	Session string
	// Token, when not 0, is that of the only tenure that is given back, or known to be
	// lost: a command that comes late must not end a later one. CodeFenced otherwise.
	Token uint64
}

// RoleTransfer takes a role from its holder. To names the candidate that gets
// it, "" the next one.
type RoleTransfer struct {
	Role      string
	ToSession string
	// IfStateRevision, when not 0, must be the role's Since: CodeTermStale otherwise.
	IfStateRevision uint64
	// AwaitPreviousHolder makes the next holder wait for the last one (Role.Parted). Without it, as
	// in logs of older builds, it is elected at once.
	AwaitPreviousHolder bool
}

// RoleElect elects the next candidates of vacant roles whose takeover delay is
// over, or that have waited for long enough for who may believe to hold them. It has
// no effect on a role that has changed since.
type RoleElect struct {
	Roles []ElectableRole // 1 to MaxElectableRoles
}

// ElectableRole is the time without a holder after a change of a role. Without a role it
// is that of all after a recovery: logs that have such a one need lockDelayVersion for
// that.
type ElectableRole struct {
	Role          string
	StateRevision uint64 // Role.Since, or what View.Awaits gave
}

func (p *RoleCampaign) check() *cluster.Error {
	if len(p.Value) > MaxRoleValue || !utf8.ValidString(p.Value) {
		return cluster.Errorf(cluster.CodeBadRequest, "value: want at most %d bytes of UTF-8, got %d bytes", MaxRoleValue, len(p.Value))
	}
	if p.TakeoverDelay < 0 || p.TakeoverDelay > MaxTakeoverDelay || p.TakeoverDelay%time.Millisecond != 0 {
		return cluster.Errorf(cluster.CodeBadRequest, "takeover_delay_ms: want 0 to %d, got %d", MaxTakeoverDelay.Milliseconds(), p.TakeoverDelay.Milliseconds())
	}
	return checkRoleSession(p.Role, p.Session)
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
	if n := len(p.Roles); n < 1 || n > MaxElectableRoles {
		return cluster.Errorf(cluster.CodeBadRequest, "vacancies: want 1 to %d, got %d", MaxElectableRoles, n)
	}
	for _, v := range p.Roles {
		if v.Role == "" {
			continue
		}
		if err := CheckRole(v.Role); err != nil {
			return err
		}
	}
	return nil
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
		return Result{Role: r}
	}
	at := r.find(p.Session)
	if err := p.admit(w, r, at >= 0); err != nil {
		return Result{Err: err, Role: r}
	}
	c := Candidate{Session: s.ID, Name: s.Name, Value: p.Value, TakeoverDelay: p.TakeoverDelay, Ineligible: p.Ineligible, Since: w.revision}
	if at >= 0 {
		c.Since = r.Queue[at].Since
		r.Queue = slices.Clone(r.Queue)
		r.Queue[at] = c
	} else {
		r.Queue = append(slices.Clip(r.Queue), c)
		w.link(s.ID, ownedCandidacy, r.Name)
	}
	r = w.setRole(r, false)
	if at < 0 && !p.Wait && r.Waits(p.Session) {
		r = w.withdraw(p.Role, p.Session)
	}
	return Result{Role: r}
}

// admit refuses a candidate that there is no room for.
func (p *RoleCampaign) admit(w *txn, r *Role, waits bool) *cluster.Error {
	if !waits && len(r.Queue) >= MaxCandidates {
		return cluster.Errorf(cluster.CodeBusy, "%d candidates wait for role %q already", len(r.Queue), p.Role)
	}
	if _, known := w.writeRoles().Get([]byte(p.Role)); !known && !w.evictVacantRoles() {
		return cluster.Errorf(cluster.CodeBusy, "there are %d roles already", MaxRoles)
	}
	return nil
}

func (p *RoleWithdraw) apply(w *txn) Result { return Result{Role: w.withdraw(p.Role, p.Session)} }

func (p *RoleRelease) apply(w *txn) Result {
	r := w.role(p.Role)
	switch {
	case p.Token != 0 && p.Token != r.tokenOf(p.Session):
		return Result{Err: cluster.Errorf(cluster.CodeFenced, "session %q has no tenure of role %q with token %d to give back", p.Session, p.Role, p.Token), Role: r}
	case r.Current.Session == p.Session:
		return Result{Role: w.vacate(p.Role, CauseResigned)}
	case r.RevokedFrom == p.Session:
		return Result{Role: w.acknowledgeRevocation(p.Role)}
	case r.Waits(p.Session):
		return Result{Role: w.withdraw(p.Role, p.Session)}
	case r.Held():
		return Result{Err: roleHeld(r), Role: r}
	}
	return Result{Err: vacantRole(p.Role)}
}

func (p *RoleTransfer) apply(w *txn) Result {
	r := w.role(p.Role)
	if p.IfStateRevision != 0 && p.IfStateRevision != r.StateRevision {
		return Result{Err: cluster.Errorf(cluster.CodeTermStale, "role %q has changed since the plan was made", p.Role)}
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
		return Result{Err: cluster.Errorf(cluster.CodeTransferFailed, "to_session_id: candidate %q of role %q is not eligible", to.Name, p.Role)}
	}
	if r.Held() {
		p.endHolder(w, r, CauseTransferred)
	}
	r.Queue = slices.Insert(slices.Delete(slices.Clone(r.Queue), at, at+1), 0, to)
	r.TakeoverPending = false // it is to have the role now
	return Result{Role: w.setRole(r, false)}
}

// endHolder ends the holder's tenure, and with it what its token is good for. The
// caller puts the role back.
func (p *RoleTransfer) endHolder(w *txn, r *Role, cause Cause) {
	if p.AwaitPreviousHolder {
		w.revoke(r)
	}
	w.endTenure(r, cause)
}

func (p *RoleElect) apply(w *txn) Result {
	for _, v := range p.Roles {
		if v.Role == "" {
			w.endLockDelay(v.StateRevision)
		} else if r := w.role(v.Role); !r.Held() && r.StateRevision == v.StateRevision {
			r.LockDelay = 0
			w.setRole(r, true)
		}
	}
	return Result{Revision: w.revision}
}

func vacantRole(name string) *cluster.Error { return notFound("role: nobody holds %q", name) }

func roleHeld(r *Role) *cluster.Error {
	return cluster.Errorf(cluster.CodeRoleHeld, "role %q is held by %q since token %d", r.Name, r.Current.Holder, r.Current.Token)
}
