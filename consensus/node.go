package consensus

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/consensus/storage"
	"northstar/state"
)

// Node is one member of the cluster. Its methods may be called from any goroutine, before, during and after Run. What
// needs a running Raft returns CodeNoLeader otherwise.
type Node struct {
	cfg    Config
	deps   Deps
	log    hclog.Logger
	digest string // of cluster-name and initial-cluster

	store      *storage.Guarded
	ident      *identity
	state      *state.State
	fsm        *raftnode.FSM
	queue      *queue
	readRounds *rounds
	// of this node's commit index, while it leads
	subscribers *subscribers
	lease       *lease // nil: election.lease is off
	promise     leasePromise
	peers       *peerRegistry

	inst             atomic.Pointer[raftnode.Instance] // nil while Raft does not run
	readyTerm        atomic.Uint64                     // the term of the leadership that serves here; 0: none
	draining         atomic.Bool
	caughtUp         atomic.Bool // the state holds what was committed when this node started
	freshness        freshness
	catchUp          catchUp
	aside            asideTurn
	peersProbed      atomic.Bool   // every member was probed since this process started
	replacing        atomic.Uint64 // the term of a restore whose new state may be uncommitted; 0: none
	changeSem        chan struct{} // capacity 1: the holder may change the membership, transfer or restore
	installing       chan struct{} // capacity 1: the holder has the library replace the state
	restoring        atomic.Int64  // bytes with which the library replaces the state; 0: it does not
	stateKick        chan struct{} // capacity 1: the state has changed
	fatal            chan error    // capacity 1: why Run ends
	rebuild          chan string   // capacity 1: why the Raft node is replaced
	recoveryRequests chan *pendingRecovery
	running          chan struct{} // closed when Raft runs for the first time
	opened           sync.Once     // of running
	bootstrapped     bool          // by this process, before Raft runs

	ahead atomic.Pointer[state.View] // see ElectionView; nil: Raft has not run yet, or View has reached it

	tasks []func(ctx context.Context, term uint64) // set before Run

	jobs     sync.WaitGroup // restores whose callers may have returned
	startLog atomic.Uint64  // last index of the log when Raft started

	mu               sync.Mutex // guards the fields below; nothing blocks under it
	elections        electionTracker
	leaderCh         chan struct{} // closed at the next change of (leader, term)
	readyCh          chan struct{} // closed at the next change of readyTerm
	leadershipSince  time.Time     // when the leadership of readyTerm began
	leadershipTerm   uint64
	cancelLeadership context.CancelCauseFunc // of the leadership of leadershipTerm; nil: none
}

// New checks configuration and data directory, and creates the data directory's identity if it has none. It starts
// nothing. The storage belongs to the Node from then on, also when New fails.
func New(cfg Config, deps Deps) (*Node, error) {
	if err := errors.Join(cfg.validate(), deps.validate()); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, deps: deps, log: deps.Logger.Named("consensus"),
		digest: BootstrapDigest(cfg.ClusterName, cfg.InitialCluster),
		state:  state.New(cfg.stateOptions()),
		queue:  newQueue(), readRounds: &rounds{wake: make(chan struct{}, 1)}, peers: newPeerRegistry(),
		subscribers: newSubscribers(),
		changeSem:   make(chan struct{}, 1), installing: make(chan struct{}, 1), stateKick: make(chan struct{}, 1),
		fatal: make(chan error, 1), rebuild: make(chan string, 1), recoveryRequests: make(chan *pendingRecovery),
		running: make(chan struct{}), aside: asideTurn{sem: make(chan struct{}, 1)},
		elections: newElectionTracker(cfg.Self.NodeID, cfg.TimeoutMax),
		leaderCh:  make(chan struct{}), readyCh: make(chan struct{}),
		catchUp: catchUp{progress: make(chan struct{}, 1)},
	}
	n.store = storage.Guard(deps.Storage, storage.GuardConfig{
		StallMin: cfg.TimeoutMin, StallMax: cfg.TimeoutMax, OnFatal: n.failDisk, Observe: deps.ObserveDisk,
		OnHang: func() {
			if n.inst.Load() != nil && deps.DiskHangs != nil { // Run has begun
				deps.DiskHangs()
			}
		},
		Logger: deps.Logger,
	})
	n.fsm = raftnode.NewFSM(raftnode.FSMConfig{
		State: n.state, Halt: n.fail, MembersChanged: func() { raftnode.Notify(n.stateKick) },
		IncarnationCleared: n.peers.incarnationCleared,
		BatchApplied:       n.batchApplied, SnapshotDone: n.snapshotDone,
	})
	n.freshness.now, n.freshness.sleep = time.Now, newSuspendWatch(deps.LeaseClock, time.Now())
	if cfg.Lease {
		n.lease = newLease(LeaseLength(cfg.TimeoutMin, cfg.LeaseDrift), deps.LeaseClock, time.Now)
	}
	ident, err := openIdentity(n.store, cfg.Self.NodeID, deps.Entropy)
	if err != nil {
		return nil, errors.Join(err, n.store.Close())
	}
	n.ident = ident
	n.promise, err = openLeasePromise(ident, cfg.LeasePromise())
	if err != nil {
		return nil, errors.Join(err, n.store.Close())
	}
	in, err := n.startInputs()
	if err == nil {
		err = checkStart(in) // before any message reports that this node runs
	}
	if err != nil {
		return nil, errors.Join(err, n.store.Close())
	}
	return n, nil
}

// Close closes the storage of a Node whose Run was never called.
func (n *Node) Close() error { return n.store.Close() }

// AddLeaderTask registers a task that runs while this node leads. It starts when the leader-start is applied, and ends
// with ctx, whose cause is ErrLeadershipLost or that of Run's end. The next leadership begins when every task has
// returned. Call it before Run.
func (n *Node) AddLeaderTask(run func(ctx context.Context, term uint64)) {
	n.tasks = append(n.tasks, run)
}

// fail ends Run with err. It does not wait; the first error counts.
func (n *Node) fail(err error) {
	select {
	case n.fatal <- err:
	default:
	}
}

// failDisk ends Run. This node stops leading immediately: the library may not know of a write that has failed.
func (n *Node) failDisk(err error) {
	if inst := n.inst.Load(); inst != nil {
		inst.StepDownNow()
	}
	n.fail(err)
}

// Run takes part in the cluster until ctx ends, which is not an error, or until this node cannot continue. Everything
// that it started has ended when it returns, unless the error says otherwise. The storage is closed then.
func (n *Node) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	n.mu.Lock()
	n.elections.leaderlessSince = time.Now()
	n.mu.Unlock()
	var background sync.WaitGroup
	background.Go(func() { _ = n.store.Run(ctx) }) // fail gets its error, too
	background.Go(func() { n.persistIdentityLoop(ctx) })
	background.Go(func() { n.probePeersLoop(ctx) })
	background.Go(func() { n.forgetEarlierPromise(ctx) })
	background.Go(func() {
		select {
		case err := <-n.fatal:
			cancel(err)
		case <-ctx.Done():
		}
	})
	err := n.runUnlessStorageFails(func() error { return n.firstStart(ctx) })
	for rebuilt := false; err == nil && ctx.Err() == nil; rebuilt = true {
		err = n.serve(ctx, rebuilt)
	}
	cancel(err)
	n.queue.stop()
	if !waitFor(background.Wait, stopWait) {
		err = errors.Join(err, errors.New("storage did not stop"))
	}
	// The first cause comes first. A cancelled context is not an error.
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	return errors.Join(err, n.store.Close())
}

// serve runs one Raft node until ctx ends or it has to be replaced. It fails if that does not start or stop.
func (n *Node) serve(ctx context.Context, rebuilt bool) error {
	var inst *raftnode.Instance
	err := n.runUnlessStorageFails(func() (err error) {
		inst, err = n.startRaft(rebuilt)
		return err
	})
	if err != nil {
		return err
	}
	n.inst.Store(inst)
	n.deps.Bind(RaftCallbacks{inst, n}) // the transport may ask for the servers now
	n.opened.Do(func() { close(n.running) })
	ctx, cancel := context.WithCancelCause(ctx)
	var loops, probes, flights sync.WaitGroup
	loops.Go(func() { n.watchLeadership(ctx, inst) })
	loops.Go(func() { n.leadershipLoop(ctx, inst) })
	loops.Go(func() { n.readLoop(ctx, inst) })
	probes.Go(func() { inst.ProbeTransferFlags(ctx) })
	if n.bootstrapped && !rebuilt {
		probes.Go(func() { n.startFirstElection(ctx, inst) })
	}
	flights.Go(func() { inst.Run(ctx) })
	flights.Go(func() { inst.RunSnapshots(ctx) })
	flights.Go(func() { n.proposeLoop(ctx, inst) })
	flights.Go(func() { n.informLoop(ctx, inst) })
	var pending *pendingRecovery
	select {
	case <-ctx.Done():
		inst.Final.Store(true)
	case pending = <-n.recoveryRequests:
	case why := <-n.rebuild:
		n.log.Warn("restarting raft", "reason", why)
		cancel(ErrLeadershipLost) // for leader tasks; the node itself continues
	}
	cancel(context.Cause(ctx))
	if err = n.stop(inst, &loops, &probes, &flights); err == nil && pending == nil {
		err = n.deleteConflicting(inst)
	}
	if pending != nil {
		result := err
		if result == nil {
			result = n.commitRecovery(pending.request, inst.Servers())
		}
		pending.done <- result
	}
	return err
}

// runUnlessStorageFails runs a step that uses the storage before Raft's own goroutines do. The storage blocks a failed
// call until it is closed, because the library would panic. Here that happens immediately, and ends the call.
func (n *Node) runUnlessStorageFails(what func() error) error {
	ended := make(chan struct{})
	err := error(nil)
	returned := false
	go func() {
		defer close(ended)
		err = what()
		returned = true
	}()
	select {
	case <-ended:
	case <-n.store.Failed():
		closed := n.store.Close()
		if !waitFor(func() { <-ended }, stopWait) {
			return errors.Join(n.store.Err(), closed, errors.New("the start did not end"))
		}
	}
	if !returned {
		return n.store.Err()
	}
	return err
}

// stop ends one Raft node, in this order:
//
//  1. Leader tasks, reads, transfers and watching end. New proposals are rejected. Those in flight get a moment, as do
//     changes of the configuration, and a question after a failed transfer: while it shuts down, the library can lose
//     the result of a committed entry. One that is not committed, because the others have gone, ends with 2.
//  2. Raft starts to shut down, which frees callers that wait to hand it something.
//  3. The transport is closed: the library waits for its messages in flight.
//  4. After a fatal storage error the storage is closed now: the library's goroutines block in it. Otherwise the
//     library still needs it.
//  5. All goroutines and the write in progress are waited for, within bounds. A goroutine whose result was lost in
//     spite of 1 is left, and the error says so.
func (n *Node) stop(inst *raftnode.Instance, loops, probes, flights *sync.WaitGroup) error {
	var errs []error
	close(inst.Stopping)
	n.queue.refuse(n.notLeading())
	if !waitFor(loops.Wait, stopWait) {
		errs = append(errs, errors.New("leader tasks did not end"))
	}
	n.awaitInFlight(inst)
	letRestore := n.awaitRestore()
	if !waitFor(probes.Wait, stopWait) {
		n.log.Warn("stopping with a question about a failed transfer in progress")
	}
	ended := inst.Shutdown()
	letRestore() // it finds that this node does not lead
	if n.store.Err() != nil {
		errs = append(errs, n.store.Close())
	}
	if !waitFor(ended, stopWait) {
		errs = append(errs, errors.New("raft did not shut down, or one of its writes does not end"))
	}
	if !waitFor(func() { flights.Wait(); probes.Wait(); n.jobs.Wait() }, stopWait) {
		errs = append(errs, errors.New("a proposal or restore was never answered by raft"))
	}
	last, cancel := context.WithTimeout(context.Background(), lostAnswerWait)
	defer cancel()
	if !inst.Answers.Await(last) {
		n.log.Info("raft has ended without an answer to a change of the configuration")
	}
	n.inst.CompareAndSwap(inst, nil)
	select {
	case <-n.rebuild: // it was about this Raft node
	default:
	}
	n.updateSoftState(raftnode.SoftState{Role: cluster.Follower, Term: n.currentSoftState().Term}, time.Time{})
	return errors.Join(errs...)
}

// awaitInFlight waits until the batch in flight is completed, and each change of the configuration. A leader without a
// quorum completes them when it steps down, so the wait is as long as that takes.
func (n *Node) awaitInFlight(inst *raftnode.Instance) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*n.cfg.TimeoutMax)
	defer cancel()
	if err := n.queue.idle(ctx); err != nil {
		n.log.Warn("stopping with proposals in flight")
	}
	if !inst.Answers.Await(ctx) {
		n.log.Warn("stopping with a change of the configuration in flight")
	}
}

// restoreWait bounds how long stopping waits for a restore.
const restoreWait = 30 * time.Second

// awaitRestore waits for a restore, and lets no other begin before release: the library panics when it is shut down
// while its state machine installs one. The change lock says less: a recovery holds it while it waits for this stop.
func (n *Node) awaitRestore() (release func()) {
	t := time.NewTimer(restoreWait)
	defer t.Stop()
	select {
	case n.installing <- struct{}{}:
		return func() { <-n.installing }
	case <-t.C:
		n.log.Warn("stopping during a restore")
		return func() {}
	}
}

// waitFor reports whether wait returned within d.
func waitFor(wait func(), d time.Duration) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// persistIdentityLoop makes the applied cluster ID durable, and the roster that admission needs after a restart.
func (n *Node) persistIdentityLoop(ctx context.Context) {
	for {
		select {
		case <-n.stateKick:
		case <-ctx.Done():
			return
		}
		if err := n.persistIdentity(); err != nil {
			n.fail(err)
			return
		}
	}
}

func (n *Node) persistIdentity() error {
	v := n.state.View()
	if v.ClusterID() == "" {
		return nil
	}
	roster := rosterOf(v.Members(), v.AppliedIndex(), v.AppliedTerm())
	adopted, err := n.ident.adopt(v.ClusterID(), v.Generation(), roster)
	if err != nil {
		return err
	}
	if adopted {
		n.log.Info("cluster ID is durable", "cluster_id", v.ClusterID(), "generation", v.Generation().Number)
		n.deps.ResetPeers()
	}
	return n.ident.keepRoster(roster)
}

// notLeading returns the error for what only a leader can do. It names the leader that this node knows.
func (n *Node) notLeading() *cluster.Error {
	s := n.currentSoftState()
	if s.Leader == "" || s.Leader == n.cfg.Self.NodeID {
		return notLeader("node %s does not lead and knows no leader", n.cfg.Self.NodeID)
	}
	return notLeader("node %s does not lead, node %s does (term %d)", n.cfg.Self.NodeID, s.Leader, s.Term)
}
