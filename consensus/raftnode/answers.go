package raftnode

import (
	"context"
	"sync"
)

// Answers counts the goroutines that wait for the library's answers to changes of the configuration. The zero value
// counts none. The library loses an answer when it ends before its state machine has taken the entry
// (hashicorp/raft#498): that goroutine has no end, and is counted without end. The methods may be called concurrently,
// also Go while Await waits, which a sync.WaitGroup does not allow.
type Answers struct {
	mu   sync.Mutex
	open int
	none chan struct{} // closed when none is open; nil: no goroutine waits for that
}

// Go runs a wait for an answer in a goroutine.
func (a *Answers) Go(wait func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open++
	go func() {
		wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.open--; a.open == 0 && a.none != nil {
			close(a.none)
			a.none = nil
		}
	}()
}

// Await reports whether every answer has come before ctx ended.
func (a *Answers) Await(ctx context.Context) bool {
	a.mu.Lock()
	if a.open == 0 {
		a.mu.Unlock()
		return true
	}
	if a.none == nil {
		a.none = make(chan struct{})
	}
	none := a.none
	a.mu.Unlock()
	select {
	case <-none:
		return true
	case <-ctx.Done():
		return false
	}
}
