package transport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"northstar/transport/crashdetect"
)

var (
	errClosed             = errors.New("transport closed")
	errNotReady           = errors.New("raft is not ready")
	errTooMany            = errors.New("too many unanswered messages of this node")
	errReplicationPaused  = errors.New("replication paused: this leader lets the others elect")
	errNoVotes            = errors.New("no votes are exchanged")
	errNotMember          = errors.New("the sender is not a member")
	errElectionNotAllowed = errors.New("election not allowed on this node")
	errElectionBlocked    = errors.New("the log does not reach this node's admission entry yet")
	errDropped            = errors.New("message lost (injected fault)")
	errProcessDead        = errors.New("its process was found dead a moment ago")
)

// rejection is an error that a node answers a Raft message with, and that the sender acts on. The answer carries only
// the error's text. All builds of NorthStar send the text in wire and compare it, so it never changes.
type rejection struct{ text, wire string }

func (r *rejection) Error() string { return r.text }

var (
	errTimeoutNowRejected = &rejection{text: "TimeoutNow rejected", wire: "not told to stand"}
	errNoSpace            = &rejection{text: "short of disk space", wire: "this node is short of disk space"}
)

// toWire returns the error to answer with: a rejection with its text on the wire.
func toWire(err error) error {
	if r := (*rejection)(nil); errors.As(err, &r) {
		return errors.New(strings.Replace(err.Error(), r.text, r.wire, 1))
	}
	return err
}

// fromWire is the inverse of toWire: it returns an answer's error with its type.
func fromWire(err error) error {
	if err == nil {
		return nil
	}
	for _, r := range []*rejection{errTimeoutNowRejected, errNoSpace} {
		if before, after, found := strings.Cut(err.Error(), r.wire); found {
			return fmt.Errorf("%s%w%s", before, r, after)
		}
	}
	return err
}

// unwrapCodecError lets errors.Is see why a response could not be read: codec errors have Cause instead of Unwrap.
func unwrapCodecError(err error) error {
	var hidden interface{ Cause() error }
	if errors.As(err, &hidden) && hidden.Cause() != nil {
		return fmt.Errorf("read the response: %w", hidden.Cause())
	}
	return err
}

// connectionDied reports whether an established connection was dead, like a pooled one after the peer's restart.
func connectionDied(err error) bool {
	var dial *dialError
	if err == nil || errors.As(err, &dial) {
		return false
	}
	return crashdetect.ProcessEnded(err) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ETIMEDOUT)
}

func isTimeout(err error) bool {
	var dial *dialError
	return errors.Is(err, os.ErrDeadlineExceeded) && !errors.As(err, &dial)
}

// unreachable reports whether nothing was received from the peer.
func unreachable(err error) bool {
	var dial *dialError
	return errors.As(err, &dial) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errDropped)
}
