package transport

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// matchSnapshot does raft's check of the previous entry for an append that continues this node's newest snapshot, and
// returns the append without a previous entry. raft looks for that entry in its log, where it may be missing, or of a
// deposed leader. It would refuse the append. The leader, whose log lacks the entry too, would send the same snapshot
// without end.
//
// This is the only case in which the previous entry of an append may be changed. The snapshot holds the leader's log
// up to the end of it, so that an append without a previous entry says the same: every entry follows the snapshot.
func (m incoming) matchSnapshot(c *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	applied, _ := m.local.Progress()
	if applied < c.PrevLogEntry || !m.local.EndsSnapshot(c.PrevLogEntry, c.PrevLogTerm) {
		return c
	}
	matched := *c
	matched.PrevLogEntry, matched.PrevLogTerm = 0, 0
	return &matched
}

func (m incoming) installSnapshot(c *raft.InstallSnapshotRequest) {
	if err := checkConfiguration(c.Configuration); c.SnapshotVersion > 0 && err != nil {
		m.refuse("malformed", err)
		return
	}
	if !m.adopted(c.Term) {
		return
	}
	if m.r.t.cfg.Replication.ReadOnly() {
		m.refuse("read_only", fmt.Errorf("%w and takes no snapshot", errNoSpace))
		return
	}
	var contradiction error
	stale := false
	m.oneAtATime(func() {
		stale, contradiction = m.checkSnapshot(c)
		if stale || contradiction != nil {
			return
		}
		op := &operation{snapshot: true, size: c.Size}
		m.rpc.Reader = newSnapshotReader(m.rpc.Reader, &op.received)
		m.forward(op)
	})
	// These read the whole snapshot from its sender. No append waits for that.
	switch {
	case contradiction != nil:
		m.refuse("contradiction", contradiction)
	case stale:
		m.staleSnapshot(c)
	}
}

// checkSnapshot reports whether a snapshot is of an earlier term, or not newer than the applied state, and returns why
// Raft must not get it. raft would read one of an earlier term to its end, inside its main loop, and ignore it.
func (m incoming) checkSnapshot(c *raft.InstallSnapshotRequest) (stale bool, err error) {
	if c.Term < m.local.CurrentTerm() {
		return true, nil
	}
	if err := m.local.CheckEntry(c.Term, c.LastLogIndex, c.LastLogTerm); err != nil {
		return false, err
	}
	if applied, _ := m.local.Progress(); c.LastLogIndex <= applied {
		return true, nil
	}
	if c.Term > m.local.CurrentTerm() {
		m.followSender(c)
	}
	if c.Term < m.local.CurrentTerm() {
		return true, nil // the term was raised meanwhile
	}
	return false, m.local.CheckSnapshot(c.Term, c.LastLogIndex, c.LastLogTerm)
}

// followSender has raft follow the sender of a snapshot, as a heartbeat of it would. Until then a node that leads in an
// earlier term may add entries to its log, also between CheckSnapshot and the installation.
func (m incoming) followSender(c *raft.InstallSnapshotRequest) {
	m.rpc = raft.RPC{
		Command:  &raft.AppendEntriesRequest{RPCHeader: c.RPCHeader, Term: c.Term},
		RespChan: make(chan raft.RPCResponse, 1),
	}
	m.forward(nil)
}

// staleSnapshot rejects a snapshot of an earlier term, or one that is not newer than the applied state: raft would
// install that and roll the state machine back. To the leader of the current term it reports success, which is true:
// the whole snapshot is applied here. After a refusal that leader would send the snapshot again without end.
func (m incoming) staleSnapshot(c *raft.InstallSnapshotRequest) {
	m.r.t.reject(m.kind, "stale")
	_, _ = io.Copy(io.Discard, m.rpc.Reader)
	term := m.local.CurrentTerm()
	done := term == c.Term && m.local.Leader() == m.p.id
	if err := m.local.FlushBeforeReply(); err != nil {
		m.rpc.Respond(nil, err)
		return
	}
	m.rpc.Respond(&raft.InstallSnapshotResponse{RPCHeader: m.r.header(), Term: term, Success: done}, nil)
}

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
