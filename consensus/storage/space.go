package storage

import (
	"errors"
	"strings"
	"syscall"
)

// diskSpace is the input of decideSpace.
type diskSpace struct {
	free     uint64 // bytes left, without the reserve
	reserve  uint64 // size of the reserve in bytes; 0: none is kept
	held     bool   // the reserve's file occupies its space
	readOnly bool   // the previous decision
}

// spaceDecision is the result of decideSpace.
type spaceDecision struct {
	readOnly      bool
	ensureReserve bool // occupy the reserve's space again
}

// The node stops accepting entries when the free space without the reserve falls below a quarter of the
// reserve. It accepts them again at half. The entries accepted before that still fit. Only a write that fails
// releases the reserve itself.
const (
	readOnlyDivisor = 4
	writableDivisor = 2
)

func decideSpace(v diskSpace) spaceDecision {
	if v.reserve == 0 {
		return spaceDecision{}
	}
	low, high := v.reserve/readOnlyDivisor, v.reserve/writableDivisor
	if !v.held {
		return spaceDecision{readOnly: true, ensureReserve: v.free >= v.reserve+high}
	}
	if v.readOnly {
		return spaceDecision{readOnly: v.free < high}
	}
	return spaceDecision{readOnly: v.free < low}
}

// checkSpace checks the free space, and makes the node read-only or writable again.
func (g *Guarded) checkSpace() {
	g.reserveSem <- struct{}{}
	defer func() { <-g.reserveSem }()
	space := g.storage.Space()
	size, held := space.Reserve()
	if size == 0 {
		return
	}
	free, err := space.Free()
	if err != nil {
		g.logger.Debug("free space unknown", "error", err)
		return
	}
	v := decideSpace(diskSpace{free, size, held, g.readOnly.Load()})
	if v.ensureReserve { // if the space is gone by then, the next check decides again
		v.readOnly = space.HoldReserve() != nil
	}
	g.setReadOnly(v.readOnly, free)
}

// releaseReserveFor releases the reserve for an operation that found the disk full, and reports whether that may be
// tried again. before is the number of releases when it began: after another one nothing more is released.
func (g *Guarded) releaseReserveFor(op string, before uint64) bool {
	g.reserveSem <- struct{}{}
	defer func() { <-g.reserveSem }()
	if g.releases.Load() != before {
		return true
	}
	space := g.storage.Space()
	size, held := space.Reserve()
	if size == 0 || !held {
		return false
	}
	g.setReadOnly(true, 0)
	if err := space.ReleaseReserve(); err != nil {
		g.logger.Error("cannot release the disk reserve", "error", err)
		return false
	}
	g.releases.Add(1)
	g.logger.Warn("disk full: reserve released", "operation", op, "reserve_bytes", size)
	return true
}

func (g *Guarded) setReadOnly(readOnly bool, free uint64) {
	if g.readOnly.Swap(readOnly) == readOnly {
		return
	}
	if readOnly {
		g.logger.Warn("disk nearly full: this node is read-only", "free_bytes", free)
		return
	}
	g.logger.Info("disk has space again: this node takes writes", "free_bytes", free)
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		strings.Contains(err.Error(), syscall.ENOSPC.Error()) // bbolt formats some errors with %s
}
