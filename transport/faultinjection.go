package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/hashicorp/raft"
)

var errDropped = errors.New("message lost (injected fault)")

func (f Fault) lost() bool { return f.Drop || f.DropReply }

// fault asks the hook, and lets its delay pass.
func (r *Raft) fault(m Message) Fault {
	if r.t.cfg.Faults == nil {
		return Fault{}
	}
	f := r.t.cfg.Faults.Outgoing(m)
	if f.Delay > 0 {
		sleep(f.Delay, r.closed)
	}
	return f
}

// applyFaults lets the hook's faults happen to a frame; false when it is lost.
func (c *monitorConn) applyFaults(f *frame) bool {
	hook := c.t.cfg.Faults
	if hook == nil {
		return true
	}
	if liar, ok := hook.(ClaimFaults); ok {
		f.Claim = liar.Claim(c.m.id, f.Claim)
	}
	fault := hook.Outgoing(Message{From: c.t.cfg.Local().NodeID, To: c.m.id, Kind: "probe", Term: f.Claim.Term})
	if fault.Delay > 0 {
		sleep(fault.Delay, c.processDead)
	}
	return !fault.lost()
}

// unwrapCodecError makes errors.Is see why an answer could not be read: the codec's errors
// have a Cause, and no Unwrap.
func unwrapCodecError(err error) error {
	var hidden interface{ Cause() error }
	if errors.As(err, &hidden) && hidden.Cause() != nil {
		return fmt.Errorf("read the answer: %w", hidden.Cause())
	}
	return err
}

// connectionDied says that an established connection was found dead, as a
// pooled one is after a restart of the peer.
func connectionDied(err error) bool {
	var dial *dialError
	if err == nil || errors.As(err, &dial) {
		return false
	}
	for _, dead := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET, syscall.ETIMEDOUT} {
		if errors.Is(err, dead) {
			return true
		}
	}
	return false
}

func isTimeout(err error) bool {
	var dial *dialError
	return errors.Is(err, os.ErrDeadlineExceeded) && !errors.As(err, &dial)
}

// unreachable says that nothing was heard of the peer.
func unreachable(err error) bool {
	var dial *dialError
	return errors.As(err, &dial) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errDropped)
}

// isNoSpaceError says that a peer has refused entries for want of disk space.
func isNoSpaceError(err error) bool { return strings.Contains(err.Error(), errNoSpace.Error()) }

// entryBytes is about what entries take on the wire.
func entryBytes(entries []*raft.Log) int {
	n := 0
	for _, e := range entries {
		n += len(e.Data) + len(e.Extensions) + 96
	}
	return n
}
