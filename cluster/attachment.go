package cluster

import "time"

// Attachment names a connection that keeps a session alive.
type Attachment struct {
	Session string
	Stream  string        // the connection's name at the node that serves it
	Grace   time.Duration // how long the session lives after the connection ends
	// Passive: the connection does not renew the session; the client renews it by other requests.
	Passive bool
}

// Connection is a client's connection that keeps a session alive, at the node that serves it.
type Connection struct {
	Attachment
	Credential string // the client's, sent to the leader; "" where nodes trust each other
	// Unacknowledged reports whether the client's machine has yet to acknowledge bytes.
	Unacknowledged func() bool
}

// AttachedSession is a session that a Connection keeps alive.
type AttachedSession struct {
	TTL    time.Duration
	Events <-chan KeepAlive // holds only the newest one
	// Detach ends the attachment and is called once. lost: the client is gone; otherwise the session keeps its TTL.
	Detach func(lost bool)
}

// AttachResult is the result of renewing an attached session.
type AttachResult struct {
	TTL time.Duration // the session lives for this time, counted from when the renewal was sent
	Err *Error        // not renewed: the session has ended, or a role was revoked from it
}

// KeepAlive is a message for the client of a Connection. One with Err or Draining is the last.
type KeepAlive struct {
	RenewedAt   time.Time // the session lives for its TTL from this time
	Err         *Error    // why the session is no longer renewed
	Draining    bool      // the client must attach to another node
	CommentOnly bool      // shows only that the connection is alive
}

// Last reports whether no KeepAlive follows this one.
func (k KeepAlive) Last() bool { return k.Err != nil || k.Draining }

// MaxAttachBatch is the largest number of connections in one message to the leader.
const MaxAttachBatch = 400

// KeepEvery returns the interval at which the serving node renews an attached session of that TTL.
func KeepEvery(ttl time.Duration) time.Duration {
	return min(max(ttl/3, 150*time.Millisecond), 10*time.Second)
}
