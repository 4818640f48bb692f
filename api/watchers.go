package api

import (
	"sync"
	"sync/atomic"
)

// watcher is one open watch.
type watcher struct {
	before atomic.Uint64 // revision before the changes that are being sent; 0: none are
}

// watchers are the open watches of this node.
type watchers struct {
	mu   sync.Mutex
	open map[*watcher]struct{}
}

// add returns a new watcher, until done is called.
func (w *watchers) add() (one *watcher, done func()) {
	one = new(watcher)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = make(map[*watcher]struct{})
	}
	w.open[one] = struct{}{}
	return one, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, one)
	}
}

// Watchers returns the number of this node's open watches, and by how many revisions the slowest is behind.
func (s *Server) Watchers() (open int, lag uint64) {
	newest := s.reads.View().Revision()
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	for one := range s.watchers.open {
		if before := one.before.Load(); before > 0 && before < newest {
			lag = max(lag, newest-before)
		}
	}
	return len(s.watchers.open), lag
}

// Connections returns the number of open connections to the API.
func (s *Server) Connections() int { return s.conns.Len() }
