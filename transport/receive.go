package transport

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// receiveLoop handles the messages of one peer, each in its own goroutine, so that none waits for another. The peer's
// connections bound their number. The caller must hold something tracked.
func (r *Raft) receiveLoop(p *peer, in *libTransport) {
	r.wg.Go(func() {
		for {
			select {
			case rpc := <-in.Consumer():
				r.wg.Go(func() { r.handle(p, rpc) })
			case <-in.stream.closed:
				return
			}
		}
	})
}

// incoming is one message of a peer. It must be answered exactly once.
type incoming struct {
	r     *Raft
	p     *peer
	rpc   raft.RPC
	kind  string
	facts cluster.Peer
	local RaftNode

	sentAfter time.Time // a time before the peer sent it; zero: unknown
}

// handle applies the guards to a message and passes it to raft.
func (r *Raft) handle(p *peer, rpc raft.RPC) {
	if isPrewarm(rpc) { // not a sign of life of a leader, and not for raft
		rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: r.header()}, nil)
		return
	}
	sentAfter := p.recordContact(time.Now())
	r.t.cfg.Claims.OnHeard(p.id, nil)
	defer p.pending.Add(-1)
	tooMany := p.pending.Add(1) > maxPending
	m := incoming{r: r, p: p, rpc: rpc, sentAfter: sentAfter}
	m.facts, _ = p.known()
	var header raft.RPCHeader
	switch c := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		m.kind, header = "append", c.RPCHeader
	case *raft.RequestVoteRequest:
		m.kind, header = "vote", c.RPCHeader
	case *raft.RequestPreVoteRequest:
		m.kind, header = "prevote", c.RPCHeader
	case *raft.InstallSnapshotRequest:
		m.kind, header = "snapshot", c.RPCHeader
	case *raft.TimeoutNowRequest:
		m.kind, header = "timeout_now", c.RPCHeader
	}
	switch {
	case tooMany:
		m.refuse("crowded", errTooMany)
		return
	case !m.awaitRaft():
		m.refuse("not_ready", errNotReady)
		return
	}
	if err := m.checkHeader(header); err != nil {
		r.t.quiet.warn("identity", "rejected Raft message", "peer", p.id, "kind", m.kind, "error", err)
		m.refuse("identity", err)
		return
	}
	a := r.t.admit(m.facts)
	if b, ok := m.voteRequest(); ok {
		m.vote(b, a)
		return
	}
	if !a.OK() {
		m.refuse(string(a.Refusal), &RefusedError{Node: p.id, Refusal: a.Refusal, Reason: a.Reason})
		p.reset() // the next hello reports why
		return
	}
	if kind, err := m.rejectSender(a); err != nil {
		m.refuse(kind, err)
		return
	}
	m.dispatch()
}

// rejectSender returns why a message of an admitted peer must not reach raft, and the reason of the metric; nil if it
// may. It is not for vote requests.
func (m incoming) rejectSender(a cluster.Admission) (kind string, err error) {
	_, timeoutNow := m.rpc.Command.(*raft.TimeoutNowRequest)
	switch {
	case a.Outside:
		return "not_member", fmt.Errorf("%w: %s", errNotMember, a.Reason)
	// A new cluster of wiped nodes would overwrite the log of a node that was not wiped. And entries stored by a wiped
	// node must not count for those that it stored before.
	case !a.Votes && m.facts.ClusterID == "":
		return "no_cluster_id", fmt.Errorf(
			"node %s has no cluster ID and cannot lead this node, which has one or has not started with it", m.p.id)
	case timeoutNow && !a.Votes:
		return "no_votes", fmt.Errorf("%w: no votes are exchanged with node %s: %s", errTimeoutNowRejected, m.p.id,
			noVotesReason(a))
	}
	return "", nil
}

// checkHeader compares the sender in a message with that of the connection.
func (m incoming) checkHeader(h raft.RPCHeader) error {
	if string(h.ID) != string(m.p.id) {
		return fmt.Errorf("%w: message of node %q on a connection of node %s", errIdentity, h.ID, m.p.id)
	}
	if len(h.Addr) == 0 || (m.facts.RaftAddress != "" && string(h.Addr) != m.facts.RaftAddress) {
		return fmt.Errorf("%w: message from address %q, node %s said %q", errIdentity, h.Addr, m.p.id,
			m.facts.RaftAddress)
	}
	return nil
}

// dispatch handles an admitted message by its kind.
func (m incoming) dispatch() {
	switch c := m.rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		m.recordLeaderContact(c.Term)
		m.appendEntries(c)
	case *raft.InstallSnapshotRequest:
		m.recordLeaderContact(c.Term)
		m.installSnapshot(c)
	case *raft.TimeoutNowRequest:
		m.timeoutNow()
	default:
		m.forward(nil)
	}
}

func (m incoming) appendEntries(c *raft.AppendEntriesRequest) {
	if err := checkEntries(c); err != nil {
		m.refuse("malformed", err)
		return
	}
	if !m.adopted(c.Term) {
		return
	}
	if len(c.Entries) > 0 && m.r.t.cfg.Replication.ReadOnly() {
		m.refuse("read_only", fmt.Errorf("%w and takes no entries", errNoSpace))
		return
	}
	if isHeartbeat(c) {
		m.heartbeat(c.Term)
		return
	}
	var rest *commitRest
	var answer raft.RPCResponse
	m.oneAtATime(func() {
		if err := m.conflictingEntry(c); err != nil {
			m.refuse("contradiction", err)
			return
		}
		if c.Term >= m.local.CurrentTerm() {
			m.local.LeaderCommit(c.LeaderCommitIndex, lastOfTerm(c), m.sentAfter)
		}
		c.LeaderCommitIndex = CommitLimit(c.LeaderCommitIndex, c.PrevLogEntry, len(c.Entries))
		rest = m.firstCommitStep(c)
		m.rpc.Command = m.matchSnapshot(c)
		answer = m.forward(&operation{})
	})
	if rest != nil && accepted(answer) {
		m.r.commits.run(rest)
	}
}

// CommitLimit returns the commit index that an append with entries after prev may show to raft: at most its last entry.
// The library commits up to the end of its own log, which may hold entries of a previous leader that no other node has.
func CommitLimit(leaderCommit, prev uint64, entries int) uint64 {
	return min(leaderCommit, prev+uint64(entries))
}

// oneAtATime calls handle while no other message is handled that changes the log. Raft handles one such message at a
// time anyway. The checks before it must see what the message before has changed: the snapshot of a deposed leader
// may still be on its way when the first append of the next leader comes.
func (m incoming) oneAtATime(handle func()) {
	select {
	case m.r.changingLog <- struct{}{}:
		defer func() { <-m.r.changingLog }()
		handle()
	case <-m.r.closed:
		m.rpc.Respond(nil, errClosed)
	}
}

// conflictingEntry returns why the log of the current term's leader conflicts with what this node has applied. The
// library would keep both.
func (m incoming) conflictingEntry(c *raft.AppendEntriesRequest) error {
	if c.Term < m.local.CurrentTerm() {
		return nil
	}
	if err := m.local.CheckEntry(c.Term, c.PrevLogEntry, c.PrevLogTerm); err != nil {
		return err
	}
	for _, e := range c.Entries {
		if err := m.local.CheckEntry(c.Term, e.Index, e.Term); err != nil {
			return err
		}
	}
	return nil
}

// adopted adopts a leader's cluster ID before its first message reaches raft. If that fails, it refuses the message
// and returns false.
func (m incoming) adopted(term uint64) bool {
	if m.facts.ClusterID == "" || term < m.local.CurrentTerm() {
		return true
	}
	if err := m.r.t.adopt(m.facts); err != nil {
		m.r.t.quiet.warn("adopt", "rejected a leader's message: cluster ID not adopted", "peer", m.p.id, "error", err)
		m.refuse("adopt", err)
		return false
	}
	return true
}

// recheck is how often a heartbeat that waits for raft checks whether the transport may answer it.
const recheck = 5 * time.Millisecond

// senderIsLeader reports whether raft is in term and knows the sender as its leader.
func (m incoming) senderIsLeader(term uint64) bool {
	return m.local.CurrentTerm() == term && m.local.Leader() == m.p.id
}

// heartbeat passes a heartbeat to raft, or answers it while raft is busy.
func (m incoming) heartbeat(term uint64) {
	r := m.r
	reply := make(chan raft.RPCResponse, 1)
	fwd := raft.RPC{Command: m.rpc.Command, RespChan: reply}
	for {
		now := time.Now()
		_, restored := m.local.Progress()
		inside, mayProxy, began := r.busy.status(now, restored, r.t.params)
		if mayProxy && m.senderIsLeader(term) {
			r.recordProxyAck(now, m.p.id, m.facts.BootID)
			// raft has voted meanwhile; later votes are bound by the proxied acknowledgement
			if !m.senderIsLeader(term) {
				continue
			}
			if err := m.local.FlushBeforeReply(); err != nil {
				m.rpc.Respond(nil, err)
				return
			}
			m.rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: r.header(), Term: term, Success: true}, nil)
			return
		}
		var again <-chan time.Time
		if inside {
			again = time.After(recheck)
		}
		select {
		case r.consumer <- fwd:
			m.pass(reply, nil)
			return
		case <-began:
		case <-again:
		case <-r.closed:
			m.rpc.Respond(nil, errClosed)
			return
		}
	}
}

// refuse answers with an error, after a delay.
func (m incoming) refuse(reason string, err error) {
	m.r.t.reject(m.kind, reason)
	if m.rpc.Reader != nil {
		_, _ = io.Copy(io.Discard, m.rpc.Reader)
	}
	sleep(minFailureDelay, m.r.closed)
	m.rpc.Respond(nil, toWire(err))
}

// forward passes the message to raft, and the answer back, and returns it; the zero value if there is none. op, if any,
// marks raft as busy until it answers.
func (m incoming) forward(op *operation) (answer raft.RPCResponse) {
	reply := make(chan raft.RPCResponse, 1)
	fwd := raft.RPC{Command: m.rpc.Command, Reader: m.rpc.Reader, RespChan: reply}
	select {
	case m.r.consumer <- fwd:
		return m.pass(reply, op)
	case <-m.r.closed:
		m.rpc.Respond(nil, errClosed)
		return answer
	}
}

// pass waits for raft's answer, sends it, and returns it; the zero value if none was sent.
func (m incoming) pass(reply <-chan raft.RPCResponse, op *operation) (answer raft.RPCResponse) {
	if op != nil {
		m.r.busy.enter(op, time.Now())
		defer m.r.busy.leave(op)
	}
	select {
	case got := <-reply:
		if err := m.local.FlushBeforeReply(); err != nil {
			m.rpc.Respond(nil, err)
			return answer
		}
		if op != nil {
			m.r.busy.leave(op) // the sender's next message may come before this function returns
		}
		m.rpc.RespChan <- got
		return got
	case <-m.r.closed:
		if s, ok := m.rpc.Reader.(*snapshotReader); ok {
			s.cut() // raft may still read, and the connection is the library's again
		}
		m.rpc.Respond(nil, errClosed)
		return answer
	}
}

// header returns the header of this node's own messages.
func (r *Raft) header() raft.RPCHeader {
	return raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax,
		ID:              []byte(r.t.cfg.Membership.LocalPeer().NodeID),
		Addr:            []byte(r.t.cfg.Advertise),
	}
}

// checkEntries checks what raft assumes of an append: it would panic otherwise.
func checkEntries(c *raft.AppendEntriesRequest) error {
	for i, e := range c.Entries {
		switch {
		case e == nil:
			return fmt.Errorf("%w: entry %d is missing", errMalformed, i)
		case e.Index != c.PrevLogEntry+1+uint64(i):
			return fmt.Errorf("%w: entry %d has index %d after %d", errMalformed, i, e.Index, c.PrevLogEntry)
		case e.Type > raft.LogConfiguration:
			return fmt.Errorf("%w: entry of type %d", errMalformed, e.Type)
		case e.Type == raft.LogConfiguration:
			if err := checkConfiguration(e.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkConfiguration returns an error if raft cannot decode a configuration.
func checkConfiguration(data []byte) (err error) {
	defer func() {
		if recover() != nil { // the library panics
			err = fmt.Errorf("%w: undecodable configuration", errMalformed)
		}
	}()
	raft.DecodeConfiguration(bytes.Clone(data))
	return nil
}
