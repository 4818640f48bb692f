package crashdetect

import (
	"context"
	"errors"
	"syscall"
	"time"

	"northstar/cluster"
)

// Limits of a check. One long deadline could land in the backlog of a listener
// that is about to die, so it makes many short tries.
const (
	minTry   = 3 * time.Millisecond
	tryPause = 50 * time.Microsecond
	maxCheck = 60 * time.Millisecond
	maxTries = 256
)

// DeathCheck finds out whether a process of a peer still runs.
type DeathCheck struct {
	BootID      string // of the process
	CrashSocket string // address of its crash socket; "": not known
	Dial        Dial
	// Hello dials the peer's node and returns the boot ID that it says.
	Hello func(ctx context.Context) (bootID string, err error)
	// Handshake is how long a dial with its hello has taken so far; 0: not known.
	Handshake time.Duration
}

// Run takes as long as ctx allows, and at most about 60 ms. Dead: nobody listens,
// at the process's crash socket or at the node's address. Alive: a hello bears
// its boot ID; restarted: that of another process. Unclear: nothing of this in
// time.
func (c DeathCheck) Run(ctx context.Context) cluster.Liveness {
	ctx, cancel := context.WithTimeout(ctx, maxCheck)
	defer cancel()
	limit := max(minTry, 3*c.Handshake)
	if c.CrashSocket != "" && c.refused(ctx, limit) {
		return cluster.LivenessDead // the rest of the process may still end
	}
	for range maxTries {
		if l := c.try(ctx, limit); l != cluster.LivenessUnclear || ctx.Err() != nil {
			return l
		}
		PreciseSleep(tryPause)
	}
	return cluster.LivenessUnclear
}

// refused reports whether nobody listens at the crash socket.
func (c DeathCheck) refused(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := c.Dial(ctx, c.CrashSocket)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// try says hello once.
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
