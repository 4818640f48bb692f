package transport

import (
	"io"
	"sync/atomic"
)

// snapshotReader is the data of an incoming snapshot on its way to raft. It counts the received bytes, and can be cut
// off from raft. Read is called by one goroutine, cut by another.
type snapshotReader struct {
	r        io.Reader
	received *atomic.Uint64
	readSem  chan struct{} // holds a token while no Read is in progress
	closed   bool          // guarded by readSem
}

func newSnapshotReader(r io.Reader, received *atomic.Uint64) *snapshotReader {
	s := &snapshotReader{r: r, received: received, readSem: make(chan struct{}, 1)}
	s.readSem <- struct{}{}
	return s
}

// Read reads the data. It fails after cut.
func (s *snapshotReader) Read(p []byte) (int, error) {
	<-s.readSem
	defer func() { s.readSem <- struct{}{} }()
	if s.closed {
		return 0, errClosed
	}
	n, err := s.r.Read(p)
	s.received.Add(uint64(n))
	return n, err
}

// cut waits for a Read in progress and makes all later ones fail. The caller must close the connection, so that the
// Read ends.
func (s *snapshotReader) cut() {
	<-s.readSem
	s.closed = true
	s.readSem <- struct{}{}
}
