package crashdetect

import (
	"context"
	"errors"
	"syscall"
	"time"

	"northstar/cluster"
)

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
	CrashSocket string // address of its crash socket; "" if unknown
	Dial        Dial
	// Hello dials the peer's node, completes a hello and returns the peer's boot ID.
	Hello func(ctx context.Context) (bootID string, err error)
	// Handshake is how long a dial with its hello usually takes; 0 if unknown.
	Handshake time.Duration
}

// Run takes as long as ctx allows, and at most about 60 ms. The result is dead if a dial of the crash socket or of the
// node is refused. It is alive or restarted after a hello with the same or another boot ID, and unclear if there was
// neither in time.
func (c DeathCheck) Run(ctx context.Context) cluster.Liveness {
	ctx, cancel := context.WithTimeout(ctx, maxCheck)
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

// refused reports whether a dial of the crash socket is refused.
func (c DeathCheck) refused(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := c.Dial(ctx, c.CrashSocket)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// try attempts one hello.
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
