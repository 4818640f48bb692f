package api

import (
	lists "container/list"
	"net"
	"net/netip"
	"sync"
)

// connTable limits the connections of a node, of one address, and of callers without an identity. When places run out,
// idle connections are closed first. A few places more are for calls that must work on a full node. Any goroutine may
// call the methods.
type connTable struct {
	limit      int
	perAddress int
	anonymous  int                     // limit of anonymousConns; only idle ones are closed for it
	exempt     func(netip.Prefix) bool // reports whether an address has no limit of its own
	rejected   func(reason string)     // counts

	mu             sync.Mutex
	all            lists.List // of *conn; recently used ones are further back
	addresses      map[netip.Prefix]*lists.List
	anonymousConns anonymousConns
}

func newConnTable(l Limits, exempt func(netip.Prefix) bool, rejected func(string)) *connTable {
	return &connTable{
		limit: l.Connections, perAddress: l.AddressConnections, anonymous: l.AnonymousConnections, exempt: exempt,
		rejected: rejected, addresses: map[netip.Prefix]*lists.List{},
		anonymousConns: anonymousConns{addresses: map[netip.Prefix]*anonymousAddress{}},
	}
}

// withReserve returns a limit with the places for calls that must work on a full node.
func withReserve(limit int) int { return limit + max(1, limit/16) }

// add finds a place for c and reports whether there is one.
func (t *connTable) add(c *conn) bool {
	c.table, c.remote = t, c.RemoteAddr().String()
	c.group, c.local = addressGroup(c.remote), isLoopback(c.remote)
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.addresses[c.group]
	if own == nil {
		own = lists.New()
	}
	limited := !t.exempt(c.group)
	if limited && own.Len() >= t.perAddress && !t.closeIdle(own) && own.Len() >= withReserve(t.perAddress) {
		t.rejected("address_limit")
		return false
	}
	if t.all.Len() >= t.limit && !t.closeIdle(&t.all) && t.all.Len() >= withReserve(t.limit) {
		t.rejected("node_limit")
		return false
	}
	if t.anonymousConns.count >= t.anonymous {
		t.anonymousConns.closeOne(t.closeIdle)
	}
	// What gave way may have been in the reserve, too.
	c.reserved.Store(limited && own.Len() >= t.perAddress || t.all.Len() >= t.limit)
	t.addresses[c.group] = own
	c.inAddress, c.inAll = own.PushBack(c), t.all.PushBack(c)
	t.anonymousConns.add(c)
	return true
}

// hasPlace reports whether a client may call on a connection. One that was accepted beyond the limits gets a place once
// there is one: a gRPC client keeps it, and tries again.
func (t *connTable) hasPlace(c *conn) bool {
	if !c.reserved.Load() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.inAddress == nil {
		return !c.reserved.Load() // a peer has a place, and a closed one needs none
	}
	own, limited := t.addresses[c.group], !t.exempt(c.group)
	ofAddress, ofNode := 0, t.all.Len()-t.limit // that must give way
	if limited {
		ofAddress = max(0, own.Len()-t.perAddress)
	}
	if !hasIdle(own, ofAddress) || ofNode > ofAddress && !hasIdle(&t.all, ofNode) {
		return false
	}
	if limited && t.isOver(own, t.perAddress) || t.isOver(&t.all, t.limit) {
		return false
	}
	c.reserved.Store(false)
	return true
}

// isOver closes idle connections of l while there are more than limit, and reports whether more remain.
func (t *connTable) isOver(l *lists.List, limit int) bool {
	for l.Len() > limit {
		if !t.closeIdle(l) {
			return true
		}
	}
	return false
}

// maxIdleScan limits the search for an idle connection. The next search continues where this one ended.
const maxIdleScan = 1024

// hasIdle reports whether n connections of l are idle, as far as the search goes. The next one finds these first.
func hasIdle(l *lists.List, n int) bool {
	e := l.Front()
	for range min(l.Len(), maxIdleScan) {
		if n <= 0 {
			break
		}
		next := e.Next()
		if e.Value.(*conn).serving.Load() == 0 {
			n--
		} else {
			l.MoveToBack(e)
		}
		e = next
	}
	return n <= 0
}

// closeIdle closes an idle connection of l, if possible one that was not used recently, and reports whether it did.
func (t *connTable) closeIdle(l *lists.List) bool {
	for range min(2*l.Len(), maxIdleScan) { // the second time round all were not used recently
		c := l.Front().Value.(*conn)
		if !c.used.Swap(false) && c.serving.CompareAndSwap(0, connClosed) {
			t.drop(c)
			t.rejected("idle")
			_ = c.socket.Close() // net/http then closes c
			return true
		}
		l.MoveToBack(l.Front())
	}
	return false
}

// remove takes the place of c back.
func (t *connTable) remove(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(c)
}

func (t *connTable) drop(c *conn) {
	t.dropAddress(c)
	t.anonymousConns.remove(c)
	if c.inAll != nil {
		t.all.Remove(c.inAll)
		c.inAll = nil
	}
}

// identified marks a connection on which a caller with an identity has called.
func (t *connTable) identified(c *conn) {
	if c.identified.Swap(true) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.anonymousConns.remove(c)
}

func (t *connTable) dropAddress(c *conn) {
	if c.inAddress == nil {
		return
	}
	own := t.addresses[c.group]
	own.Remove(c.inAddress)
	c.inAddress = nil
	if own.Len() == 0 {
		delete(t.addresses, c.group)
	}
}

// addPeer marks a connection of another node: it does not count for its address, and is not closed while idle.
func (t *connTable) addPeer(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.peer {
		return
	}
	c.peer = true
	c.reserved.Store(false)
	c.serving.Add(1)
	t.dropAddress(c)
	t.anonymousConns.remove(c)
}

// removePeer makes a connection of another node one like any other: the node is no member any more.
func (t *connTable) removePeer(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.peer {
		return
	}
	c.peer = false
	c.serving.Add(-1)
	if c.inAll == nil { // closed meanwhile
		return
	}
	own := t.addresses[c.group]
	if own == nil {
		own = lists.New()
		t.addresses[c.group] = own
	}
	c.inAddress = own.PushBack(c)
	if !c.identified.Load() {
		t.anonymousConns.add(c)
	}
}

// Len returns the number of connections.
func (t *connTable) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.Len()
}

// accept returns the next connection that has a place.
func (t *connTable) accept(l net.Listener) (*conn, error) {
	for {
		socket, err := l.Accept()
		if err != nil {
			if outOfResources(err) {
				t.mu.Lock()
				t.closeIdle(&t.all)
				t.mu.Unlock()
			}
			return nil, err
		}
		c := &conn{Conn: socket, socket: socket}
		if t.add(c) {
			return c, nil
		}
		_ = socket.Close()
	}
}
