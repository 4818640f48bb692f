package state

import (
	"iter"
	"slices"
	"strings"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

// Limits of the registry of application nodes.
const (
	MaxAppNodes     = 10_000
	maxAppList      = 64  // roles or capabilities of a node
	maxAppText      = 256 // bytes of one of its texts
	maxNodesRemoved = 1000
)

// AppStatus is where an application node stands.
type AppStatus string

// What a node may say of itself. Dead is for the state to say.
const (
	AppJoining  AppStatus = "joining"
	AppActive   AppStatus = "active" // it accepts work
	AppDraining AppStatus = "draining"
	AppDead     AppStatus = "dead" // its session has ended
)

// AppNode is a node of an application, as it has registered itself. It must not be
// changed.
type AppNode struct {
	ID           string
	Session      string // "" once it is dead
	Hostname     string
	Address      string
	HTTPPort     int
	GRPCPort     int
	Roles        []string
	Capabilities []string
	Version      string
	Status       AppStatus

	RegisteredAt int64 // Unix nanoseconds; of the first time
	ChangedAt    int64
	Revision     uint64 // of the last change
}

// AppNodePut registers a node, or says of a registered one what it is now. Its
// session may be another than before. It has no effect, and no revision, when
// everything is as it was.
type AppNodePut struct {
	Node AppNode // without times and revision
}

// AppNodeRemove removes nodes. CodeBadRequest with status 404 when there is none
// of them.
type AppNodeRemove struct {
	IDs []string // 1 to maxNodesRemoved
	// DeadSince, when not 0, is Unix nanoseconds: only nodes that are dead since
	// before then are removed, and that there are none is no error.
	DeadSince int64
}

// AppNode gives a registered node.
func (v *View) AppNode(id string) (*AppNode, bool) { return v.appNodes.Get([]byte(id)) }

// AppNodesAfter yields the nodes with an ID greater than after, in order.
func (v *View) AppNodesAfter(after string) iter.Seq[*AppNode] { return valuesAfter(v.appNodes, after) }

func (p *AppNodePut) check() *cluster.Error {
	n := &p.Node
	switch n.Status {
	case AppJoining, AppActive, AppDraining:
	default:
		return cluster.Errorf(cluster.CodeBadRequest, "status: want joining, active or draining, got %q", n.Status)
	}
	return firstError(
		CheckAppNode(n.ID), CheckSession("session_id", n.Session), checkPort("http_port", n.HTTPPort), checkPort("grpc_port", n.GRPCPort),
		checkAppText("hostname", n.Hostname), checkAppText("address", n.Address), checkAppText("version", n.Version),
		checkAppList("roles", n.Roles), checkAppList("capabilities", n.Capabilities),
	)
}

// CheckAppNode checks the ID of an application node.
func CheckAppNode(id string) *cluster.Error {
	if id == "counts" || id == "watch" {
		return cluster.Errorf(cluster.CodeBadRequest, "id: %q is taken by the API itself", id)
	}
	return checkNode("id", cluster.NodeID(id))
}

func checkPort(name string, port int) *cluster.Error {
	if port < 0 || port > 65535 {
		return cluster.Errorf(cluster.CodeBadRequest, "%s: want 0 to 65535, got %d", name, port)
	}
	return nil
}

func checkAppText(name, text string) *cluster.Error {
	if len(text) > maxAppText || strings.ToValidUTF8(text, "") != text {
		return cluster.Errorf(cluster.CodeBadRequest, "%s: want at most %d bytes of UTF-8, got %d bytes", name, maxAppText, len(text))
	}
	return nil
}

func checkAppList(name string, list []string) *cluster.Error {
	if len(list) > maxAppList {
		return cluster.Errorf(cluster.CodeBadRequest, "%s: want at most %d, got %d", name, maxAppList, len(list))
	}
	for _, s := range list {
		if s == "" {
			return cluster.Errorf(cluster.CodeBadRequest, "%s: must not be empty", name)
		}
		if err := checkAppText(name, s); err != nil {
			return err
		}
	}
	return nil
}

func (p *AppNodeRemove) check() *cluster.Error {
	if n := len(p.IDs); n < 1 || n > maxNodesRemoved {
		return cluster.Errorf(cluster.CodeBadRequest, "ids: want 1 to %d, got %d", maxNodesRemoved, n)
	}
	for _, id := range p.IDs {
		if err := CheckAppNode(id); err != nil {
			return err
		}
	}
	return nil
}

func (p *AppNodePut) apply(w *txn) Result {
	if _, err := w.liveSession(p.Node.Session); err != nil {
		return Result{Err: err}
	}
	n := p.Node
	n.RegisteredAt = w.now
	old, known := w.writeAppNodes().Get([]byte(n.ID))
	switch {
	case known && old.SameRegistration(&n):
		return Result{}
	case known:
		n.RegisteredAt = old.RegisteredAt
		if old.Session != "" {
			w.unlink(old.Session, ownedNode, n.ID)
		}
	case w.appNodes.Len()+w.newAppNodes >= MaxAppNodes:
		return Result{Err: cluster.Errorf(cluster.CodeBusy, "there are %d nodes already", MaxAppNodes)}
	default:
		w.newAppNodes++
	}
	w.link(n.Session, ownedNode, n.ID)
	w.setAppNode(&n)
	return Result{Revision: w.revision, Created: !known}
}

// SameRegistration says whether a registered node is what it says of itself again.
func (n *AppNode) SameRegistration(again *AppNode) bool {
	return n.Session == again.Session && n.Hostname == again.Hostname && n.Address == again.Address && n.HTTPPort == again.HTTPPort &&
		n.GRPCPort == again.GRPCPort && n.Version == again.Version && n.Status == again.Status &&
		slices.Equal(n.Roles, again.Roles) && slices.Equal(n.Capabilities, again.Capabilities)
}

// setAppNode puts a node's record in its place, and into the history.
func (w *txn) setAppNode(n *AppNode) {
	w.revision++
	n.Revision, n.ChangedAt = w.revision, w.now
	w.writeAppNodes().Insert([]byte(n.ID), n)
	w.nodeChanges.push(change{item: &Item{Key: n.ID, Value: encodeRecord(n), Revision: w.revision}}, w.options)
}

// markNodeDead marks a node as dead: its session has ended.
func (w *txn) markNodeDead(id string) {
	if n, ok := w.writeAppNodes().Get([]byte(id)); ok {
		dead := *n
		w.unlink(dead.Session, ownedNode, id)
		dead.Session, dead.Status = "", AppDead
		w.setAppNode(&dead)
	}
}

func (p *AppNodeRemove) apply(w *txn) Result {
	removed := false
	for _, id := range p.IDs {
		n, ok := w.writeAppNodes().Get([]byte(id))
		if !ok || p.DeadSince != 0 && (n.Status != AppDead || n.ChangedAt >= p.DeadSince) {
			continue
		}
		removed = true
		w.appNodesTxn.Delete([]byte(id))
		w.newAppNodes--
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

func (w *txn) writeAppNodes() *iradix.Txn[*AppNode] { return open(&w.appNodesTxn, w.appNodes) }

// DecodeAppNode reads the value of a change of the NodeFeed that is no removal.
func DecodeAppNode(value []byte) (AppNode, error) {
	var n AppNode
	err := decodeRecord(value, &n)
	return n, err
}
