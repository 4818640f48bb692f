package cluster

import "time"

// Attachment is a connection that holds a session.
type Attachment struct {
	Session string
	Stream  string        // names the connection, at the node that serves it
	Grace   time.Duration // how long the session lives on when the connection ends
	// Passive: the connection does not renew the session, whose client does that
	// besides.
	Passive bool
}

// KeepEvery is how often the node that serves an attached session of that TTL
// renews it.
func KeepEvery(ttl time.Duration) time.Duration {
	return min(max(ttl/3, 150*time.Millisecond), 10*time.Second)
}
