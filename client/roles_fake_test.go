package client

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// fakeRoles serves sessions and roles like a cluster, on all nodes of a fakeCluster, in virtual time.
type fakeRoles struct {
	fc *fakeCluster

	mu       sync.Mutex
	sessions map[string]*fakeSession
	holders  map[string]apiv1.Role
	revoked  map[string]apiv1.Revocation // by role
	queues   map[string][]string
	required map[string]bool // roles whose last campaign said so
	waiters  map[string]int  // by role and session
	changes  []fakeChange
	changed  chan struct{}
	revision uint64
	made     int
	renewals int
	maxDelay time.Duration             // maximum delay of a request or a response
	ended    func(session, why string) // called when a session or a tenure ends
	reject   func(*http.Request) error // its error, if not nil, is the response
}

type fakeSession struct {
	id      string
	ttl     time.Duration
	timer   *time.Timer
	streams int
}

type fakeChange struct {
	name string
	apiv1.RoleEvent
}

func (fc *fakeCluster) withRoles() *fakeRoles {
	f := &fakeRoles{
		fc: fc, sessions: map[string]*fakeSession{}, holders: map[string]apiv1.Role{},
		revoked: map[string]apiv1.Revocation{},
		queues:  map[string][]string{}, required: map[string]bool{},
		waiters: map[string]int{}, changed: make(chan struct{}), ended: func(string, string) {},
	}
	for _, n := range fc.nodes {
		n.handle = func(w http.ResponseWriter, r *http.Request) { f.serve(n, w, r) }
	}
	return f
}

func (f *fakeRoles) delay() {
	f.mu.Lock()
	maxDelay := f.maxDelay
	f.mu.Unlock()
	if maxDelay > 0 {
		time.Sleep(rand.N(maxDelay))
	}
}

func fail(code cluster.Code) error { return cluster.Errorf(code, "x") }

func (f *fakeRoles) serve(n *fakeNode, w http.ResponseWriter, r *http.Request) {
	f.delay()
	if f.reject != nil {
		if err := f.reject(r); err != nil {
			problem(w, err)
			return
		}
	}
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	if len(path) > 2 && path[2] == "watch" {
		f.watch(n, w, r, path[1])
		return
	}
	if err := n.toLeader(r); err != nil {
		problem(w, err)
		return
	}
	if len(path) > 2 && path[2] == "attach" {
		f.attach(n, w, r, path[1])
		return
	}
	var res any
	var err error
	switch {
	case path[0] == "sessions" && len(path) == 1:
		var in apiv1.SessionCreate
		_ = json.NewDecoder(r.Body).Decode(&in)
		res = f.create(in)
	case path[0] == "sessions" && len(path) == 3:
		res, err = f.renew(path[1])
	case r.URL.Path == apiv1.PathRenew:
		var in apiv1.RenewMany
		_ = json.NewDecoder(r.Body).Decode(&in)
		res, err = f.renewMany(in.SessionIDs)
	case path[0] == "sessions" && r.Method == http.MethodGet:
		res, err = f.session(path[1])
	case path[0] == "sessions":
		err = f.end(path[1], "session_ended")
		res = apiv1.SessionEnded{SessionID: path[1]}
	case len(path) == 3:
		var in apiv1.Campaign
		_ = json.NewDecoder(r.Body).Decode(&in)
		res, err = f.campaign(n, r, path[1], in)
	case r.Method == http.MethodDelete:
		token, _ := strconv.ParseUint(r.URL.Query().Get("token"), 10, 64)
		err = f.resign(path[1], r.URL.Query().Get("session_id"), token)
		res = apiv1.RoleResult{Role: path[1]}
	default:
		res, err = f.role(w, path[1])
	}
	f.delay()
	f.fc.mu.Lock()
	paused := n.paused
	f.fc.mu.Unlock()
	if paused != nil { // changed in the meantime
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		problem(w, err)
		return
	}
	reply(w, res)
}

func (f *fakeRoles) create(in apiv1.SessionCreate) apiv1.SessionCreated {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made++
	s := &fakeSession{id: fmt.Sprintf("s%d", f.made), ttl: time.Duration(*in.TTLMS) * time.Millisecond}
	s.timer = time.AfterFunc(s.ttl, func() { _ = f.end(s.id, "expired") })
	f.sessions[s.id] = s
	return apiv1.SessionCreated{SessionID: s.id, TTLMS: *in.TTLMS}
}

func (f *fakeRoles) renew(id string) (apiv1.Renewal, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.renewals++
	s := f.sessions[id]
	if s == nil {
		return apiv1.Renewal{}, fail(cluster.CodeSessionEnded)
	}
	if len(f.revokedRoles(id)) > 0 {
		return apiv1.Renewal{}, fail(cluster.CodeFenced)
	}
	s.timer.Reset(s.ttl)
	return apiv1.Renewal{TTLMS: s.ttl.Milliseconds()}, nil
}

func (f *fakeRoles) renewMany(ids []string) (out apiv1.RenewedMany, err error) {
	if len(ids) < 1 || len(ids) > apiv1.MaxRenewals {
		return out, fail(cluster.CodeBadRequest)
	}
	for _, id := range ids {
		switch _, err := f.renew(id); {
		case err == nil:
			out.Renewed = append(out.Renewed, id)
		case cluster.IsCode(err, cluster.CodeSessionEnded):
			out.Ended = append(out.Ended, id)
		default:
			f.mu.Lock()
			out.Revoked = append(out.Revoked, f.revokedRoles(id)...)
			f.mu.Unlock()
		}
	}
	return out, nil
}

// revokedRoles returns what an operator has revoked from a session.
func (f *fakeRoles) revokedRoles(id string) (list []apiv1.Revocation) {
	for _, p := range f.revoked {
		if p.SessionID == id {
			list = append(list, p)
		}
	}
	return list
}

func (f *fakeRoles) session(id string) (apiv1.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions[id] == nil {
		return apiv1.Session{}, fail(cluster.CodeSessionEnded)
	}
	return apiv1.Session{SessionID: id, RevokedRoles: f.revokedRoles(id)}, nil
}

// end ends a session with its roles and candidacies.
func (f *fakeRoles) end(id, why string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[id]
	if s == nil {
		return fail(cluster.CodeSessionEnded)
	}
	s.timer.Stop()
	delete(f.sessions, id)
	for role := range f.queues {
		f.queues[role] = slices.DeleteFunc(f.queues[role], func(q string) bool { return q == id })
	}
	for role, h := range f.holders {
		if h.SessionID == id {
			f.vacate(role, why)
		}
	}
	for _, p := range f.revokedRoles(id) {
		delete(f.revoked, p.Role)
		f.electNext(p.Role)
	}
	f.ended(id, why)
	f.notifyChanged()
	return nil
}

func (f *fakeRoles) notifyChanged() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeRoles) change(name string, r apiv1.Role, why string) {
	f.changes = append(f.changes, fakeChange{name, apiv1.RoleEvent{
		Role: r.Role, Holder: r.Holder, SessionID: r.SessionID, Token: r.Token, Cause: why, Revision: f.revision,
	}})
	f.notifyChanged()
}

func (f *fakeRoles) vacate(role, why string) {
	f.revision++
	f.change("vacated", f.holders[role], why)
	delete(f.holders, role)
	f.electNext(role)
}

func (f *fakeRoles) electNext(role string) {
	if _, held := f.holders[role]; held || len(f.queues[role]) == 0 {
		return
	}
	id := f.queues[role][0]
	if p, revoked := f.revoked[role]; revoked && p.SessionID != id {
		return
	}
	delete(f.revoked, role)
	f.revision++
	f.queues[role] = f.queues[role][1:]
	f.holders[role] = apiv1.Role{Role: role, Holder: "name of " + id, SessionID: id, Token: f.revision}
	f.change("elected", f.holders[role], "")
}

// evict revokes a role.
func (f *fakeRoles) evict(role string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h, held := f.holders[role]; held {
		f.revoked[role] = apiv1.Revocation{SessionID: h.SessionID, Role: role, Token: h.Token}
		f.vacate(role, "evicted")
	}
}

func (f *fakeRoles) campaign(n *fakeNode, r *http.Request, role string, in apiv1.Campaign) (apiv1.Role, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, key := in.SessionID, role+" "+in.SessionID
	if f.sessions[id] == nil {
		return apiv1.Role{}, fail(cluster.CodeSessionEnded)
	}
	f.required[role] = in.Required
	if f.holders[role].SessionID != id && !slices.Contains(f.queues[role], id) {
		f.queues[role] = append(f.queues[role], id)
		f.electNext(role)
	}
	f.waiters[key]++
	timer := time.NewTimer(time.Duration(in.WaitMS) * time.Millisecond)
	defer timer.Stop()
	for over := false; ; {
		switch {
		case f.holders[role].SessionID == id:
			f.waiters[key]--
			return f.holders[role], nil
		case f.sessions[id] == nil:
			f.waiters[key]--
			return apiv1.Role{}, fail(cluster.CodeSessionEnded)
		case over:
			f.fc.mu.Lock()
			dead := n.dead // a dead node reports no disconnect
			f.fc.mu.Unlock()
			if f.waiters[key]--; f.waiters[key] == 0 && !dead {
				f.queues[role] = slices.DeleteFunc(f.queues[role], func(q string) bool { return q == id })
			}
			return apiv1.Role{}, fail(cluster.CodeRoleHeld)
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			over = true
		case <-r.Context().Done():
			over = true
		}
		f.mu.Lock()
	}
}

func (f *fakeRoles) resign(role, id string, token uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := uint64(0)
	if h := f.holders[role]; h.SessionID == id {
		of = h.Token
	} else if p := f.revoked[role]; p.SessionID == id {
		of = p.Token
	}
	switch h, held := f.holders[role]; {
	case token != 0 && token != of:
		return fail(cluster.CodeFenced)
	case f.revoked[role].SessionID == id:
		delete(f.revoked, role)
		f.electNext(role)
	case h.SessionID == id && held:
		f.vacate(role, "resigned")
	case slices.Contains(f.queues[role], id):
		f.queues[role] = slices.DeleteFunc(f.queues[role], func(q string) bool { return q == id })
	case held:
		return fail(cluster.CodeRoleHeld)
	default:
		return notFound()
	}
	return nil
}

func notFound() error {
	e := cluster.Errorf(cluster.CodeBadRequest, "none")
	e.Status = http.StatusNotFound
	return e
}

func (f *fakeRoles) role(w http.ResponseWriter, role string) (apiv1.Role, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set(apiv1.HeaderRevision, fmt.Sprint(f.revision))
	h, held := f.holders[role]
	if !held {
		return h, notFound()
	}
	return h, nil
}

func (f *fakeRoles) watch(n *fakeNode, w http.ResponseWriter, r *http.Request, role string) {
	var since uint64
	fmt.Sscan(r.URL.Query().Get("since"), &since)
	w.Header().Set("Content-Type", apiv1.TypeEventStream)
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		f.mu.Lock()
		var out []fakeChange
		for _, c := range f.changes {
			if c.Role == role && c.Revision > since {
				out = append(out, c)
			}
		}
		changed := f.changed
		f.mu.Unlock()
		for _, c := range out {
			data, _ := json.Marshal(c.RoleEvent)
			fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", c.Revision, c.name, data)
			since = c.Revision
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// attach keeps a session by a connection that does not renew it. A killed node does not report the end of its
// connections.
func (f *fakeRoles) attach(n *fakeNode, w http.ResponseWriter, r *http.Request, id string) {
	f.mu.Lock()
	s := f.sessions[id]
	if s == nil {
		f.mu.Unlock()
		problem(w, fail(cluster.CodeSessionEnded))
		return
	}
	s.streams++
	f.mu.Unlock()
	w.Header().Set("Content-Type", apiv1.TypeEventStream)
	w.WriteHeader(http.StatusOK)
	tick := time.NewTicker(cluster.KeepEvery(s.ttl))
	defer tick.Stop()
	for {
		f.mu.Lock()
		lives, changed := f.sessions[id] != nil, f.changed
		f.mu.Unlock()
		if !lives {
			fmt.Fprintf(w, "event: error\ndata: {\"code\":4012,\"status\":404,\"detail\":\"ended\"}\n\n")
			return
		}
		f.fc.mu.Lock()
		hung, leader := n.paused != nil, f.fc.leader
		f.fc.mu.Unlock()
		if !hung && leader != "" {
			fmt.Fprint(w, ": \n\n")
			w.(http.Flusher).Flush()
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-r.Context().Done():
			f.mu.Lock()
			s.streams--
			last := s.streams == 0
			f.mu.Unlock()
			f.fc.mu.Lock()
			dead := n.dead
			f.fc.mu.Unlock()
			if last && !dead {
				_ = f.end(id, "disconnected")
			}
			return
		}
	}
}

// clock is a session's clock in virtual time. It can jump as if the process or the machine had been suspended.
type clock struct {
	mu    sync.Mutex
	start time.Time
	ahead time.Duration
}

func newClock() *clock { return &clock{start: time.Now()} }

func (c *clock) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.start) + c.ahead
}

func (c *clock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

func mustSession(t *testing.T, c *Client, cfg SessionConfig) *Session {
	t.Helper()
	if cfg.Clock == nil {
		cfg.Clock = newClock().now
	}
	s, err := c.NewSession(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
