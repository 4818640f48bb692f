package library

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// answer handles a message at the other end and returns its response.
type answer func(to raft.ServerAddress, cmd any, data io.Reader) (any, error)

// wire is the transport of one node. Each message takes a millisecond.
type wire struct {
	addr   raft.ServerAddress
	in     chan raft.RPC
	closed chan struct{}

	mu        sync.Mutex
	answer    answer
	heartbeat func(raft.RPC) // the fast path
	pipeline  func() (raft.AppendPipeline, error)
	heard     time.Time // when a peer last answered a heartbeat
	once      sync.Once
}

func newWire(id string) *wire {
	return &wire{addr: raft.ServerAddress(id), in: make(chan raft.RPC), closed: make(chan struct{}), answer: silent}
}

var (
	errCut     = errors.New("cut off")
	errNoReply = errors.New("no reply")
)

// silent peers cannot be reached.
func silent(raft.ServerAddress, any, io.Reader) (any, error) { return nil, errCut }

// agree is what healthy followers say: votes are granted, entries are taken.
func agree(_ raft.ServerAddress, cmd any, _ io.Reader) (any, error) {
	switch m := cmd.(type) {
	case *raft.RequestPreVoteRequest:
		return &raft.RequestPreVoteResponse{Term: m.Term, Granted: true}, nil
	case *raft.RequestVoteRequest:
		return &raft.RequestVoteResponse{Term: m.Term, Granted: true}, nil
	case *raft.AppendEntriesRequest:
		return &raft.AppendEntriesResponse{
			Term: m.Term, LastLog: m.PrevLogEntry + uint64(len(m.Entries)),
			Success: true,
		}, nil
	case *raft.InstallSnapshotRequest:
		return &raft.InstallSnapshotResponse{Term: m.Term, Success: true}, nil
	case *raft.TimeoutNowRequest:
		return &raft.TimeoutNowResponse{}, nil
	}
	return nil, fmt.Errorf("a message %T", cmd)
}

// connect lets nodes speak with each other.
func connect(nodes ...*node) {
	for _, n := range nodes {
		n.wire.set(func(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
			for _, other := range nodes {
				if other.wire.addr == to {
					return other.say(cmd, data)
				}
			}
			return nil, errCut
		})
	}
}

func isHeartbeat(cmd any) bool {
	m, ok := cmd.(*raft.AppendEntriesRequest)
	return ok && m.PrevLogEntry == 0 && m.PrevLogTerm == 0 && len(m.Entries) == 0 && m.LeaderCommitIndex == 0
}

func (w *wire) set(a answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = a
}

// hang never answers, until the wire is closed.
func (w *wire) hang() (any, error) {
	<-w.closed
	return nil, errNoReply
}

func (w *wire) close() { w.once.Do(func() { close(w.closed) }) }

// ask sends a copy of a message: the library uses its own again.
func ask[C, R any](w *wire, to raft.ServerAddress, cmd *C, data io.Reader, resp *R) error {
	time.Sleep(time.Millisecond)
	select {
	case <-w.closed:
		return errCut
	default:
	}
	w.mu.Lock()
	f := w.answer
	w.mu.Unlock()
	c := *cmd
	got, err := f(to, &c, data)
	if err != nil {
		return err
	}
	if isHeartbeat(cmd) {
		w.mu.Lock()
		w.heard = time.Now()
		w.mu.Unlock()
	}
	*resp = *got.(*R)
	return nil
}

func (w *wire) lastHeartbeat() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heard
}

func (w *wire) AppendEntries(_ raft.ServerID, to raft.ServerAddress, cmd *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	return ask(w, to, cmd, nil, resp)
}

func (w *wire) RequestVote(_ raft.ServerID, to raft.ServerAddress, cmd *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse,
) error {
	return ask(w, to, cmd, nil, resp)
}

func (w *wire) RequestPreVote(_ raft.ServerID, to raft.ServerAddress, cmd *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse,
) error {
	return ask(w, to, cmd, nil, resp)
}

func (w *wire) InstallSnapshot(_ raft.ServerID, to raft.ServerAddress, cmd *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	return ask(w, to, cmd, data, resp)
}

func (w *wire) TimeoutNow(_ raft.ServerID, to raft.ServerAddress, cmd *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse,
) error {
	return ask(w, to, cmd, nil, resp)
}

func (w *wire) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	w.mu.Lock()
	f := w.pipeline
	w.mu.Unlock()
	if f == nil {
		return nil, raft.ErrPipelineReplicationNotSupported
	}
	return f()
}

func (w *wire) SetHeartbeatHandler(f func(raft.RPC)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heartbeat = f
}

func (w *wire) Consumer() <-chan raft.RPC                                  { return w.in }
func (w *wire) LocalAddr() raft.ServerAddress                              { return w.addr }
func (w *wire) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }
func (w *wire) DecodePeer(b []byte) raft.ServerAddress                     { return raft.ServerAddress(b) }

// What peers send.

func from(id string) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: []byte(id)}
}

func appendOf(id string, term, prev, prevTerm, commit uint64, entries ...*raft.Log) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{
		RPCHeader: from(id), Term: term, PrevLogEntry: prev, PrevLogTerm: prevTerm,
		LeaderCommitIndex: commit, Entries: entries,
	}
}

func voteFor(id string, term, last, lastTerm uint64) *raft.RequestVoteRequest {
	return &raft.RequestVoteRequest{RPCHeader: from(id), Term: term, LastLogIndex: last, LastLogTerm: lastTerm}
}

func snapshotOf(id string, term, last, lastTerm uint64, ids string, content shot) (*raft.InstallSnapshotRequest,
	io.Reader,
) {
	return &raft.InstallSnapshotRequest{
		RPCHeader: from(id), SnapshotVersion: 1, Term: term, Leader: []byte(id), LastLogIndex: last,
		LastLogTerm:   lastTerm,
		Configuration: raft.EncodeConfiguration(servers(ids)), ConfigurationIndex: 1, Size: int64(len(content.bytes())),
	}, bytesOf(content)
}
