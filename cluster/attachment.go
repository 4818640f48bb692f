package cluster

import "time"

// Attachment names a connection that holds a session.
type Attachment struct {
	Session string
	Stream  string        // names the connection, at the node that serves it
	Grace   time.Duration // how long the session lives on when the connection ends
	// Passive: the connection does not renew the session, whose client does that
	// besides.
	Passive bool
}

// Connection is a client's connection that holds a session, at the node that serves it.
type Connection struct {
	Attachment
	Credential string // the client's, for the leader; "" where nodes trust each other
	// Unacknowledged reports whether the client's machine has yet to acknowledge bytes.
	Unacknowledged func() bool
}

// AttachedSession is a session that a Connection holds.
type AttachedSession struct {
	TTL    time.Duration
	Events <-chan KeepAlive // newest news only; the last one stays
	// Detach ends it and is called once. lost: the client is gone, and the leader has to
	// know.
	Detach func(lost bool)
}

// AttachResult is what became of the renewal of an attached session.
type AttachResult struct {
	TTL time.Duration // the session lives, for this time from when the renewal was sent
	Err *Error        // it has ended, or a role was taken from it: it was not renewed
}

// KeepAlive is news for the client of a Connection. With Err or Draining it is the last.
type KeepAlive struct {
	RenewedAt   time.Time // the session lives for its TTL from then on
	Err         *Error    // why the session is renewed no more
	Draining    bool      // the client has to attach to another node
	CommentOnly bool      // only shows that the connection is alive
}

// Last reports whether no other KeepAlive follows.
func (k KeepAlive) Last() bool { return k.Err != nil || k.Draining }

// MaxAttachBatch is the number of connections that one message to the leader names.
const MaxAttachBatch = 400

// KeepEvery is how often the node that serves an attached session of that TTL
// renews it.
func KeepEvery(ttl time.Duration) time.Duration {
	return min(max(ttl/3, 150*time.Millisecond), 10*time.Second)
}
