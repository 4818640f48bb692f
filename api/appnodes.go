package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/state"
)

// putNode writes nothing for a registration that changes nothing: a node may report its load often.
func putNode(c *request, in apiv1.NodePut) error {
	if in.Status == "" {
		in.Status = string(state.AppActive)
	}
	if l := in.Load; l != nil && (l.Connections < 0 || l.Jobs < 0 || l.CPU < 0 || l.Memory < 0) {
		return problem.BadRequest("load: must be numbers of at least 0 (got connections %d, jobs %d, cpu %v, memory %v)",
			l.Connections, l.Jobs, l.CPU, l.Memory)
	}
	put := state.AppNodePut{Node: state.AppNode{
		ID: c.param, Session: in.SessionID, Hostname: in.Hostname, Address: in.Address, HTTPPort: in.HTTPPort,
		GRPCPort: in.GRPCPort,
		Roles:    in.Roles, Capabilities: in.Capabilities, Version: in.Version, Status: state.AppStatus(in.Status),
	}}
	cmd := state.Command{Kind: state.KindAppNodePut, AppNodePut: &put}
	if err := cmd.Validate(); err != nil {
		return err
	}
	number, end, err := c.number(&cmd)
	if err != nil {
		return err
	}
	defer end()
	var result state.Result
	err = c.onLeader(c.ctx, forward.Request{
		Write: true, Idempotent: true, Number: number,
		Local: func(ctx context.Context) (err error) {
			if err := c.checkCommand(ctx, &cmd); err != nil {
				return err
			}
			if same, err := c.isRegistered(ctx, &put.Node); same || err != nil {
				return err
			}
			result, err = c.proposeHere(ctx, cmd)
			return err
		},
	})
	switch {
	case err != nil:
		return err
	case result.Err != nil:
		return result.Err
	}
	view := c.s.reads.View()
	n, ok := view.AppNode(c.param)
	_, lives := view.Session(in.SessionID)
	switch {
	case ok && n.Session == in.SessionID:
		c.s.loads.put(c.s.leader.Current(), n, in.Load)
	case !lives:
		return problem.SessionEnded(in.SessionID) // the session ended just now
	case !ok:
		return notRegistered(c.param) // it was removed just now
	}
	return c.reply(c.wireNode(n)) // perhaps of another session, which has registered the same ID since
}

// isRegistered reports whether a registration changes nothing. Frequent reports of an unchanged node are not audited.
func (c *request) isRegistered(ctx context.Context, node *state.AppNode) (bool, error) {
	same := func() bool {
		n, ok := c.s.reads.View().AppNode(node.ID)
		return ok && n.SameRegistration(node) // its session is live, or the node would be dead
	}
	if !same() {
		return false, nil
	}
	// A new leader may not have applied a later change yet.
	if err := c.s.reads.ReadBarrier(ctx); err != nil || !same() {
		return false, err
	}
	c.audited = true
	return true, nil
}

func getNode(c *request) error {
	return c.read(func(v *state.View) error {
		n, ok := v.AppNode(c.param)
		if !ok {
			return notRegistered(c.param)
		}
		return c.reply(c.wireNode(n))
	})
}

func notRegistered(id string) error {
	return problem.Status(http.StatusNotFound, "id: node %q is not registered", id)
}

func listNodes(c *request) error {
	limit, after, err := c.page()
	if err != nil {
		return err
	}
	status, role, capability := c.query.Get("status"), c.query.Get("role"), c.query.Get("capability")
	switch state.AppStatus(status) {
	case "", state.AppJoining, state.AppActive, state.AppDraining, state.AppDead:
	default:
		return problem.BadRequest("status: must be joining, active, draining or dead (got %q)", status)
	}
	return c.read(func(*state.View) error {
		return replyItems(c, listing[*state.AppNode]{
			after: (*state.View).AppNodesAfter,
			key:   func(n *state.AppNode) string { return n.ID },
			want: func(n *state.AppNode) bool {
				return (status == "" || string(n.Status) == status) &&
					(role == "" || slices.Contains(n.Roles, role)) &&
					(capability == "" || slices.Contains(n.Capabilities, capability))
			},
		}, limit, after, func(_ *state.View, n *state.AppNode) apiv1.Node { return c.wireNode(n) })
	})
}

func countNodes(c *request) error {
	return c.read(func(v *state.View) error {
		var out apiv1.Counts
		for n := range v.AppNodesAfter("") {
			count(&out, string(n.Status))
		}
		return c.reply(out)
	})
}

func removeNode(c *request, _ struct{}) error {
	cmd := state.Command{Kind: state.KindAppNodeRemove, AppNodeRemove: &state.AppNodeRemove{IDs: []string{c.param}}}
	if _, err := c.proposeValid(cmd, false); err != nil {
		return err
	}
	c.s.loads.remove(c.param)
	return c.reply(apiv1.NodeRemoved{ID: c.param})
}

func watchNodes(c *request) error {
	return c.follow(c.s.reads.NodeFeed(), "", c.encodeNodeChange)
}

func (c *request) encodeNodeChange(e *stream.Events, ch *state.Change) error {
	n, err := state.DecodeAppNode(ch.Value)
	if err != nil {
		return err
	}
	if ch.Deleted {
		n.ID, n.Revision = ch.Key, ch.Revision
	}
	wire := c.wireNode(&n)
	wire.Load, wire.StartedAt, wire.LastHeartbeatAt, wire.Revision = nil, nil, nil, ch.Revision
	data, err := json.Marshal(wire)
	if err != nil {
		return err
	}
	return e.Event(strconv.FormatUint(ch.Revision, 10), changeName(ch), data)
}

func (c *request) wireNode(n *state.AppNode) apiv1.Node {
	out := apiv1.Node{
		ID: n.ID, SessionID: n.Session, Hostname: n.Hostname, Address: n.Address, HTTPPort: n.HTTPPort,
		GRPCPort: n.GRPCPort,
		Roles:    append([]string{}, n.Roles...), Capabilities: append([]string{}, n.Capabilities...),
		Version: n.Version,
		Status:  string(n.Status), CanAcceptWork: n.Status == state.AppActive,
		RegisteredAt: unixNano(n.RegisteredAt), ChangedAt: unixNano(n.ChangedAt), Revision: n.Revision,
	}
	s, live := c.s.reads.View().Session(n.Session)
	if !live {
		return out
	}
	out.StartedAt = timePtr(s.CreatedAt)
	if !c.stale() {
		out.Load = c.s.loads.get(c.s.leader.Current(), n)
		out.LastHeartbeatAt = new(time.Now().Add(c.s.deps.Sessions.Remaining(s) - s.TTL).UTC())
	}
	return out
}

// loads holds the loads that application nodes have reported to this leader.
type loads struct {
	mu     sync.Mutex
	term   uint64
	byNode map[string]reportedLoad
}

// reportedLoad is a load and the session that reported it: of another session of the node, none is known.
type reportedLoad struct {
	session string
	load    apiv1.Load
}

// put stores a node's load; nil keeps the previous one.
func (l *loads) put(leader *forward.Leader, n *state.AppNode, load *apiv1.Load) {
	if load == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// bounds the map although nodes come and go
	if l.byNode == nil || l.term != leader.Term || len(l.byNode) >= 2*state.MaxAppNodes {
		l.byNode, l.term = map[string]reportedLoad{}, leader.Term
	}
	l.byNode[n.ID] = reportedLoad{n.Session, *load}
}

func (l *loads) get(leader *forward.Leader, n *state.AppNode) *apiv1.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.byNode[n.ID]
	if !ok || l.term != leader.Term || r.session != n.Session {
		return nil
	}
	return &r.load
}

func (l *loads) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byNode, id)
}
