package transport

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"northstar/cluster"
)

// Every connection starts with a hello. The dialling side sends its hello. The accepting side responds with its own
// hello and reply. The dialling side ends with its reply.
//
//	hello:   magic [4] · protocol version [1] · purpose [1] · nonce [16] · length [4] · cluster.Peer as JSON
//	reply:   length [4] · reply as JSON
//
// The layout up to the length is the same in all protocol versions.
const (
	protocolVersion = 1
	nonceSize       = 16
	helloHeader     = 4 + 1 + 1 + nonceSize + 4
	maxHello        = 8 << 10 // bytes of either JSON text
	maxBootID       = 64      // bytes; a node has 16
)

var magic = [4]byte{'N', 'S', 'T', 0xf1}

// purpose is what a connection is for.
type purpose byte

const (
	purposeRaft  purpose = 1 // after the hello: Raft messages from the dialling side
	purposeProbe purpose = 2 // after the hello: nothing, or monitor frames in both directions
	purposeRelay purpose = 3 // after the hello: one message and its response
	purposeCalls purpose = 4 // after the hello: requests of the dialling side and their responses
)

type nonce [nonceSize]byte

// hello is one side's introduction.
type hello struct {
	version byte
	purpose purpose
	nonce   nonce
	peer    cluster.Peer
}

// helloReply is one side's decision about the other's hello. It was made with ClusterID and Generation.
type helloReply struct {
	Refusal           cluster.Refusal    `json:"refusal,omitempty"`
	Reason            string             `json:"reason,omitempty"`
	Votes             bool               `json:"votes,omitempty"`
	MayAdoptClusterID bool               `json:"vouched,omitempty"`
	ClusterID         string             `json:"cluster_id,omitempty"`
	Generation        cluster.Generation `json:"generation"`
	Nonce             nonce              `json:"nonce"` // of the hello that it answers
	// Roster is set for an admitted node. A node without a cluster ID that adopts this one's can then admit the other
	// members immediately; it may have heard of none of them otherwise. A node with an ID admits a member that was
	// re-admitted while it was away: it gets the members that are not removed. From a node without a cluster ID it is
	// the roster that the node was bootstrapped with, for a node without one.
	Roster *cluster.Roster `json:"roster,omitempty"`
}

func (v helloReply) admission() cluster.Admission {
	return cluster.Admission{
		Refusal: v.Refusal, Reason: v.Reason, Votes: v.Votes,
		MayAdoptClusterID: v.MayAdoptClusterID,
	}
}

// errNotPeer means that the other end does not use this protocol.
var errNotPeer = errors.New("not a NorthStar peer")

// newHello returns this node's hello and its encoding.
func (t *Transport) newHello(p purpose) (hello, []byte, error) {
	h := hello{version: protocolVersion, purpose: p, peer: t.cfg.Membership.LocalPeer()}
	h.peer.RaftAddress = t.cfg.Advertise // as in its Raft messages
	_, _ = rand.Read(h.nonce[:])         // never fails (crypto/rand)
	b, err := h.encode()
	return h, b, err
}

func (h hello) encode() ([]byte, error) {
	body, err := json.Marshal(h.peer)
	if err != nil {
		return nil, fmt.Errorf("encode hello: %w", err)
	}
	if len(body) > maxHello {
		return nil, fmt.Errorf("hello of %d bytes is over %d", len(body), maxHello)
	}
	b := append(magic[:], h.version, byte(h.purpose))
	return appendSized(append(b, h.nonce[:]...), body), nil
}

// appendSized appends a text with its length before it.
func appendSized(b, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(body))), body...)
}

// readSized reads what appendSized has written. The error wraps tooLong if it has more than limit bytes.
func readSized(r io.Reader, limit uint32, tooLong error) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	return readBody(r, head[:], limit, tooLong)
}

func readBody(r io.Reader, head []byte, limit uint32, tooLong error) ([]byte, error) {
	size := binary.BigEndian.Uint32(head)
	if size > limit {
		return nil, fmt.Errorf("%w: message of %d bytes is over %d", tooLong, size, limit)
	}
	body := make([]byte, size)
	_, err := io.ReadFull(r, body)
	return body, err
}

// readHello reads one hello. The error wraps errNotPeer if the bytes are not a hello. A hello of another protocol
// version is not an error; its peer is empty if the body does not name a node.
func readHello(r io.Reader) (hello, error) {
	var head [helloHeader]byte
	if n, err := io.ReadFull(r, head[:]); err != nil {
		if !bytes.HasPrefix(magic[:], head[:min(n, len(magic))]) {
			err = errNotPeer
		}
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	if !bytes.Equal(head[:4], magic[:]) {
		return hello{}, errNotPeer
	}
	h := hello{version: head[4], purpose: purpose(head[5])}
	copy(h.nonce[:], head[6:])
	body, err := readBody(r, head[6+nonceSize:], maxHello, errNotPeer)
	if err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	if h.version != protocolVersion {
		h.peer.NodeID = nodeNamed(body)
		return h, nil
	}
	if err := json.Unmarshal(body, &h.peer); err != nil {
		return hello{}, fmt.Errorf("%w: %w", errNotPeer, err)
	}
	if _, err := cluster.ParseNodeID(string(h.peer.NodeID)); err != nil {
		return hello{}, fmt.Errorf("%w: %w", errNotPeer, err)
	}
	if len(h.peer.BootID) > maxBootID {
		return hello{}, fmt.Errorf("%w: boot ID of %d bytes is over %d", errNotPeer, len(h.peer.BootID), maxBootID)
	}
	if h.purpose < purposeRaft || h.purpose > purposeCalls {
		return hello{}, fmt.Errorf("%w: purpose %d", errNotPeer, h.purpose)
	}
	return h, nil
}

// nodeNamed returns the node that a hello of another protocol version names, "" if there is no valid node ID. Other
// fields may have another form there.
func nodeNamed(body []byte) cluster.NodeID {
	var names struct {
		NodeID string `json:"node_id"`
	}
	_ = json.Unmarshal(body, &names)
	id, err := cluster.ParseNodeID(names.NodeID)
	if err != nil {
		return ""
	}
	return id
}

func (v helloReply) encode() ([]byte, error) {
	v.Reason = v.Reason[:min(len(v.Reason), 1024)]
	body, err := json.Marshal(v)
	if err == nil && len(body) > maxHello && v.Roster != nil {
		v.Roster = nil // a hundred members: the node will learn of them from the log
		body, err = json.Marshal(v)
	}
	if err != nil {
		return nil, fmt.Errorf("encode hello reply: %w", err)
	}
	return appendSized(nil, body), nil
}

func readHelloReply(r io.Reader, n nonce) (helloReply, error) {
	body, err := readSized(r, maxHello, errNotPeer)
	if err != nil {
		return helloReply{}, fmt.Errorf("read hello reply: %w", err)
	}
	var v helloReply
	if err := json.Unmarshal(body, &v); err != nil {
		return helloReply{}, fmt.Errorf("read hello reply: %w: %w", errNotPeer, err)
	}
	if v.Nonce != n {
		return helloReply{}, fmt.Errorf("read hello reply: %w: it belongs to another hello", errNotPeer)
	}
	return v, nil
}

type completedHello struct {
	peer         cluster.Peer
	sentIdentity cluster.Identity // this node's identity in its own hello
	purpose      purpose
	dialled      bool              // by this node
	mine         cluster.Admission // this node's decision about the peer
	theirs       helloReply        // the peer's decision about this node
}

// refused returns the error of a hello that either side refused, nil otherwise.
func (x completedHello) refused() error {
	switch {
	case !x.mine.OK():
		return &RefusedError{Node: x.peer.NodeID, Refusal: x.mine.Refusal, Reason: x.mine.Reason}
	case x.theirs.Refusal != "":
		return &RefusedError{Node: x.peer.NodeID, Refusal: x.theirs.Refusal, Reason: x.theirs.Reason, ByPeer: true}
	}
	return nil
}

// RefusedError means that one side of a hello refused the other.
type RefusedError struct {
	Node    cluster.NodeID // the peer
	Refusal cluster.Refusal
	Reason  string
	ByPeer  bool // the peer refused this node
}

func (e *RefusedError) Error() string {
	if e.ByPeer {
		return fmt.Sprintf("refused by node %s (%s): %s", e.Node, e.Refusal, e.Reason)
	}
	return fmt.Sprintf("refusing node %s (%s): %s", e.Node, e.Refusal, e.Reason)
}

// evaluateHello decides about a hello and encodes the reply.
func (t *Transport) evaluateHello(h hello) (cluster.Admission, []byte, error) {
	self := t.cfg.Membership.LocalPeer()
	if h.version == protocolVersion {
		if err := t.cfg.Membership.RecordIncarnation(h.peer); err != nil {
			t.quiet.warn("record", "peer incarnation not recorded: no votes exchanged", "peer", h.peer.NodeID, "error",
				err)
		}
	}
	a := cluster.Admit(self, h.peer, t.cfg.Membership.Record(h.peer.NodeID))
	if h.version != protocolVersion {
		a = cluster.Admission{
			Refusal: cluster.RefusedProtocol,
			Reason: fmt.Sprintf("node %q uses protocol version %d, this node %d", h.peer.NodeID, h.version,
				protocolVersion),
		}
	}
	v := helloReply{
		Refusal: a.Refusal, Reason: a.Reason, Votes: a.Votes, MayAdoptClusterID: a.MayAdoptClusterID,
		ClusterID: self.ClusterID, Generation: self.Generation, Nonce: h.nonce,
	}
	switch {
	case !a.OK():
	case h.peer.ClusterID == "":
		v.Roster = self.Roster
	case self.ClusterID != "" && self.Roster != nil:
		v.Roster = self.Roster.WithoutRemoved()
	}
	b, err := v.encode()
	return a, b, err
}

// dialHello completes the hello on a connection that this node dialled. want is the expected node, "" for any.
// identity is the node ID in the peer's certificate, "" without TLS.
func (t *Transport) dialHello(conn net.Conn, p purpose, want, identity cluster.NodeID) (completedHello, error) {
	asOf := t.cfg.Membership.Record(want).AsOfIndex // the peer may have stopped, and be added again, before it is read
	mine, b, err := t.newHello(p)
	if err != nil {
		return completedHello{}, err
	}
	if _, err := conn.Write(b); err != nil {
		return completedHello{}, fmt.Errorf("send hello: %w", err)
	}
	theirs, err := readHello(conn)
	if err != nil {
		return completedHello{}, err
	}
	v, err := readHelloReply(conn, mine.nonce)
	if err != nil {
		return completedHello{}, err
	}
	if err := checkIdentity(theirs, want, identity); err != nil {
		return completedHello{}, err
	}
	a, b, err := t.evaluateHello(theirs)
	if err != nil {
		return completedHello{}, err
	}
	a.AsOfIndex = min(a.AsOfIndex, asOf)
	if _, err := conn.Write(b); err != nil {
		return completedHello{}, fmt.Errorf("send hello reply: %w", err)
	}
	return t.complete(completedHello{
		peer: theirs.peer, sentIdentity: mine.peer.Identity, purpose: p, dialled: true, mine: a, theirs: v,
	})
}

func (t *Transport) acceptHello(conn net.Conn, identity cluster.NodeID) (completedHello, error) {
	theirs, err := readHello(conn)
	if err != nil {
		return completedHello{}, err
	}
	if err := checkIdentity(theirs, "", identity); err != nil {
		return completedHello{}, err
	}
	mine, b, err := t.newHello(theirs.purpose)
	if err != nil {
		return completedHello{}, err
	}
	a, vb, err := t.evaluateHello(theirs)
	if err != nil {
		return completedHello{}, err
	}
	if _, err := conn.Write(append(b, vb...)); err != nil {
		return completedHello{}, fmt.Errorf("send hello: %w", err)
	}
	v, err := readHelloReply(conn, mine.nonce)
	if err != nil {
		return completedHello{}, err
	}
	return t.complete(completedHello{
		peer: theirs.peer, sentIdentity: mine.peer.Identity, purpose: theirs.purpose, mine: a, theirs: v,
	})
}

// errIdentity means that a node on a connection is not the one that it claims to be, or that was dialled.
var errIdentity = errors.New("wrong node identity")

// checkIdentity compares a hello with the dialled node and the certificate. A hello of another protocol version that
// names no node is refused later.
func checkIdentity(theirs hello, want, certificate cluster.NodeID) error {
	claimed := theirs.peer.NodeID
	if theirs.version != protocolVersion && claimed == "" {
		return nil
	}
	if want != "" && claimed != want {
		return fmt.Errorf("%w: node %s answers where node %s was dialled", errIdentity, claimed, want)
	}
	if certificate != "" && claimed != certificate {
		return fmt.Errorf("%w: node %s has the certificate of node %s", errIdentity, claimed, certificate)
	}
	return nil
}

// complete calls the callbacks of a completed hello. It adopts the cluster ID of a peer whose reply allows it.
func (t *Transport) complete(x completedHello) (completedHello, error) {
	self := t.cfg.Membership.LocalPeer()
	if x.peer.NodeID == self.NodeID && x.peer.BootID == self.BootID && self.BootID != "" {
		return x, fmt.Errorf("%w: this node has dialled itself", errIdentity)
	}
	if x.mine.Refusal == cluster.RefusedProtocol {
		if x.dialled && x.peer.NodeID != "" { // to connect to this node changes nothing
			t.cfg.Membership.OnRefused(x.peer.NodeID, x.mine.Refusal, x.mine.Reason)
		}
		return x, nil
	}
	if x.peer.ClusterID == x.theirs.ClusterID {
		x.peer.Roster = x.theirs.Roster
	}
	t.cfg.Membership.OnHello(x.peer, x.mine)
	if x.theirs.Refusal != "" {
		t.cfg.Membership.OnRefused(x.peer.NodeID, x.theirs.Refusal, x.theirs.Reason)
		return x, nil
	}
	t.cfg.Membership.OnAdmitted(x.peer.NodeID)
	if x.mine.OK() {
		t.monitors.Kick(x.peer.NodeID) // a refused peer would be dialled again and again
	}
	if x.theirs.MayAdoptClusterID && x.mine.OK() && x.peer.ClusterID != "" && x.peer.ClusterID == x.theirs.ClusterID {
		return x, t.adopt(x.peer)
	}
	return x, nil
}
