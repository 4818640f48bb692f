package proc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/chaos/traffic"
	"northstar/cluster"
)

// attachedTTL is so long that no session ends by it before the suite looks.
const attachedTTL = 10 * time.Minute

// chaosHolders hold sessions by connections, which they let go of in the end.
type chaosHolders struct {
	c *chaosClients

	mu   sync.Mutex
	held []check.AttachedSession
}

func (c *chaosClients) startHolders() {
	c.holders = &chaosHolders{c: c}
	for i := range 2 {
		h := &holder{chaosHolders: c.holders, rand: rand.New(rand.NewPCG(c.s.seed, uint64(2000+i))), http: traffic.NewHTTPClient(users{c.s}.Machine(""))}
		c.Go(h.run)
	}
}

// check looks which sessions outlived their connections.
func (hs *chaosHolders) check() []check.Violation {
	s := hs.c.s
	s.mu.Lock()
	hits := s.faultIntervals()
	var without []check.FaultInterval
	for _, g := range s.gaps() {
		without = append(without, check.FaultInterval{From: g.From, To: g.To})
	}
	s.mu.Unlock()
	var open []check.AttachedSession // not excused
	for _, h := range hs.held {
		if len(check.CheckAttachedSessionsEnd([]check.AttachedSession{h}, map[string]bool{h.Session: true}, hits, without)) > 0 {
			open = append(open, h)
		}
	}
	return check.CheckAttachedSessionsEnd(hs.held, hs.living(open, time.Now().Add(soon)), hits, without)
}

// living returns those sessions that live on at a time. While nobody answers nobody
// knows: it asks on for a while then, and takes none for alive that no node names.
func (hs *chaosHolders) living(open []check.AttachedSession, at time.Time) map[string]bool {
	s := hs.c.s
	h := &holder{chaosHolders: hs, rand: rand.New(rand.NewPCG(s.seed, 4)), http: traffic.NewHTTPClient(users{s}.Machine(""))}
	alive := map[string]bool{}
	for ctx := s.t.Context(); len(open) > 0 && time.Now().Before(at.Add(soon)); pause(100 * time.Millisecond) {
		var rest []check.AttachedSession
		for _, session := range open {
			late := time.Now().After(at)
			err := h.ask(ctx, traffic.Request{Method: http.MethodGet, Path: apiv1.PathSessions + "/" + session.Session})
			e, failed := errors.AsType[*cluster.Error](err)
			switch {
			case failed && (e.Status == http.StatusNotFound || e.Code == cluster.CodeSessionEnded):
			case err == nil && late:
				alive[session.Session] = true
			default:
				rest = append(rest, session)
			}
		}
		open = rest
	}
	return alive
}

type holder struct {
	*chaosHolders
	rand *rand.Rand
	http *traffic.HTTPClient
}

// ask makes one request at any node.
func (h *holder) ask(ctx context.Context, q traffic.Request) error {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	nodes := users{h.c.s}.Nodes()
	_, _, err := h.http.Do(ctx, nodes[h.rand.IntN(len(nodes))], q)
	return err
}

func (h *holder) run() {
	ttl := attachedTTL.Milliseconds()
	for h.c.Pause(20 * time.Millisecond) {
		var made apiv1.SessionCreated
		if h.ask(h.c.ctx, traffic.Request{Method: http.MethodPost, Path: apiv1.PathSessions, In: apiv1.SessionCreate{Name: "holder", TTLMS: &ttl}, Out: &made}) != nil {
			continue
		}
		if !h.hold(made.SessionID) {
			_ = h.ask(h.c.ctx, traffic.Request{Method: http.MethodDelete, Path: apiv1.PathSessions + "/" + made.SessionID})
		}
	}
}

// hold holds a session by one connection after the other, until this side ends
// one. Then the session must end, if it was the first: who serves a connection and
// dies reports nobody, and holds the session for its TTL. False when the session
// may live.
func (h *holder) hold(session string) bool {
	for first := true; h.c.Pause(10 * time.Millisecond); first = false {
		nodes := h.c.s.cluster.Nodes
		n := nodes[h.rand.IntN(len(nodes))]
		switch how, detail := h.attach(n, session); how {
		case letGo:
			if !first {
				return false
			}
			h.mu.Lock()
			h.held = append(h.held, check.AttachedSession{Session: session, Node: n.ID, DetachedAt: h.c.s.now()})
			h.mu.Unlock()
			return true
		case gaveUp:
			return false
		case ended:
			h.c.s.violated(check.Violation{Invariant: check.SessionsLive, Detail: fmt.Sprintf("session %s, which its client holds, had ended, says %s: %s", session, n.ID, detail)})
			return true
		}
	}
	return false
}

// How a connection ended.
const (
	broken = "broken" // the node's end, or none was made: the session lives on
	letGo  = "let go" // this end, after the node had said that it holds the session
	gaveUp = "gave up"
	ended  = "ended" // the session
)

// attach holds a session by a connection to a node for a while.
func (h *holder) attach(n *Node, session string) (how, detail string) {
	ctx, cancel := context.WithCancel(h.c.ctx)
	defer cancel()
	var mine atomic.Bool
	hangUp := time.AfterFunc(time.Duration(200+h.rand.IntN(3000))*time.Millisecond, func() { mine.Store(true); cancel() })
	defer hangUp.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+apiv1.PathSessions+"/"+session+"/attach", nil)
	if err != nil {
		return broken, err.Error()
	}
	resp, err := testClient.Do(req)
	if err != nil {
		var dial *net.OpError
		if mine.Load() && !(errors.As(err, &dial) && dial.Op == "dial") {
			return gaveUp, "" // it may have been attached just then
		}
		return broken, err.Error()
	}
	defer resp.Body.Close()
	alive := false
	lines := bufio.NewScanner(resp.Body)
	if resp.StatusCode != http.StatusOK {
		lines.Scan()
		return h.refused(lines.Bytes())
	}
	for event := ""; lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case name == "event":
			event = value
			alive = alive || event == apiv1.EventKeepAlive
		case name == "data" && event == apiv1.EventDraining:
			return broken, event
		case name == "data" && event == apiv1.EventError:
			return h.refused([]byte(value))
		}
	}
	switch {
	case !mine.Load():
		return broken, fmt.Sprint(lines.Err())
	case alive:
		return letGo, ""
	}
	return gaveUp, ""
}

// refused reports the end of a session from the end of its connection.
func (h *holder) refused(problem []byte) (how, detail string) {
	var p apiv1.Problem
	_ = json.Unmarshal(problem, &p)
	switch cluster.Code(p.Code) {
	case cluster.CodeSessionEnded:
		return ended, string(problem)
	case cluster.CodeNoLeader, cluster.CodeBusy, cluster.CodeReadOnly, cluster.CodeOutcomeUnknown, cluster.CodeSplitBrain:
		return broken, string(problem)
	}
	h.c.s.violated(check.Violation{Invariant: check.OnlyDocumentedErrors, Detail: fmt.Sprintf("attach: %s", problem)})
	return broken, string(problem)
}
