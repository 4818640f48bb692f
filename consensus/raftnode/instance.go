// Package raftnode holds one run of raft.Raft: the library's node with its stores, its transport and the state machine
// that it feeds. Package consensus makes one Instance after the other when a stuck one has to be replaced.
package raftnode

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

const (
	// blockedElectionTimeout is how long a node that must not become candidate waits as one, once it has lost its
	// leader: it raises its term once, and not repeatedly.
	blockedElectionTimeout = 365 * 24 * time.Hour
	// reducedLater is added to a timeout that is to be ended early: raft.Raft looks at a running timer only when the
	// timeout gets shorter.
	reducedLater = time.Millisecond
)

// Instance is one run of raft.Raft. Its methods may be called from any goroutine.
type Instance struct {
	// Raft is the library's node. Leadership, its transfer, snapshots and shutdown go through the methods of Instance.
	*raft.Raft
	cfg             Config
	trans           *raftTransport
	store           *raftStore
	changed         chan struct{}  // capacity 1: role, term or leader may have changed
	heartbeat       chan struct{}  // capacity 1: send heartbeats now
	snapshotDue     chan struct{}  // capacity 1: write a snapshot now
	flagProbes      chan flagProbe // capacity 1
	watchdog        transferWatchdog
	electionBlocked atomic.Bool
	steppedDownTerm atomic.Uint64 // this node must not lead in it, even if raft.Raft leads; 0: none
	leaderTerm      atomic.Uint64 // in which raft.Raft last learned of a leader, or lost it

	confMu sync.Mutex // held while the library's configuration is changed
	// Stopping is closed when this run begins to end. From then on its leader is not sampled. Final is set before that
	// if the process stops: no other run follows.
	Stopping chan struct{}
	Final    atomic.Bool

	// Conflicting is the snapshot for which this run is replaced: the next one starts without the entries that conflict
	// with it.
	Conflicting atomic.Pointer[OfferedSnapshot]

	// Answers of the library to changes of the configuration.
	Answers Answers

	startedWith uint64 // the index of the log's last entry at the start

	transferMu sync.Mutex
	transfers  map[cluster.NodeID]*TransferAttempt // the last one to each peer
}

// Start starts raft.Raft. It returns a panic on this goroutine, the library's answer to a disk error, as an error.
func Start(cfg Config) (i *Instance, err error) {
	defer recoverTo(&err)
	i = &Instance{
		cfg:     cfg,
		changed: make(chan struct{}, 1), heartbeat: make(chan struct{}, 1), snapshotDue: make(chan struct{}, 1),
		flagProbes: make(chan flagProbe, 1),
		watchdog:   transferWatchdog{after: cfg.TimeoutMax + 2*cfg.TimeoutMin, trip: cfg.OnStuckTransfer},
		transfers:  map[cluster.NodeID]*TransferAttempt{}, Stopping: make(chan struct{}),
	}
	conf := cfg.raftConfig(newLibraryLogger(cfg.Logger.Named("raft")))
	cfg.FSM.restarted()
	// The state already holds what the newest snapshot does, and more. A restore would show readers the past.
	conf.NoSnapshotRestoreOnStart = cfg.KeepState && cfg.Snapshots.newestIndex() <= cfg.FSM.Applied()
	last, err := cfg.Log.LastIndex()
	if err != nil {
		return nil, err
	}
	i.startedWith = last
	if last = max(last, cfg.Snapshots.newestIndex()); cfg.ElectionBlocked(last) {
		i.electionBlocked.Store(true)
		conf.HeartbeatTimeout, conf.ElectionTimeout = conf.HeartbeatTimeout+reducedLater, blockedElectionTimeout
	} else if cfg.FirstStart {
		conf.HeartbeatTimeout += reducedLater
		conf.ElectionTimeout += reducedLater
	}
	var running atomic.Pointer[raft.Raft]
	self := cfg.Transport.EncodePeer(raft.ServerID(cfg.Self), cfg.Transport.LocalAddr())
	leadsWithSnapshot := func() bool {
		r := running.Load()
		return r != nil && r.State() == raft.Leader && r.AppliedIndex() >= cfg.Snapshots.newestIndex()
	}
	i.store = newRaftStore(&snapshotLog{cfg.Log, cfg.Snapshots, leadsWithSnapshot}, cfg.Stable, self)
	cfg.Snapshots.deleteRange = i.store.DeleteRange
	i.store.electionBlocked = i.electionBlocked.Load
	i.store.state = func() raft.RaftState {
		if r := running.Load(); r != nil {
			return r.State()
		}
		return raft.Shutdown
	}
	i.store.voters = func() int {
		return cluster.CountVoters(Servers(running.Load().GetConfiguration().Configuration()))
	}
	i.trans = &raftTransport{Transport: cfg.Transport, store: i.store, running: &running}
	i.Raft, err = raft.NewRaft(conf, cfg.FSM, i.store, i.store, cfg.Snapshots, i.trans)
	if err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	running.Store(i.Raft)
	// The filter runs at every transition. It queues nothing, so it cannot stall or drop events as a channel would.
	i.Raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if _, is := o.Data.(raft.LeaderObservation); is {
			i.leaderTerm.Store(i.Raft.CurrentTerm())
		}
		Notify(i.changed)
		return false
	}))
	return i, nil
}

// recoverTo turns a panic of raft.Raft on this goroutine into an error.
func recoverTo(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("start raft: %v", p)
	}
}

// Run sends heartbeats on demand until ctx ends and Shutdown was called. The result of VerifyLeader is ignored: it
// counts non-voters and acknowledgements of older messages, and it may never come. The call blocks while the library's
// main loop does, so it has this goroutine; Shutdown ends it.
func (i *Instance) Run(ctx context.Context) {
	for {
		select {
		case <-i.heartbeat:
			i.Raft.VerifyLeader()
		case <-ctx.Done():
			return
		}
	}
}

// SendHeartbeats makes the leader send heartbeats now. It does not wait.
func (i *Instance) SendHeartbeats() { Notify(i.heartbeat) }

// Shutdown begins to end this run. It unblocks callers that wait to pass something to raft.Raft, and closes the
// transport, because the library waits for its messages in flight. wait returns when the last write has ended, too.
func (i *Instance) Shutdown() (wait func()) {
	i.store.close()
	down := i.Raft.Shutdown()
	if err := i.trans.Close(); err != nil {
		i.cfg.Logger.Debug("closing the transport", "error", err)
	}
	return func() {
		_ = down.Error()
		i.store.stopWrites()
	}
}

// EndFirstTimeout ends the first timer of an Instance with FirstStart: if it has heard no leader, it becomes candidate
// now. It asks for pre-votes, and steps back for another leader of its term, as after any timer.
func (i *Instance) EndFirstTimeout() {
	i.confMu.Lock()
	defer i.confMu.Unlock()
	conf := i.Raft.ReloadableConfig()
	conf.HeartbeatTimeout, conf.ElectionTimeout = i.cfg.TimeoutMin, i.cfg.TimeoutMin
	i.reload(conf)
}

// Maintain makes the periodic changes of the library's configuration. One goroutine calls it, about every TimeoutMin.
func (i *Instance) Maintain() {
	i.confMu.Lock()
	defer i.confMu.Unlock()
	conf := i.Raft.ReloadableConfig()
	before := conf
	if i.cfg.FirstStart && i.Leader() != "" { // its timer has been restarted since
		conf.HeartbeatTimeout, conf.ElectionTimeout = i.cfg.TimeoutMin, i.cfg.TimeoutMin
	}
	if i.electionBlocked.Load() && !i.cfg.ElectionBlocked(i.Raft.LastIndex()) {
		i.electionBlocked.Store(false)
		conf.HeartbeatTimeout, conf.ElectionTimeout = i.cfg.TimeoutMin, i.cfg.TimeoutMin
		i.cfg.Logger.Info("elections unblocked: log reached this node's admission entry")
	}
	conf.TrailingLogs = i.cfg.FSM.size.trailingLogs(i.cfg.TrailingLogs, i.maxLogBytes())
	if i.isSnapshotDue() {
		Notify(i.snapshotDue)
	}
	if conf != before {
		i.reload(conf)
	}
}

func (i *Instance) reload(conf raft.ReloadableConfig) {
	if err := i.Raft.ReloadConfig(conf); err != nil {
		i.cfg.Logger.Error("cannot change the configuration of raft", "error", err)
	}
}

// ElectionBlocked reports whether this node must not become candidate before its log reaches its own admission entry.
func (i *Instance) ElectionBlocked() bool { return i.electionBlocked.Load() }

// TrackVote counts a RequestVote that enters or leaves raft.Raft.
func (i *Instance) TrackVote(enters bool) { i.store.trackVote(enters) }

// FlushBeforeReply makes durable what is pending, and waits for asynchronous writes. No response of raft.Raft may leave
// this node before that. An error means that the response must not leave it at all.
func (i *Instance) FlushBeforeReply() error { return i.store.flushBeforeReply() }

// NoteResult records the result of a proposal for the watchdog over stuck transfers.
func (i *Instance) NoteResult(err error) { i.watchdog.note(time.Now(), err) }

// LastEntry returns the position of the last entry that this node holds, in its log or its snapshot.
func (i *Instance) LastEntry() (index, term uint64) {
	index = i.Raft.LastIndex()
	if e, _ := i.store.inMemory(index); e != nil {
		return index, e.Term
	}
	var l raft.Log
	if index != 0 && i.cfg.Log.GetLog(index, &l) == nil {
		return index, l.Term
	}
	// A snapshot has replaced the log. The library reports its position nowhere else.
	stats := i.Raft.Stats()
	for _, of := range []string{"last_log", "last_snapshot"} {
		at, _ := strconv.ParseUint(stats[of+"_index"], 10, 64)
		t, _ := strconv.ParseUint(stats[of+"_term"], 10, 64)
		if at >= index {
			index, term = at, t
		}
	}
	return index, term
}

// GetLog reads an entry of the log; ErrNoopPending for a pending no-op.
func (i *Instance) GetLog(index uint64, out *raft.Log) error { return i.store.GetLog(index, out) }

// SnapshotIndex returns the last index that the newest snapshot holds, 0 without one.
func (i *Instance) SnapshotIndex() uint64 { return i.cfg.Snapshots.newestIndex() }

// EndsSnapshot reports whether the newest snapshot ends with the entry.
func (i *Instance) EndsSnapshot(index, term uint64) bool {
	return i.cfg.Snapshots.endsAt(LogPosition{index, term})
}

// ConflictingSnapshot reports whether an entry of the current term's leader conflicts with the newest snapshot.
func (i *Instance) ConflictingSnapshot(index, term uint64) (LogPosition, bool) {
	return i.cfg.Snapshots.conflictsWithNewest(index, term)
}
