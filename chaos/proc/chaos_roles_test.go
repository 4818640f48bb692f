package proc

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"northstar/chaos/check"
	"northstar/client"
	"northstar/cluster"
)

const (
	chaosRole = "chaos"
	chaosTTL  = 1500 * time.Millisecond
	drift     = 10 // percent of a TTL that a client leaves for clocks that differ
)

// tenures collects who held the role, and who wrote with its token.
type tenures struct {
	mu      sync.Mutex
	tenures []check.Tenure
	writes  []check.FencedWrite
}

func (h *tenures) won(t check.Tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tenures = append(h.tenures, t)
}

func (h *tenures) wrote(w check.FencedWrite) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writes = append(h.writes, w)
}

// startCampaigners starts three candidates over plain HTTP and two with the Go
// client.
func (c *chaosClients) startCampaigners() {
	for i := range 5 {
		r := rand.New(rand.NewPCG(c.s.seed, uint64(1000+i)))
		p := &candidate{c: c, id: i, rand: r, raw: rawServer{c.s, r}}
		if i < 3 {
			c.working.Go(p.runRaw)
		} else {
			c.working.Go(p.runLibrary)
		}
	}
}

type candidate struct {
	c    *chaosClients
	id   int
	n    int
	rand *rand.Rand
	raw  rawServer
}

// fenced writes with a token.
func (p *candidate) fenced(s server, token uint64) {
	p.n++
	begin := p.c.s.now()
	ctx, cancel := context.WithTimeout(p.c.ctx, time.Second)
	defer cancel()
	_, outcome, _ := s.write(ctx, "fenced", fmt.Sprintf("f%d-%d", p.id, p.n), client.WriteOptions{Fence: &client.Fence{Role: chaosRole, Token: token}, NoIdempotencyKey: true})
	if outcome == check.Done {
		p.c.roles.wrote(check.FencedWrite{Client: p.id, Token: token, Begin: begin, End: p.c.s.now()})
	}
}

// runLibrary campaigns with the Go client, and holds as long as it says that it
// may.
func (p *candidate) runLibrary() {
	k, err := p.c.library.NewCandidate(client.CandidateConfig{Role: chaosRole, Session: client.SessionConfig{TTL: chaosTTL}})
	if err != nil {
		p.c.s.t.Error(err)
		return
	}
	for !p.c.over(10 * time.Millisecond) {
		asked := p.c.s.now()
		ctx, cancel := context.WithTimeout(p.c.ctx, 2*time.Second)
		l, err := k.Campaign(ctx)
		cancel()
		if err != nil {
			continue
		}
		t := check.Tenure{Client: p.id, Session: l.Session, Token: l.Token, RequestedAt: asked, GrantedAt: p.c.s.now()}
		until := time.Now().Add(time.Duration(p.rand.IntN(800)) * time.Millisecond)
		for l.ValidFor() > 0 {
			t.Until = p.c.s.now() // it was valid after that moment
			if !time.Now().Before(until) {
				break
			}
			p.fenced(libraryServer{p.c.library}, l.Token)
		}
		if t.Until > 0 {
			p.c.roles.won(t)
		}
		ctx, cancel = context.WithTimeout(p.c.ctx, time.Second)
		_ = l.Resign(ctx) // else it ends with its session
		cancel()
	}
	ctx, cancel := context.WithTimeout(p.c.ctx, time.Second)
	defer cancel()
	_ = k.Close(ctx) // else it ends with its session
}

// rawSession is a session over plain HTTP, with its client's own deadline.
type rawSession struct {
	id string

	mu    sync.Mutex
	until time.Duration
}

func (s *rawSession) renewed(sent time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = max(s.until, sent+chaosTTL*(100-drift)/100)
}

func (s *rawSession) deadline() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

func (p *candidate) runRaw() {
	for !p.c.over(20 * time.Millisecond) {
		sent := p.c.s.now()
		a, ok := p.ask(time.Second, http.MethodPost, "/v1/sessions", fmt.Sprintf(`{"name":"candidate %d","ttl_ms":%d}`, p.id, chaosTTL.Milliseconds()))
		var made struct {
			ID string `json:"session_id"`
		}
		if !ok || json.Unmarshal(a.Body, &made) != nil {
			continue
		}
		s := &rawSession{id: made.ID}
		s.renewed(sent)
		quit := make(chan struct{})
		var renewing sync.WaitGroup
		renewing.Go(func() { p.renew(s, quit) })
		for range 1 + p.rand.IntN(4) {
			p.campaign(s)
		}
		close(quit)
		renewing.Wait()
		if p.rand.IntN(2) == 0 { // else it ends by its TTL
			p.ask(time.Second, http.MethodDelete, "/v1/sessions/"+s.id, "")
		}
	}
}

func (p *candidate) ask(limit time.Duration, method, path, body string) (answer, bool) {
	ctx, cancel := context.WithTimeout(p.c.ctx, limit)
	defer cancel()
	nodes := p.c.s.cluster.Nodes
	a, err := do(ctx, nodes[rand.IntN(len(nodes))], method, path, []byte(body), "Content-Type", "application/json")
	return a, err == nil && a.Status == http.StatusOK
}

func (p *candidate) renew(s *rawSession, quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case <-time.After(chaosTTL / 4):
		}
		sent := p.c.s.now()
		a, ok := p.ask(chaosTTL/2, http.MethodPost, "/v1/sessions/"+s.id+"/renew", "{}")
		if ok {
			s.renewed(sent)
		}
		p.heard(s, a)
		if cluster.Code(a.Code) == cluster.CodeSessionEnded {
			return
		}
	}
}

// heard looks whether a session has ended that had not to.
func (p *candidate) heard(s *rawSession, a answer) {
	if now := p.c.s.now(); cluster.Code(a.Code) == cluster.CodeSessionEnded && now < s.deadline() {
		p.c.s.violated(check.Violation{Invariant: check.SessionsLive, Detail: fmt.Sprintf("session %s had ended at %v, with its client's deadline at %v", s.id, now, s.deadline())})
	}
}

// campaign holds the role for a while, if it gets it.
func (p *candidate) campaign(s *rawSession) {
	asked := p.c.s.now()
	if asked >= s.deadline() {
		return
	}
	a, ok := p.ask(2*time.Second, http.MethodPost, "/v1/roles/"+chaosRole+"/campaign", fmt.Sprintf(`{"session_id":%q,"wait_ms":%d}`, s.id, p.rand.IntN(1000)))
	p.heard(s, a)
	var won struct {
		Token uint64 `json:"token"`
	}
	now := p.c.s.now()
	if !ok || json.Unmarshal(a.Body, &won) != nil || now >= s.deadline() {
		return
	}
	t := check.Tenure{Client: p.id, Session: s.id, Token: won.Token, RequestedAt: asked, GrantedAt: now}
	end := now + time.Duration(p.rand.IntN(800))*time.Millisecond
	for p.c.s.now() < min(end, s.deadline()) && !p.c.over(time.Duration(p.rand.IntN(50))*time.Millisecond) {
		p.fenced(p.raw, won.Token)
	}
	t.Until = max(now, min(p.c.s.now(), s.deadline()))
	p.c.roles.won(t)
	if p.rand.IntN(3) == 0 { // one that does not know yet, or does not care, that its time is over
		p.fenced(p.raw, won.Token)
	}
	if p.rand.IntN(2) == 0 {
		p.ask(time.Second, http.MethodDelete, "/v1/roles/"+chaosRole+"?session_id="+s.id, "")
	}
}
