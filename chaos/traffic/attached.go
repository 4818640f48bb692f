package traffic

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
)

// attachedTTL is long enough that no session expires before the traffic ends.
const attachedTTL = 10 * time.Minute

// attacher keeps sessions alive by connections, which it closes in the end.
type attacher struct{ user }

func (a *attacher) run() {
	ttl := attachedTTL.Milliseconds()
	create := apiv1.SessionCreate{Name: "attached", TTLMS: &ttl}
	for a.Pause(20 * time.Millisecond) {
		var made apiv1.SessionCreated
		if a.askAny(a.cfg.Timeout, post(apiv1.PathSessions, create, &made)) != nil {
			continue
		}
		if !a.keep(made.SessionID) {
			end := Request{Method: http.MethodDelete, Path: apiv1.PathSessions + "/" + made.SessionID}
			_ = a.askAny(a.cfg.Timeout, end)
		}
	}
}

// keep attaches a session to one connection after the other, until this side closes one. If that was the first
// connection, the session must end. A node that crashes while it serves a connection reports nothing, and the session
// lives for its TTL. keep returns false if the session may live.
func (a *attacher) keep(session string) bool {
	for first := true; a.Pause(10 * time.Millisecond); first = false {
		n := a.cluster.Nodes()[a.anyNode()]
		switch how, detail := a.attach(n, session); how {
		case detached:
			if first {
				a.mu.Lock()
				a.attached = append(a.attached, check.AttachedSession{
					Session: session, Node: n.ID,
					DetachedAt: a.now(),
				})
				a.mu.Unlock()
			}
			return first
		case notAttached:
			return false
		case sessionEnded:
			a.violated(check.SessionsLive,
				"session %s, which is attached, had ended when %s was asked: %s", session, n.ID, detail)
			return true
		}
	}
	return false
}

// ending is how a connection ended.
type ending int

const (
	connectionLost ending = iota // by the node, or there was no connection: the session lives on
	detached                     // by this side, after the node had confirmed the attachment
	notAttached                  // by this side, before that
	sessionEnded
)

// attach keeps a session attached to a connection for a while.
func (a *attacher) attach(n Node, session string) (how ending, detail string) {
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	var closed, sent atomic.Bool
	hangUp := time.AfterFunc(time.Duration(200+a.rand.IntN(3000))*time.Millisecond,
		func() { closed.Store(true); cancel() })
	defer hangUp.Stop()
	ctx = httptrace.WithClientTrace(ctx,
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	url := "http://" + n.HTTP + apiv1.PathSessions + "/" + session + "/attach"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return connectionLost, err.Error()
	}
	res, err := a.machine.Client.Do(req)
	if err != nil {
		if closed.Load() && sent.Load() {
			return notAttached, "" // or the node has attached the session in the meantime
		}
		return connectionLost, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		return a.problem(text)
	}
	alive := false
	for e := range events(res.Body) {
		switch e.name {
		case apiv1.EventKeepAlive:
			alive = true
		case apiv1.EventDraining:
			return connectionLost, e.name
		case apiv1.EventError:
			return a.problem([]byte(e.data))
		}
	}
	switch {
	case !closed.Load():
		return connectionLost, "the stream ended"
	case alive:
		return detached, ""
	}
	return notAttached, ""
}

// problem distinguishes the end of a session from the end of its connection.
func (a *attacher) problem(text []byte) (how ending, detail string) {
	var p apiv1.Problem
	_ = json.Unmarshal(text, &p)
	switch cluster.Code(p.Code) {
	case cluster.CodeSessionEnded:
		return sessionEnded, string(text)
	case cluster.CodeNoLeader, cluster.CodeBusy, cluster.CodeReadOnly, cluster.CodeOutcomeUnknown,
		cluster.CodeSplitBrain:
		return connectionLost, string(text)
	}
	a.violated(check.OnlyDocumentedErrors, "attach: %s", text)
	return connectionLost, string(text)
}

// CheckAttached checks, a while after the traffic has ended, that no session outlived its connection. faults are those
// of nodes, and gaps are the periods without an acknowledged write.
func (t *Traffic) CheckAttached(faults, gaps []check.FaultInterval, within time.Duration) []check.Violation {
	open := slices.DeleteFunc(slices.Clone(t.attached), func(s check.AttachedSession) bool { // the others must end
		alive := map[string]bool{s.Session: true}
		return len(check.CheckAttachedSessionsEnd([]check.AttachedSession{s}, alive, faults, gaps)) == 0
	})
	if len(open) == 0 {
		return nil
	}
	alive := t.alive(open, time.Now().Add(within), within)
	return check.CheckAttachedSessionsEnd(open, alive, faults, gaps)
}

// alive returns the sessions that are alive at a time. If no node answers, it retries for a while. A session that no
// node names is not alive.
func (t *Traffic) alive(open []check.AttachedSession, at time.Time, longer time.Duration) map[string]bool {
	m := t.cluster.Machine("alive")
	defer m.Close()
	u := user{t, m, t.cfg.Rand("alive", "", 0)}
	alive := map[string]bool{}
	for ; len(open) > 0 && time.Now().Before(at.Add(longer)); time.Sleep(100 * time.Millisecond) {
		var rest []check.AttachedSession
		for _, s := range open {
			late := time.Now().After(at)
			err := u.askAny(t.cfg.Timeout, get(apiv1.PathSessions+"/"+s.Session, nil))
			switch e := asProblem(err); {
			case e != nil && (e.Status == http.StatusNotFound || e.Code == cluster.CodeSessionEnded):
			case err == nil && late:
				alive[s.Session] = true
			default:
				rest = append(rest, s)
			}
		}
		open = rest
	}
	return alive
}
