package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
	"northstar/state"
)

const (
	campaignRole = "role"
	fencedKey    = "fenced"
	clientDrift  = 0.1 // of a session's TTL: what a client leaves for clocks that differ
)

// campaigner is a client with one session after the other, that holds a role now
// and then and writes with its token.
type campaigner struct {
	*clients
	id     int
	remote *httpClient
	rand   *rand.Rand
	writes int
}

func (cs *clients) startCampaigner(i int) {
	c := &campaigner{clients: cs, id: i, remote: cs.newRemote(), rand: rand.New(rand.NewPCG(cs.sim.cfg.Seed, 1000+uint64(i)))}
	cs.done.Go(c.run)
}

func (c *campaigner) run() {
	for c.pause(c.sim.cfg.ThinkTime.draw(c.rand)) {
		c.runSession()
	}
}

// session is one session with its own idea of how long it lasts.
type session struct {
	id    string
	ttl   time.Duration
	epoch uint64        // of the run
	ended chan struct{} // closed when the cluster has ended it
	once  sync.Once

	mu      sync.Mutex
	until   time.Time // its client's own deadline
	revoked uint64    // token of the tenure that the client was told is taken from it
}

// deadline is the client's own: the last renewal's send time, the TTL and the
// drift.
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

// isRevoked reports whether the client knows that a tenure was taken from it.
func (s *session) isRevoked(token uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoked >= token
}

// ask makes one request on a node, more often on the one that leads.
func (c *campaigner) ask(limit time.Duration, method, path string, query url.Values, in, out any) error {
	m := c.sim.leading()
	if c.rand.IntN(2) == 0 {
		m = c.sim.members[c.rand.IntN(len(c.sim.members))]
	}
	ctx, cancel := context.WithTimeout(c.sim.ctx, limit)
	defer cancel()
	return c.remote.call(ctx, m.id, method, path, query, in, out)
}

// runSession goes through one session: it is renewed for a while, campaigns, and is
// ended, or just left.
func (c *campaigner) runSession() {
	ttl := int64(600 + c.rand.IntN(1500))
	sent, era := time.Now(), c.sim.epoch()
	var made apiv1.SessionCreated
	if c.ask(time.Second, http.MethodPost, apiv1.PathSessions, nil, apiv1.SessionCreate{Name: fmt.Sprintf("client-%d", c.id), TTLMS: &ttl}, &made) != nil {
		return
	}
	s := &session{id: made.SessionID, ttl: time.Duration(made.TTLMS) * time.Millisecond, epoch: era, ended: make(chan struct{})}
	s.renewed(sent)
	quit := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() { c.renew(s, quit) })
	for range 1 + c.rand.IntN(4) {
		if !c.campaign(s) {
			break
		}
	}
	close(quit) // left alone: it ends by its TTL
	renewing.Wait()
	c.sim.roles.left(s.id, time.Since(c.sim.start)+s.ttl)
	if c.rand.IntN(2) == 0 {
		_ = c.ask(time.Second, http.MethodDelete, apiv1.PathSessions+"/"+s.id, nil, nil, nil)
	}
}

// renew renews a session four times in its TTL.
func (c *campaigner) renew(s *session, quit <-chan struct{}) {
	r := rand.New(rand.NewPCG(c.sim.cfg.Seed, hash(c.sim.cfg.Seed, s.id, "renew", uint64(c.id))))
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
		m := c.sim.members[r.IntN(len(c.sim.members))]
		ctx, cancel := context.WithTimeout(c.sim.ctx, s.ttl/2)
		err := c.remote.call(ctx, m.id, http.MethodPost, apiv1.PathSessions+"/"+s.id+"/renew", nil, nil, nil)
		cancel()
		if err == nil {
			s.renewed(sent)
		}
		c.checkAlive(s, sent, err)
	}
}

// checkAlive looks at an answer to a request of a session: when that has ended, it
// must not have been within the client's deadline.
func (c *campaigner) checkAlive(s *session, sent time.Time, err error) {
	var e *cluster.Error
	if errors.As(err, &e) && e.Code == cluster.CodeFenced {
		c.fetchRevocations(s)
	}
	if !errors.As(err, &e) || e.Code != cluster.CodeSessionEnded {
		return
	}
	if until := s.deadline(); time.Now().Before(until) && c.sim.epoch() == s.epoch { // a recovery ends all of them
		c.sim.violated(check.Violation{Invariant: check.SessionsLive, Detail: fmt.Sprintf(
			"session %s of client %d had ended when asked at %v, with its client's deadline at %v", s.id, c.id, sent.Sub(c.sim.start), until.Sub(c.sim.start))})
	}
	s.once.Do(func() { close(s.ended) })
}

// fetchRevocations asks what was taken from a session that is not renewed for that. Half of
// the clients never do, and go on until their deadline.
func (c *campaigner) fetchRevocations(s *session) {
	if c.id%2 == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.sim.ctx, s.ttl/2)
	defer cancel()
	var now apiv1.Session
	if c.remote.call(ctx, c.sim.leading().id, http.MethodGet, apiv1.PathSessions+"/"+s.id, nil, nil, &now) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range now.RevokedRoles {
		s.revoked = max(s.revoked, p.Token)
	}
}

// campaign tries to be elected once and holds the role for a while. It returns
// whether the session goes on.
func (c *campaigner) campaign(s *session) bool {
	if !c.pause(c.sim.cfg.ThinkTime.draw(c.rand)) || !time.Now().Before(s.deadline()) {
		return false
	}
	asked := time.Now()
	var won apiv1.Role
	err := c.ask(max(2*time.Second, c.sim.cfg.CampaignWait+time.Second), http.MethodPost, apiv1.PathRoles+"/"+campaignRole+"/campaign", nil, apiv1.Campaign{SessionID: s.id, WaitMS: c.waitMS()}, &won)
	c.checkAlive(s, asked, err)
	if err != nil {
		c.sim.roles.waited(asked.Sub(c.sim.start), time.Since(c.sim.start))
		return time.Now().Before(s.deadline())
	}
	now := time.Now()
	if !now.Before(s.deadline()) {
		return false // too late to be sure of anything
	}
	t := check.Tenure{Client: c.id, Session: s.id, Token: won.Token, RequestedAt: asked.Sub(c.sim.start), GrantedAt: now.Sub(c.sim.start)}
	resigns := c.hold(s, won.Token, now.Add(time.Duration(c.rand.IntN(1500))*time.Millisecond))
	end := time.Now()
	if until := s.deadline(); until.Before(end) {
		end = until
	}
	t.Until = end.Sub(c.sim.start)
	c.sim.roles.won(t)
	if !resigns && !s.isRevoked(won.Token) {
		return true
	}
	query := url.Values{"session_id": {s.id}}
	if c.rand.IntN(2) == 0 {
		query.Set("token", fmt.Sprint(won.Token))
	}
	resigned := c.ask(time.Second, http.MethodDelete, apiv1.PathRoles+"/"+campaignRole, query, nil, nil) == nil
	if c.rand.IntN(2) == 0 && c.pause(time.Duration(c.rand.IntN(50))*time.Millisecond) {
		c.fenced(won.Token) // what was still on its way
	}
	return resigned
}

// waitMS is how long a candidate waits, in milliseconds.
func (c *campaigner) waitMS() int64 {
	if limit := c.sim.cfg.CampaignWait; limit > 0 {
		return limit.Milliseconds()
	}
	return int64(c.rand.IntN(1200))
}

// hold writes with a token until a moment, or until the client's deadline. It
// reports whether the client means to resign then.
func (c *campaigner) hold(s *session, token uint64, until time.Time) bool {
	for time.Now().Before(until) && time.Now().Before(s.deadline()) && !s.isRevoked(token) {
		c.fenced(token)
		if !c.pause(time.Duration(c.rand.IntN(100)) * time.Millisecond) {
			return false
		}
	}
	if c.rand.IntN(3) == 0 { // one that does not know yet, or does not care, that its time is over
		c.fenced(token)
	}
	return c.rand.IntN(2) == 0
}

// fenced writes with a token.
func (c *campaigner) fenced(token uint64) {
	c.writes++
	m := c.sim.leading()
	begin := time.Since(c.sim.start)
	ctx, cancel := context.WithTimeout(c.sim.ctx, c.sim.cfg.OpTimeout+remoteGrace)
	defer cancel()
	res, err := httpNode{c.remote, m.id}.Propose(ctx, state.Command{
		Kind: state.KindPut, Put: &state.Put{Key: fencedKey, Value: fmt.Appendf(nil, "f%d-%d", c.id, c.writes)},
		Fence: &state.FencingToken{Role: campaignRole, Token: token},
	})
	if err == nil && res.Err == nil {
		c.sim.roles.wrote(check.FencedWrite{Client: c.id, Token: token, Begin: begin, End: time.Since(c.sim.start)})
	}
}

// roleHistory collects what clients saw of the role.
type roleHistory struct {
	mu      sync.Mutex
	tenures []check.Tenure
	writes  []check.FencedWrite
	over    map[string]time.Duration // by session: when it has ended at the latest
	waits   []check.WaitInterval
}

func (h *roleHistory) left(session string, over time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over == nil {
		h.over = map[string]time.Duration{}
	}
	h.over[session] = over
}

func (h *roleHistory) waited(from, to time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits = append(h.waits, check.WaitInterval{From: from, To: to})
}

func (h *roleHistory) won(t check.Tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tenures = append(h.tenures, t)
}

func (h *roleHistory) wrote(f check.FencedWrite) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writes = append(h.writes, f)
}

// check returns what is wrong; vacancies are looked at only where nothing keeps the
// cluster from electing.
func (h *roleHistory) check(vacancies bool) []check.Violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	violations := check.CheckMutualExclusion(h.tenures, h.writes)
	if vacancies {
		violations = append(violations, check.CheckVacancies(h.tenures, h.over, h.waits)...)
	}
	return violations
}
