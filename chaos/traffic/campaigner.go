package traffic

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
	"northstar/state"
)

// Role is the role that campaigners campaign for.
const Role = "role"

const (
	fencedKey   = "fenced"
	clientDrift = 0.1 // share of a session's TTL that a client reserves for clock drift
)

// campaigner is a client with one session at a time. It holds a role now and then, and writes with its token.
type campaigner struct {
	user
	id     int
	writes int
}

func (c *campaigner) run() {
	for c.Pause(c.cfg.ThinkTime.Draw(c.rand)) {
		c.runSession()
	}
}

// session is one session, with the client's own estimate of its end.
type session struct {
	id    string
	ttl   time.Duration
	epoch uint64        // epoch of the cluster
	ended chan struct{} // closed when the cluster has ended the session
	once  sync.Once

	mu      sync.Mutex
	until   time.Time // the client's own deadline
	revoked uint64    // token of the tenure that an operator has revoked, as far as the client knows
}

// deadline returns the client's own deadline: the send time of the last renewal plus the TTL, minus the drift.
func (s *session) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

func (s *session) renewed(sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := sent.Add(time.Duration(float64(s.ttl) * (1 - clientDrift))); until.After(s.until) {
		s.until = until
	}
}

// isRevoked reports whether the client knows that its tenure was revoked.
func (s *session) isRevoked(token uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoked >= token
}

// ask sends one request to a node, more often to the leader.
func (c *campaigner) ask(limit time.Duration, q Request) error {
	i := c.cluster.Leader()
	if c.rand.IntN(2) == 0 {
		i = c.anyNode()
	}
	return c.askNode(i, limit, q)
}

// runSession runs one session: it is renewed for a while, campaigns, and is closed or abandoned.
func (c *campaigner) runSession() {
	ttl := c.cfg.MinTTL.Milliseconds() + int64(c.rand.IntN(1500))
	sent, era := time.Now(), c.cluster.Epoch()
	var made apiv1.SessionCreated
	create := apiv1.SessionCreate{Name: fmt.Sprintf("client-%d", c.id), TTLMS: &ttl}
	if c.ask(time.Second, post(apiv1.PathSessions, create, &made)) != nil {
		return
	}
	s := &session{
		id: made.SessionID, ttl: time.Duration(made.TTLMS) * time.Millisecond, epoch: era, ended: make(chan struct{}),
	}
	s.renewed(sent)
	quit := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() { c.renew(s, quit) })
	for range 1 + c.rand.IntN(4) {
		if !c.campaign(s) {
			break
		}
	}
	close(quit) // abandoned: it ends by its TTL
	renewing.Wait()
	c.Roles.update(func(h *RoleHistory) { h.over[s.id] = c.now() + s.ttl })
	if c.rand.IntN(2) == 0 {
		_ = c.ask(time.Second, Request{Method: http.MethodDelete, Path: apiv1.PathSessions + "/" + s.id})
	}
}

// renew renews a session four times in its TTL.
func (c *campaigner) renew(s *session, quit <-chan struct{}) {
	r := c.cfg.Rand(s.id, "renew", uint64(c.id))
	tick := time.NewTicker(s.ttl / 4)
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return
		case <-s.ended:
			return
		case <-tick.C:
		}
		sent := time.Now()
		err := c.askNode(r.IntN(len(c.cluster.Nodes())), s.ttl/2, post(apiv1.PathSessions+"/"+s.id+"/renew", nil, nil))
		if err == nil {
			s.renewed(sent)
		}
		c.checkAlive(s, sent, err)
	}
}

// checkAlive checks the response to a session's request. If the session has ended, the client's deadline must have
// passed.
func (c *campaigner) checkAlive(s *session, sent time.Time, err error) {
	e := asProblem(err)
	if e != nil && e.Code == cluster.CodeFenced {
		c.fetchRevocations(s)
	}
	if e == nil || e.Code != cluster.CodeSessionEnded {
		return
	}
	// a recovery ends all sessions
	if until := s.deadline(); time.Now().Before(until) && c.cluster.Epoch() == s.epoch {
		c.violated(check.SessionsLive,
			"session %s of client %d had ended when asked at %v, with its client's deadline at %v", s.id, c.id,
			sent.Sub(c.cfg.Start), until.Sub(c.cfg.Start))
	}
	s.once.Do(func() { close(s.ended) })
}

// fetchRevocations asks which tenures of the session an operator has revoked. Half of the clients never ask, and
// continue until their deadline.
func (c *campaigner) fetchRevocations(s *session) {
	if c.id%2 == 0 {
		return
	}
	var now apiv1.Session
	if c.askNode(c.cluster.Leader(), s.ttl/2, get(apiv1.PathSessions+"/"+s.id, &now)) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range now.RevokedRoles {
		s.revoked = max(s.revoked, p.Token)
	}
}

// campaign tries to be elected once and holds the role for a while. It reports whether the session continues.
func (c *campaigner) campaign(s *session) bool {
	if !c.Pause(c.cfg.ThinkTime.Draw(c.rand)) || !time.Now().Before(s.deadline()) {
		return false
	}
	asked, wait := time.Now(), c.cfg.CampaignWait.Milliseconds()
	if wait == 0 {
		wait = int64(c.rand.IntN(1200))
	}
	var won apiv1.Role
	err := c.ask(max(2*time.Second, c.cfg.CampaignWait+time.Second),
		post(apiv1.PathRoles+"/"+Role+"/campaign", apiv1.Campaign{SessionID: s.id, WaitMS: wait}, &won))
	c.checkAlive(s, asked, err)
	if err != nil {
		c.Roles.update(func(h *RoleHistory) {
			h.waits = append(h.waits, check.WaitInterval{From: asked.Sub(c.cfg.Start), To: c.now()})
		})
		return time.Now().Before(s.deadline())
	}
	now := time.Now()
	if !now.Before(s.deadline()) {
		return false // too late to be sure of anything
	}
	t := check.Tenure{
		Client: c.id, Session: s.id, Token: won.Token, RequestedAt: asked.Sub(c.cfg.Start),
		GrantedAt: now.Sub(c.cfg.Start),
	}
	resigns := c.hold(s, won.Token, now.Add(time.Duration(c.rand.IntN(1500))*time.Millisecond))
	end := time.Now()
	if until := s.deadline(); until.Before(end) {
		end = until
	}
	t.Until = end.Sub(c.cfg.Start)
	c.Roles.Won(t)
	if !resigns && !s.isRevoked(won.Token) {
		return true
	}
	query := url.Values{"session_id": {s.id}}
	if c.rand.IntN(2) == 0 {
		query.Set("token", fmt.Sprint(won.Token))
	}
	resign := Request{Method: http.MethodDelete, Path: apiv1.PathRoles + "/" + Role, Query: query}
	resigned := c.ask(time.Second, resign) == nil
	if c.rand.IntN(2) == 0 && c.Pause(time.Duration(c.rand.IntN(50))*time.Millisecond) {
		c.fenced(won.Token) // requests that were still in flight
	}
	return resigned
}

// hold writes with a token until the given time, or until the client's deadline. It reports whether the client will
// resign then.
func (c *campaigner) hold(s *session, token uint64, until time.Time) bool {
	for time.Now().Before(until) && time.Now().Before(s.deadline()) && !s.isRevoked(token) {
		c.fenced(token)
		if !c.Pause(time.Duration(c.rand.IntN(100)) * time.Millisecond) {
			return false
		}
	}
	if c.rand.IntN(3) == 0 { // a client that does not know, or ignores, that its tenure is over
		c.fenced(token)
	}
	return c.rand.IntN(2) == 0
}

// fenced writes with a token.
func (c *campaigner) fenced(token uint64) {
	c.writes++
	_ = c.overHTTP(c.machine)(c.cluster.Leader(), func(ctx context.Context, n KV) error {
		c.FencedWrite(ctx, n, c.id, token, c.writes)
		return nil
	})
}

// FencedWrite writes with a token of the role, and records the write if it succeeded.
func (t *Traffic) FencedWrite(ctx context.Context, n KV, client int, token uint64, number int) {
	begin := t.now()
	res, err := n.Propose(ctx, state.Command{
		Kind: state.KindPut, Put: &state.Put{Key: fencedKey, Value: fmt.Appendf(nil, "f%d-%d", client, number)},
		Fence: &state.FencingToken{Role: Role, Token: token},
	})
	if err == nil && res.Err == nil {
		write := check.FencedWrite{Client: client, Token: token, Begin: begin, End: t.now()}
		t.Roles.update(func(h *RoleHistory) { h.writes = append(h.writes, write) })
	}
}

// RoleHistory collects what clients observed of the role.
type RoleHistory struct {
	mu      sync.Mutex
	tenures []check.Tenure
	writes  []check.FencedWrite
	over    map[string]time.Duration // by session: its latest possible end
	waits   []check.WaitInterval
}

func (h *RoleHistory) update(f func(*RoleHistory)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over == nil {
		h.over = map[string]time.Duration{}
	}
	f(h)
}

// Won records a tenure that has ended.
func (h *RoleHistory) Won(t check.Tenure) {
	h.update(func(h *RoleHistory) { h.tenures = append(h.tenures, t) })
}

// Check returns the violations. It checks vacancies only if no fault prevents elections.
func (h *RoleHistory) Check(vacancies bool) []check.Violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	violations := check.CheckMutualExclusion(h.tenures, h.writes)
	if vacancies {
		violations = append(violations, check.CheckVacancies(h.tenures, h.over, h.waits)...)
	}
	return violations
}
