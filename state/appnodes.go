package state

import (
	"iter"
	"slices"

	"northstar/cluster"
)

// Limits of the registry of application nodes.
const (
	MaxAppNodes     = 10_000
	maxAppList      = 64  // roles or capabilities of a node
	maxAppText      = 256 // bytes of one of its texts
	maxNodesRemoved = 1000
)

// AppStatus is the status of an application node.
type AppStatus string

// The statuses. A node reports all of them except AppDead, which only the state sets.
const (
	AppJoining  AppStatus = "joining"
	AppActive   AppStatus = "active" // it accepts work
	AppDraining AppStatus = "draining"
	AppDead     AppStatus = "dead" // its session has ended
)

// AppNode is a node of an application as it has registered. It must not be changed.
type AppNode struct {
	ID           string
	Session      string // "" for a dead node
	Hostname     string
	Address      string
	HTTPPort     int
	GRPCPort     int
	Roles        []string
	Capabilities []string
	Version      string
	Status       AppStatus

	RegisteredAt int64 // time of the first registration, Unix nanoseconds
	ChangedAt    int64
	Revision     uint64 // of the last change

	owner string // identity to which the record counts: Session.Owner, also when the node is dead
}

// AppNodePut registers a node or updates its registration. The session may differ from the one before. An unchanged
// registration has no effect and no revision.
type AppNodePut struct {
	Node AppNode // without times and revision
}

// AppNodeRemove removes nodes. CodeBadRequest with status 404 if none of them exists.
type AppNodeRemove struct {
	IDs []string // 1 to maxNodesRemoved
	// DeadSince, if not 0, is Unix nanoseconds: only nodes that died before are removed, and there may be none.
	DeadSince int64
}

// AppNode returns a registered node.
func (v *View) AppNode(id string) (*AppNode, bool) { return v.appNodes.get(id) }

// AppNodesAfter yields the nodes with an ID greater than after, in order.
func (v *View) AppNodesAfter(after string) iter.Seq[*AppNode] {
	return v.appNodes.after(after)
}

func (p *AppNodePut) check() *cluster.Error {
	n := &p.Node
	switch n.Status {
	case AppJoining, AppActive, AppDraining:
	default:
		return badRequest("status: must be joining, active or draining (got %q)", n.Status)
	}
	return firstError(
		CheckAppNode(n.ID), CheckSession("session_id", n.Session),
		checkRange("http_port", n.HTTPPort, 0, 65535), checkRange("grpc_port", n.GRPCPort, 0, 65535),
		checkUTF8("hostname", n.Hostname, maxAppText), checkUTF8("address", n.Address, maxAppText),
		checkUTF8("version", n.Version, maxAppText),
		checkAppList("roles", n.Roles), checkAppList("capabilities", n.Capabilities),
	)
}

// CheckAppNode checks the ID of an application node.
func CheckAppNode(id string) *cluster.Error {
	if id == "counts" || id == "watch" { // routes of the API
		return badRequest("id: %q is reserved", id)
	}
	return checkNode("id", cluster.NodeID(id))
}

func checkAppList(field string, list []string) *cluster.Error {
	return firstError(
		checkRange(field, len(list), 0, maxAppList),
		checkEach(list, func(s string) *cluster.Error {
			if s == "" {
				return badRequest("%s: must not be empty", field)
			}
			return checkUTF8(field, s, maxAppText)
		}))
}

func (p *AppNodeRemove) check() *cluster.Error {
	return firstError(checkRange("ids", len(p.IDs), 1, maxNodesRemoved), checkEach(p.IDs, CheckAppNode))
}

func (p *AppNodePut) apply(w *txn) Result {
	s, err := w.liveSession(p.Node.Session)
	if err != nil {
		return Result{Err: err}
	}
	n := p.Node
	n.RegisteredAt, n.owner = w.now, s.Owner
	old, known := w.write.appNodes.get(n.ID)
	if known && old.SameRegistration(&n) {
		return Result{}
	}
	if err := w.room(n.footprint() - old.footprint()); err != nil {
		return Result{Err: err}
	}
	if !known || old.owner != s.Owner {
		err := w.shareLeft(s.Owner, "application nodes", MaxAppNodesPerIdentity,
			func(n share) int { return n.appNodes })
		if err != nil {
			return Result{Err: err}
		}
	}
	switch {
	case known:
		n.RegisteredAt = old.RegisteredAt
		if old.Session != "" {
			w.unlink(old.Session, ownedNode, n.ID)
		}
	case w.write.appNodes.len() >= MaxAppNodes:
		return failed(cluster.CodeBusy, "there are %d nodes already", MaxAppNodes)
	}
	w.link(n.Session, ownedNode, n.ID)
	w.setAppNode(&n)
	return Result{Revision: w.revision, Created: !known}
}

// SameRegistration reports whether again registers the node unchanged.
func (n *AppNode) SameRegistration(again *AppNode) bool {
	return n.Session == again.Session && n.Hostname == again.Hostname && n.Address == again.Address &&
		n.HTTPPort == again.HTTPPort && n.GRPCPort == again.GRPCPort && n.Version == again.Version &&
		n.Status == again.Status &&
		slices.Equal(n.Roles, again.Roles) && slices.Equal(n.Capabilities, again.Capabilities)
}

// setAppNode writes a node's record and appends it to the history.
func (w *txn) setAppNode(n *AppNode) {
	w.revision++
	n.Revision, n.ChangedAt = w.revision, w.now
	before, _ := w.write.appNodes.get(n.ID)
	w.accountAppNode(before, n)
	w.write.appNodes.put(n.ID, n)
	w.nodeChanges.push(change{item: &Item{Key: n.ID, Value: encodeRecord(n), Revision: w.revision}}, w.options)
}

// markNodeDead marks a node whose session has ended as dead.
func (w *txn) markNodeDead(id string) {
	if n, ok := w.write.appNodes.get(id); ok {
		dead := *n
		w.unlink(dead.Session, ownedNode, id)
		dead.Session, dead.Status = "", AppDead
		w.setAppNode(&dead)
	}
}

func (p *AppNodeRemove) apply(w *txn) Result {
	removed := false
	for _, id := range p.IDs {
		n, ok := w.write.appNodes.get(id)
		if !ok || p.DeadSince != 0 && (n.Status != AppDead || n.ChangedAt >= p.DeadSince) {
			continue
		}
		removed = true
		w.accountAppNode(n, nil)
		w.write.appNodes.remove(id)
		if n.Session != "" {
			w.unlink(n.Session, ownedNode, id)
		}
		w.revision++
		w.nodeChanges.push(change{item: &Item{Key: id, Revision: w.revision}, deleted: true}, w.options)
	}
	if !removed && p.DeadSince == 0 {
		return Result{Err: notFound("id: node %q is not registered", p.IDs[0])}
	}
	return Result{Revision: w.revision}
}

// DecodeAppNode decodes the value of a change of the NodeFeed that is not a removal.
func DecodeAppNode(value []byte) (AppNode, error) {
	var n AppNode
	err := decodeRecord(value, &n)
	return n, err
}
