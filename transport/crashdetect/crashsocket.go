// Package crashdetect finds out that a process has died, before its connections end.
//
// The kernel closes the connections of a killed process only after it has torn down its memory: 2 ms at 25 MB, 30 ms
// at 400 MB. A CrashSocket is a listening socket that the kernel closes first. Each peer keeps one silent connection
// to it (Hold). The end of that connection is the first sign of the process's death, and a refused dial confirms it
// (DeathCheck).
//
// The socket belongs to one thread with a private descriptor table. The kernel closes that table when the thread
// exits, before it frees the shared memory.
package crashdetect

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"northstar/cluster"
)

// maxHeld bounds the connections that a CrashSocket holds; a new one replaces the oldest.
const maxHeld = 128

// Dial opens a connection.
type Dial func(ctx context.Context, addr string) (net.Conn, error)

// Hold connects to a crash socket within timeout, and returns when the connection or ctx has ended. It calls reached
// once there is a connection. connected reports whether there was one; cause is why it ended, or why there was none.
func Hold(
	ctx context.Context, dial Dial, addr string, timeout time.Duration, reached func(),
) (connected bool, cause error) {
	limit, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := dial(limit, addr)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	reached()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_, err = conn.Read(make([]byte, 1))
	return true, err
}

// ProcessEnded reports whether a connection ended the way the kernel ends the connections of a dead process.
func ProcessEnded(cause error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(cause, e) {
			return true
		}
	}
	return false
}

// Limits of a check. It makes many short tries: a long one could wait in the backlog of a dying listener.
const (
	minTry   = 3 * time.Millisecond
	tryPause = 50 * time.Microsecond
	maxCheck = 60 * time.Millisecond
	maxTries = 256
)

// DeathCheck finds out whether a process of a peer still runs.
type DeathCheck struct {
	BootID      string // of the process
	CrashSocket string // address of its crash socket; "" if unknown, or if it has never been reached
	Dial        Dial
	// Hello dials the peer's node, completes a hello and returns the peer's boot ID.
	Hello func(ctx context.Context) (bootID string, err error)
	// Handshake is how long a dial with its hello usually takes; 0 if unknown.
	Handshake time.Duration
	// Far is the longest time of the check of a peer whose handshakes take longer than 30 ms; 0: about 60 ms.
	Far time.Duration
}

// limit returns how long the check may take. Half a handshake is one round trip at least, after which a dial of a dead
// process is refused. 60 ms are too short for that on a network with a round trip of as much.
func (c DeathCheck) limit() time.Duration { return max(maxCheck, min(2*c.Handshake, c.Far)) }

// Run takes as long as ctx allows, and at most about 60 ms, or two handshakes with a far peer. The result is dead if
// a dial of the crash socket or of the node is refused, alive or restarted after a hello with the same or another boot
// ID, and otherwise unclear.
func (c DeathCheck) Run(ctx context.Context) cluster.Liveness {
	ctx, cancel := context.WithTimeout(ctx, c.limit())
	defer cancel()
	limit := max(minTry, 3*c.Handshake)
	if c.CrashSocket != "" && c.refused(ctx, limit) {
		return cluster.LivenessDead // although the rest of the process may still exist
	}
	for range maxTries {
		if l := c.try(ctx, limit); l != cluster.LivenessUnclear || ctx.Err() != nil {
			return l
		}
		PreciseSleep(tryPause)
	}
	return cluster.LivenessUnclear
}

func (c DeathCheck) refused(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := c.Dial(ctx, c.CrashSocket)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func (c DeathCheck) try(ctx context.Context, limit time.Duration) cluster.Liveness {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch bootID, err := c.Hello(ctx); {
	case errors.Is(err, syscall.ECONNREFUSED):
		return cluster.LivenessDead
	case err != nil:
		return cluster.LivenessUnclear
	case bootID == c.BootID:
		return cluster.LivenessAlive
	}
	return cluster.LivenessRestarted
}
