package api

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/api/attach"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

// Sessions keeps the session timers while this node leads. Its methods may be called by any goroutine.
type Sessions interface {
	attach.Sessions
	// Renew renews sessions for their TTL, counted from the call. CodeNoLeader: nothing was renewed.
	Renew(ctx context.Context, ids []string) (state.Renewed, error)
	// Remaining returns how long a session has left, as far as this node knows.
	Remaining(s *state.Session) time.Duration
	// TrackWaiter keeps a candidate in its queue until release is called. inDoubt: its campaign may still be applied.
	TrackWaiter(role, session string) (release func(inDoubt bool))
	// Withdraw removes a candidate from its queue, unless another request waits for it: then the role is nil.
	Withdraw(ctx context.Context, role, session string) (*state.Role, error)
}

// createSession may be repeated: a session whose ID is lost holds nothing and expires after its TTL.
func createSession(c *request, in apiv1.SessionCreate) error {
	ttl, most := int64(apiv1.DefaultSessionTTLMS), state.MaxSessionTTL.Milliseconds()
	if in.TTLMS != nil {
		ttl = *in.TTLMS
	}
	if least := state.MinSessionTTL.Milliseconds(); ttl < least || ttl > most {
		return problem.BadRequest("ttl_ms: must be %d to %d (got %d)", least, most, ttl)
	}
	nonce, err := c.s.nonce()
	if err != nil {
		return err
	}
	cmd := state.Command{Kind: state.KindSessionCreate, SessionCreate: &state.SessionCreate{
		Nonce: nonce, Name: in.Name, TTL: time.Duration(ttl) * time.Millisecond, Meta: in.Meta,
		Owner: c.caller.header(),
	}}
	r, err := c.proposeValid(cmd, true)
	if err != nil {
		return err
	}
	return c.reply(apiv1.SessionCreated{SessionID: r.Session.ID, TTLMS: r.Session.TTL.Milliseconds()})
}

// nonce returns the part of a session ID that is hard to guess.
func (s *Server) nonce() (string, error) {
	const letters = "abcdefghijklmnopqrstuvwxyz012345" // 32: five bits each
	var b [16]byte
	s.entropy.Lock()
	_, err := io.ReadFull(s.deps.Entropy, b[:])
	s.entropy.Unlock()
	if err != nil {
		return "", err
	}
	for i := range b {
		b[i] = letters[b[i]%32]
	}
	return string(b[:]), nil
}

func renewSession(c *request, _ struct{}) error {
	if err := state.CheckSession("id", c.param); err != nil {
		return err
	}
	out, err := c.renew([]string{c.param})
	switch {
	case err != nil:
		return err
	case len(out.Revoked) > 0:
		p := out.Revoked[0]
		return problem.RoleRevoked(p.Session, p.Role, p.Token)
	case len(out.Alive) == 0:
		return problem.SessionEnded(c.param)
	}
	body := strconv.AppendInt([]byte(`{"ttl_ms":`), out.Alive[0].TTL.Milliseconds(), 10)
	return c.replyJSON(append(body, "}\n"...))
}

func renewSessions(c *request, in apiv1.RenewMany) error {
	if n := len(in.SessionIDs); n < 1 || n > apiv1.MaxRenewals {
		return problem.BadRequest("session_ids: must be 1 to %d IDs (got %d)", apiv1.MaxRenewals, n)
	}
	for _, id := range in.SessionIDs {
		if err := state.CheckSession("session_ids", id); err != nil {
			return err
		}
	}
	got, err := c.renew(in.SessionIDs)
	if err != nil {
		return err
	}
	out := apiv1.RenewedMany{
		Renewed: make([]string, len(got.Alive)), Ended: append([]string{}, got.Ended...),
		Revoked: attach.EncodeRevocations(got.Revoked),
	}
	for i, s := range got.Alive {
		out.Renewed[i] = s.ID
	}
	return c.reply(out)
}

// renew renews sessions at the leader. It writes nothing: if the response is lost, an extra renewal does no harm.
func (c *request) renew(ids []string) (out state.Renewed, err error) {
	err = c.onLeader(c.ctx, forward.Request{Idempotent: true, Local: func(ctx context.Context) (err error) {
		if err := c.checkOwner(ctx, ids...); err != nil {
			return err
		}
		out, err = c.s.deps.Sessions.Renew(ctx, ids)
		return err
	}})
	return out, err
}

func endSession(c *request, in apiv1.SessionEnd) error {
	if err := c.noteEnd(in); err != nil {
		return err
	}
	cmd := state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{
		IDs:   []string{c.param},
		Cause: state.CauseSessionEnded,
	}}
	if in.DryRun {
		return c.planEnd(cmd)
	}
	if _, err := c.proposeValid(cmd, false); err != nil {
		return err
	}
	return c.reply(apiv1.SessionEnded{SessionID: c.param})
}

// noteEnd takes the reason and the dry run into the audit record.
func (c *request) noteEnd(in apiv1.SessionEnd) error {
	if err := checkReason(in.Reason); err != nil {
		return err
	}
	c.auditFields.Reason, c.auditFields.DryRun = in.Reason, in.DryRun
	return nil
}

// planEnd answers what the end of a session would free, if the caller may end it.
func (c *request) planEnd(cmd state.Command) error {
	if err := cmd.Validate(); err != nil {
		return err
	}
	var out apiv1.SessionEnded
	err := c.onLeader(c.ctx, forward.Request{Idempotent: true, Local: func(ctx context.Context) error {
		if err := c.s.reads.ReadBarrier(ctx); err != nil {
			return err
		}
		if err := c.checkCommand(ctx, &cmd); err != nil {
			return err
		}
		v := c.s.reads.View()
		if _, lives := v.Session(c.param); !lives {
			return problem.SessionEnded(c.param)
		}
		out = apiv1.SessionEnded{SessionID: c.param, DryRun: true}
		out.Roles, out.Keys = heldBy(v, c.param)
		return nil
	}})
	if err != nil {
		return err
	}
	return c.reply(out)
}

// heldBy returns the roles of sessions, and how many keys are tied to them.
func heldBy(v *state.View, sessions ...string) (held []string, keys int) {
	for _, id := range sessions {
		held, keys = append(held, v.OwnedRoles(id)...), keys+v.OwnedKeys(id, math.MaxInt)
	}
	return held, keys
}

// endSessions ends the sessions of an identity, or with a prefix of the name, oldest first. Only an operator ends those
// of other identities. A caller may repeat it, but this node does not: a second attempt would answer that there was
// nothing to end.
func endSessions(c *request, in apiv1.SessionEnd) error {
	if err := c.noteEnd(in); err != nil {
		return err
	}
	identity, prefix := c.query.Get("identity"), c.query.Get("prefix")
	for name, value := range map[string]string{"identity": identity, "prefix": prefix} {
		// an unset variable of a script: must not end the sessions of everyone
		if value == "" && c.query.Has(name) {
			return problem.BadRequest("%s: must not be empty", name)
		}
	}
	if identity == "" && prefix == "" {
		return problem.BadRequest("identity, prefix: at least one of them is required")
	}
	if own := c.caller.header(); !c.caller.role.Allows(token.Operator) {
		if identity = cmp.Or(identity, own); identity != own {
			return cluster.Errorf(cluster.CodeForbidden, "identity: only an operator ends the sessions of others, and "+
				"this is %q", own)
		}
	}
	request, err := json.Marshal(map[string]string{"identity": identity, "prefix": prefix})
	if err != nil {
		return err
	}
	c.auditFields.request = string(request)
	var out apiv1.SessionsEnded
	err = c.onLeader(c.ctx, forward.Request{Write: true, Idempotent: in.DryRun, Local: func(ctx context.Context) error {
		if err := c.s.reads.ReadBarrier(ctx); err != nil {
			return err
		}
		view := c.s.reads.View()
		out = matchingSessions(view, identity, prefix)
		if in.DryRun {
			out.DryRun = true
			out.Roles, out.Keys = heldBy(view, out.SessionIDs...)
		}
		if in.DryRun || len(out.SessionIDs) == 0 {
			return nil
		}
		result, err := c.proposeHere(ctx, state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{
			IDs: out.SessionIDs, Cause: state.CauseSessionEnded,
		}})
		if err == nil && result.Err != nil { // all of them have ended meanwhile
			out.SessionIDs = []string{}
		}
		return err
	}})
	if err != nil {
		return err
	}
	return c.reply(out)
}

// matchingSessions returns the oldest sessions that one command can end: as many as have the keys that a transaction
// may change, and at least one.
func matchingSessions(v *state.View, identity, prefix string) apiv1.SessionsEnded {
	out, left := apiv1.SessionsEnded{SessionIDs: []string{}}, state.MaxTxnChanges
	for s := range v.SessionsAfter("") {
		if identity != "" && s.Owner != identity || !strings.HasPrefix(s.Name, prefix) {
			continue
		}
		n := len(out.SessionIDs)
		left -= v.OwnedKeys(s.ID, left+1)
		if out.More = n == state.MaxSessionsEnd || n > 0 && left < 0; out.More {
			break
		}
		out.SessionIDs = append(out.SessionIDs, s.ID)
	}
	return out
}

func getSession(c *request) error {
	return c.read(func(v *state.View) error {
		s, ok := v.Session(c.param)
		if !ok {
			return problem.SessionEnded(c.param)
		}
		return c.reply(c.wireSession(v, s))
	})
}

func listSessions(c *request) error {
	limit, after, err := c.page()
	if err != nil {
		return err
	}
	return c.read(func(*state.View) error {
		return replyItems(c, listing[*state.Session]{
			after: (*state.View).SessionsAfter,
			key:   func(s *state.Session) string { return s.ID },
		}, limit, after, c.wireSession)
	})
}

func (c *request) page() (limit int, after string, err error) {
	limit, err = c.queryLimit(apiv1.MaxListLimit)
	return limit, c.query.Get("after"), err
}

func (c *request) wireSession(v *state.View, s *state.Session) apiv1.Session {
	out := apiv1.Session{
		SessionID: s.ID, Name: s.Name, Identity: s.Owner, TTLMS: s.TTL.Milliseconds(), CreatedAt: unixNano(s.CreatedAt),
		Meta: s.Meta, Roles: append([]string{}, v.OwnedRoles(s.ID)...),
		RevokedRoles: attach.EncodeRevocations(v.Revocations(s.ID)), Keys: v.OwnedKeys(s.ID, math.MaxInt),
	}
	if !c.stale() {
		out.RemainingMS = c.s.deps.Sessions.Remaining(s).Milliseconds()
	}
	if out.Meta == nil {
		out.Meta = map[string]string{}
	}
	return out
}

// stale reports whether the response may come from a node that does not lead and has no session timers.
func (c *request) stale() bool { return c.query.Get("consistency") == apiv1.Stale }

// attachSession serves GET /v1/sessions/{id}/attach: the connection keeps the session alive.
func attachSession(c *request) error {
	if err := state.CheckSession("id", c.param); err != nil {
		return err
	}
	grace, err := c.queryInt("grace_ms", 0, 0, state.MaxSessionTTL.Milliseconds())
	if err != nil {
		return err
	}
	hold := true
	if c.query.Has("hold") {
		if hold, err = c.queryBool("hold"); err != nil {
			return err
		}
	}
	s, err := c.attachedSession(c.param)
	if err != nil {
		return err
	}
	// Its end with this connection is an operator's deed.
	c.recordRead = s != nil && c.isForeign(s)
	return c.s.attached.Serve(c, c.r, cluster.Connection{Attachment: cluster.Attachment{
		Session: c.param, Grace: time.Duration(grace) * time.Millisecond, Passive: !hold,
	}}, socketOf(c.r.Context()))
}

// postAttachReport is how nodes report their attached connections to the leader.
func postAttachReport(c *request, in apiv1.AttachReport) error {
	ctx, cancel := c.contextWithLimit(apiv1.DefaultTimeoutMS * time.Millisecond)
	defer cancel()
	if c.caller.role == token.Client { // without TLS and with tokens, nodes report under their clients' tokens
		var ids []string
		for _, a := range slices.Concat(in.Live, in.Closed) {
			ids = append(ids, a.SessionID)
		}
		if err := c.checkOwner(ctx, ids...); err != nil {
			return err
		}
	}
	out, err := c.s.attached.Receive(ctx, in)
	if err != nil {
		return err
	}
	return c.reply(out)
}

// leaveThisNode reports whether attached clients must attach to another node.
func (s *Server) leaveThisNode() bool {
	m, ok := s.reads.View().Member(s.deps.Node.ID)
	return s.draining() || ok && m.Lifecycle == cluster.Draining
}
