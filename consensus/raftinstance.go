package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// raftInstance is one run of the library's node. There is one after the other when
// a stuck one has to be rebuilt.
type raftInstance struct {
	raft                       *raft.Raft
	trans                      *raftTransport
	snaps                      *checkedSnapshots
	disk                       *raftStore
	stateChanged               chan struct{} // capacity 1: something about role, term or leader changed
	verify                     chan struct{} // capacity 1: send heartbeats now
	watchdog                   *transferWatchdog
	shortSnapshotIntervalUntil time.Time     // until when the library looks often whether a snapshot is due; zero: no more
	electionBlocked            atomic.Bool   // it must not stand: see beforeOwnAdmission
	steppedDownTerm            atomic.Uint64 // the term that this node must not lead in, whatever the library says; 0: none

	transferMu sync.Mutex
	transfers  map[cluster.NodeID]*transferAttempt // the last to each peer
}

// startRaft starts Raft. Whatever the library panics with while it starts,
// on this goroutine, comes back as an error.
func (n *Node) startRaft(rebuilt bool) (inst *raftInstance, err error) {
	defer recoverTo(&err)
	inst = &raftInstance{
		trans:        &raftTransport{Transport: n.deps.Transport()},
		stateChanged: make(chan struct{}, 1),
		verify:       make(chan struct{}, 1),

		transfers: map[cluster.NodeID]*transferAttempt{},
	}
	inst.watchdog = &transferWatchdog{after: n.cfg.TimeoutMax + 2*n.cfg.TimeoutMin, trip: func() {
		n.requestRestart("a leadership transfer never ended inside the Raft library")
	}}
	snaps := &checkedSnapshots{SnapshotStore: n.store.Snapshots(), log: n.store.Log(), config: &n.fsm.config}
	if err := snaps.discardAbandonedRestore(n.ident.get().AbandonedRestore); err != nil {
		return nil, err
	}
	inst.snaps = snaps
	if err := n.logRecovery(); err != nil {
		return nil, err
	}
	conf := n.cfg.raftConfig(newLibraryLogger(n.log.Named("raft"), n.now))
	n.fsm.deliveredIndex.Store(0)
	if rebuilt {
		// The state already holds what the newest snapshot does, and more: going
		// back to it would show readers the past.
		conf.NoSnapshotRestoreOnStart = snaps.newestIndex() <= n.fsm.applied.Load()
	}
	last, err := n.store.Log().LastIndex()
	if err != nil {
		return nil, err
	}
	if ident := n.ident.get(); ident.beforeOwnAdmission(max(last, snaps.newestIndex())) {
		n.log.Info("standing for no election before the log reaches this node's admission", "log", max(last, snaps.newestIndex()), "admission", ident.RosterIndex)
		inst.electionBlocked.Store(true)
		conf.HeartbeatTimeout, conf.ElectionTimeout = conf.HeartbeatTimeout+blockedTimeoutExtra, blockedElectionTimeout
	}
	conf.SnapshotInterval = max(conf.SnapshotInterval/firstSnapshotDivisor, minSnapshotInterval)
	inst.shortSnapshotIntervalUntil = n.now().Add(conf.SnapshotInterval)
	disk, started := n.newInstanceStore(inst.trans, inst.electionBlocked.Load)
	inst.disk, inst.trans.disk = disk, disk
	inst.raft, err = raft.NewRaft(conf, n.fsm, inst.disk, inst.disk, snaps, inst.trans)
	if err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	started(inst.raft)
	// The filter runs at every transition, on the library's own goroutine, and
	// nothing is queued: that cannot stall or drop, as a channel would.
	inst.raft.RegisterObserver(raft.NewObserver(nil, false, func(*raft.Observation) bool {
		notify(inst.stateChanged)
		return false
	}))
	return inst, nil
}

const (
	// blockedElectionTimeout is how long a node that must not stand waits as a candidate, which it is
	// once it has lost its leader: it raises its term once, and not again and again.
	blockedElectionTimeout = 365 * 24 * time.Hour
	// blockedTimeoutExtra is by how much a follower's timeout is longer until then. The
	// library looks at a timeout at once only when this one gets shorter.
	blockedTimeoutExtra = time.Millisecond
)

// beforeOwnAdmission says that this data directory was taken into a running cluster,
// and that its log, which ends with the entry last, does not reach yet to where it
// was. The configurations in it may be of another data directory that had this
// node's ID. By one in which that was the only voter this node would elect itself,
// alone: records are asked between nodes. One that was recovered has a configuration
// of its own at the end of its log.
func (f *identityFile) beforeOwnAdmission(last uint64) bool {
	return f.JoinOnly && f.Recovery == nil && (f.Roster[f.NodeID] != cluster.Record{Incarnation: f.Incarnation} || last < f.RosterIndex)
}

// unblockElections lets a node stand once its log reaches its own admission.
func (n *Node) unblockElections(inst *raftInstance) {
	if ident := n.ident.get(); !inst.electionBlocked.Load() || ident.beforeOwnAdmission(inst.raft.LastIndex()) {
		return
	}
	inst.electionBlocked.Store(false)
	conf := inst.raft.ReloadableConfig()
	conf.HeartbeatTimeout, conf.ElectionTimeout = n.cfg.TimeoutMin, n.cfg.TimeoutMin
	if err := inst.raft.ReloadConfig(conf); err != nil {
		n.log.Error("slow to take part in elections", "error", err)
	}
	n.log.Info("the log has reached this node's admission: it may stand for election")
}

// verifier makes the library send heartbeats on demand. The library's answer is
// ignored: it counts non-voters and acknowledgements of older sends, and it may
// never come. The call itself blocks while the main loop does, which is why it
// has a goroutine of its own; Shutdown frees it.
func (inst *raftInstance) verifier(ctx context.Context) {
	for {
		select {
		case <-inst.verify:
			inst.raft.VerifyLeader()
		case <-ctx.Done():
			return
		}
	}
}

// softState is who leads, as this node sees it at one moment.
type softState struct {
	role   cluster.Role
	term   uint64
	leader cluster.NodeID
	addr   string
}

// sampleSoftState reads role, term and leader so that they belong together, as far as the
// library lets them be read.
func (inst *raftInstance) sampleSoftState(self cluster.NodeID) softState {
	for {
		term, state := inst.raft.CurrentTerm(), inst.raft.State()
		addr, id := inst.raft.LeaderWithID()
		if inst.raft.CurrentTerm() != term || inst.raft.State() != state {
			continue
		}
		s := softState{role: cluster.Follower, term: term, leader: cluster.NodeID(id), addr: string(addr)}
		switch state {
		case raft.Leader:
			if inst.steppedDownTerm.Load() == term {
				s.leader, s.addr = "", ""
				break
			}
			s.role, s.leader = cluster.Leader, self
		case raft.Candidate:
			s.role = cluster.Candidate
		}
		return s
	}
}

func (inst *raftInstance) leads(term uint64) bool {
	// The library gives up the role before it raises the term.
	return inst.raft.CurrentTerm() == term && inst.raft.State() == raft.Leader && inst.steppedDownTerm.Load() != term
}

// servers gives the latest configuration. It does not ask the main loop.
func (inst *raftInstance) servers() []cluster.Server {
	return serversOf(inst.raft.GetConfiguration().Configuration())
}

func serversOf(conf raft.Configuration) []cluster.Server {
	servers := make([]cluster.Server, len(conf.Servers))
	for i, s := range conf.Servers {
		servers[i] = cluster.Server{ID: cluster.NodeID(s.ID), Address: string(s.Address), Suffrage: cluster.NonVoter}
		if s.Suffrage == raft.Voter {
			servers[i].Suffrage = cluster.Voter
		}
	}
	return servers
}

func voterIDs(servers []cluster.Server) []cluster.NodeID {
	ids := make([]cluster.NodeID, 0, len(servers))
	for _, s := range servers {
		if s.Suffrage == cluster.Voter {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// raftTransport watches TimeoutNow, the moment from which a transfer cannot
// be taken back, and holds acknowledgements back (overlap.go).
type raftTransport struct {
	Transport
	disk     *raftStore
	transfer atomic.Pointer[transferAttempt]
}

var (
	_ raft.Transport   = (*raftTransport)(nil)
	_ raft.WithPreVote = (*raftTransport)(nil) // without it pre-vote is silently off
	_ raft.WithClose   = (*raftTransport)(nil)
)

// TimeoutNow tells the target to stand, if that is still wanted.
func (t *raftTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	attempt := t.transfer.Load()
	if attempt == nil || attempt.target != cluster.NodeID(id) || !attempt.allowTimeoutNow() {
		return errors.New("the transfer was given up")
	}
	err := t.Transport.TimeoutNow(id, target, args, resp)
	attempt.answer(err)
	return err
}

// transferWatchdog finds a leadership transfer that the library never ends: its
// flag then makes it refuse every write, also when this node leads again later.
type transferWatchdog struct {
	after time.Duration // how long refusals may go on
	trip  func()

	mu    sync.Mutex
	since time.Time // of the first refusal in a row; zero: none
}

// note is told how each proposal ended.
func (w *transferWatchdog) note(now time.Time, err error) {
	w.mu.Lock()
	tripped := w.decide(now, err)
	w.mu.Unlock()
	if tripped {
		w.trip()
	}
}

func (w *transferWatchdog) decide(now time.Time, err error) bool {
	switch {
	case err == nil:
		w.since = time.Time{}
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		if w.since.IsZero() {
			w.since = now
		}
		return now.Sub(w.since) > w.after
	}
	return false
}

// notify wakes whoever waits on a channel of capacity 1.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
