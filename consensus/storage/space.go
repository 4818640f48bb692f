package storage

import (
	"errors"
	"strings"
	"syscall"
)

// spaceView is what is known of the disk when space is judged.
type spaceView struct {
	free     uint64 // bytes left, without the reserve
	reserve  uint64 // size of the reserve in bytes; 0: none is kept
	held     bool   // the reserve's space is taken by its file
	readOnly bool   // as judged last
}

// spaceVerdict is what to do about it.
type spaceVerdict struct {
	readOnly bool
	hold     bool // take the reserve's space again
}

// The node stops taking entries when less than a quarter of the reserve is
// left beside it, and starts again at half: what has been accepted by then
// still fits. The reserve itself is only given up by a write that fails.
const (
	lowPart  = 4
	highPart = 2
)

// judgeSpace decides whether the node is read-only.
func judgeSpace(v spaceView) spaceVerdict {
	if v.reserve == 0 {
		return spaceVerdict{}
	}
	low, high := v.reserve/lowPart, v.reserve/highPart
	if !v.held {
		return spaceVerdict{readOnly: true, hold: v.free >= v.reserve+high}
	}
	if v.readOnly {
		return spaceVerdict{readOnly: v.free < high}
	}
	return spaceVerdict{readOnly: v.free < low}
}

// CheckSpace looks at the free space and moves the node in or out of
// read-only. Run calls it; a test may.
func (g *Guarded) CheckSpace() {
	g.spaceTurn <- struct{}{}
	defer func() { <-g.spaceTurn }()
	size, held := g.storage.Reserve()
	if size == 0 {
		return
	}
	free, err := g.storage.Free()
	if err != nil {
		g.logger.Debug("free space unknown", "error", err)
		return
	}
	v := judgeSpace(spaceView{free, size, held, g.readOnly.Load()})
	if v.hold { // should the space have gone again, the next check looks anew
		v.readOnly = g.storage.HoldReserve() != nil
	}
	g.setReadOnly(v.readOnly, free)
}

// releaseFor gives up the reserve for an operation that found the disk full, unless
// another that found it so has since this one began, at so many releases before.
// True: it may be tried again.
func (g *Guarded) releaseFor(op string, before uint64) bool {
	g.spaceTurn <- struct{}{}
	defer func() { <-g.spaceTurn }()
	if g.releases.Load() != before {
		return true
	}
	size, held := g.storage.Reserve()
	if size == 0 || !held {
		return false
	}
	g.setReadOnly(true, 0)
	if err := g.storage.ReleaseReserve(); err != nil {
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
		strings.Contains(err.Error(), syscall.ENOSPC.Error()) // bbolt formats some with %s
}
