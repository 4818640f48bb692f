package storage

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Names of the operations that are passed to GuardConfig.Observe.
const (
	OpAppend   = "append"   // log entries stored
	OpTruncate = "truncate" // log entries deleted, at either end
	OpVote     = "vote"     // term or vote recorded
	OpSave     = "save"     // small file replaced
	OpRead     = "read"     // log entry read that was not in the cache
)

const (
	// exitAfter is how long one operation may be outstanding before the disk counts as hung, which is fatal.
	exitAfter = 20 * time.Second

	// The bounds of the cache of the newest log entries.
	cacheBytes   = 8 << 20
	cacheEntries = 8192

	spaceEvery     = 200 * time.Millisecond
	hangCheckEvery = exitAfter / 20 // a hung operation is noticed within it
	maxBlock       = 10 * time.Second
	joinTimeout    = time.Second
)

// GuardConfig is what a Guarded needs in addition to the storage.
type GuardConfig struct {
	// StallMin and StallMax bound for how long an operation may be outstanding before the disk is stalled: timeout-min
	// and timeout-max, and two median syncs. In between it is three times the longest of the last minutes. Required.
	StallMin, StallMax time.Duration
	// OnFatal is called at most once, when this node can no longer trust or use its data: a write failed, an entry
	// reads back wrong, or an operation hangs. The goroutine that met the error calls it before it continues; it must
	// not wait for the storage. The process must then end: no later write succeeds. Required.
	OnFatal func(error)
	// OnHang is called when an operation begins to hang, and again while that lasts; see Hangs. It must not block.
	// Optional.
	OnHang func()
	// Observe receives the duration of each operation when it ends. It must not block. Optional.
	Observe func(op string, d time.Duration)
	// Logger is required.
	Logger hclog.Logger
}

// Guarded is a Storage that times every operation, adds a checksum to every log entry, caches the newest entries, keeps
// the disk reserve, and ends the use of a storage that fails. Its methods may be called from any goroutine.
type Guarded struct {
	storage Storage
	cfg     GuardConfig
	logger  hclog.Logger

	watch     *latencyTracker
	awake     awakeTime    // used by Run's goroutine only
	hang      *time.Timer  // fires when an operation may hang
	hangDue   atomic.Int64 // when it should, since watch's epoch
	cache     *cache
	log       *guardedLog
	stable    *guardedStable
	snapshots *guardedSnapshots

	readOnly   atomic.Bool
	reserveSem chan struct{} // capacity 1: its holder may change the reserve
	releases   atomic.Uint64 // how often the reserve was released

	progress atomic.Uint64 // bytes of snapshots written and read

	fatal     atomic.Pointer[error]
	failed    chan struct{} // closed when fatal is set
	closed    chan struct{}
	closeOnce sync.Once
}

// Guard returns s with a guard. It starts nothing: Run does.
func Guard(s Storage, cfg GuardConfig) *Guarded {
	g := &Guarded{
		storage:    s,
		cfg:        cfg,
		logger:     cfg.Logger.Named("storage"),
		watch:      newWatch(cfg.StallMax),
		cache:      newCache(cacheBytes, cacheEntries),
		reserveSem: make(chan struct{}, 1),
		closed:     make(chan struct{}),
		failed:     make(chan struct{}),
	}
	g.hang = time.AfterFunc(maxBlock, g.checkHang)
	g.hang.Stop()
	g.log = &guardedLog{guard: g, store: s.Log()}
	if opened, ok := s.Log().(*boltLog); ok {
		g.cache = opened.newest // Raft reads them several times when it starts
	}
	g.stable = &guardedStable{guard: g, store: s.Stable()}
	g.snapshots = &guardedSnapshots{guard: g, store: s.Snapshots()}
	return g
}

// Run watches for hung operations and keeps the disk reserve until ctx ends. It returns Err.
func (g *Guarded) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	spaceDone := make(chan struct{})
	go func() {
		defer close(spaceDone)
		g.runPeriodically(ctx, spaceEvery, g.checkSpace)
	}()
	g.runPeriodically(ctx, hangCheckEvery, g.checkHung)

	// On a hung disk a check of the space may never return; the process ends.
	t := time.NewTimer(joinTimeout)
	defer t.Stop()
	select {
	case <-spaceDone:
	case <-t.C:
	}
	return g.Err()
}

func (g *Guarded) runPeriodically(ctx context.Context, d time.Duration, check func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		check()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// checkHung fails the storage when an operation is outstanding for too long. The time in which this process did not run
// says nothing about the disk.
func (g *Guarded) checkHung() {
	now := time.Now()
	ran := g.awake.observe(now)
	if op, d := g.watch.oldest(now); min(d, ran) > exitAfter {
		g.fail(fmt.Errorf("the disk hangs: %s outstanding for %s", op, d.Round(time.Millisecond)))
	}
}

// awakeTime measures for how long a process has run without a pause, as by SIGSTOP.
type awakeTime struct {
	last  time.Time // of the last observation
	since time.Time // of the first one, or of the first one after a pause
}

// observe returns the time since the process has begun to run, or has gone on. It is called once every hangCheckEvery.
func (a *awakeTime) observe(now time.Time) time.Duration {
	if a.last.IsZero() || now.Sub(a.last) > 2*hangCheckEvery {
		a.since = now
	}
	a.last = now
	return now.Sub(a.since)
}

// Log returns the guarded Raft log. The log caches the entries that it stores and returns them again, so
// neither the entries nor their bytes may be changed afterwards.
func (g *Guarded) Log() raft.LogStore { return g.log }

// Stable returns the guarded store of term and vote.
func (g *Guarded) Stable() VoteStore { return g.stable }

// Snapshots returns the guarded snapshot store.
func (g *Guarded) Snapshots() raft.SnapshotStore { return g.snapshots }

// Load reads a small file; errors as Storage.Load.
func (g *Guarded) Load(name string) ([]byte, error) { return g.storage.Load(name) }

// Save replaces a small file. A failure is not fatal by itself: the caller decides.
func (g *Guarded) Save(name string, data []byte) error {
	return g.write(OpSave, func() error { return g.storage.Save(name, data) })
}

// SetAside prepares the next opening; see Storage.
func (g *Guarded) SetAside(aside, file string, data []byte) error {
	return g.write(OpSave, func() error { return g.storage.SetAside(aside, file, data) })
}

// Stalled reports whether one operation has been outstanding for too long. Snapshots do not count.
func (g *Guarded) Stalled() bool {
	return g.untilLimit(g.cfg.StallMin, func(took [2]time.Duration) time.Duration { return stallFactor * took[0] }) < 0
}

// Hangs reports whether one operation has been outstanding for so much longer than usual that another node had better
// lead. It is sooner than Stalled: to let others lead for a while does no harm.
func (g *Guarded) Hangs() bool { return g.untilHang() < 0 }

func (g *Guarded) shortestHang() time.Duration { return g.cfg.StallMin / hangFraction }

// untilHang returns how long the oldest operation may be outstanding until it hangs; a negative time after that. The
// operations of a start say little about a disk.
func (g *Guarded) untilHang() time.Duration {
	least := g.shortestHang()
	if time.Since(g.watch.epoch) < recentWindows*windowSize {
		least = g.cfg.StallMin
	}
	return g.untilLimit(least, func(took [2]time.Duration) time.Duration { return hangFactor * took[1] })
}

// untilLimit returns how long the oldest operation may be outstanding until it has taken much longer than is usual, and
// longer than least; a negative time after that. much is the limit by the two longest operations. The syncs of an
// election come on top: on a disk as slow as this one, a new leader would be ready no sooner.
func (g *Guarded) untilLimit(least time.Duration, much func(longest [2]time.Duration) time.Duration) time.Duration {
	now := time.Now()
	_, d := g.watch.oldest(now)
	if d <= least {
		return least - d
	}
	if g.watch.unmeasured() {
		return g.cfg.StallMax - d
	}
	longest, count := g.watch.slowest(now)
	limit := g.cfg.StallMax
	if count >= stallSamples {
		limit = min(max(much(longest), least), limit)
	}
	return limit + electionSyncs*g.watch.usual(now) - d
}

// armHang makes checkHang run once an operation has been outstanding for longer than d.
func (g *Guarded) armHang(d time.Duration) {
	g.hangDue.Store(int64(time.Since(g.watch.epoch) + d))
	g.hang.Reset(d + 1)
}

// checkHang runs when the oldest operation may hang. If it runs late, this process has not run: the operation may have
// ended meanwhile.
func (g *Guarded) checkHang() {
	op, _ := g.watch.oldest(time.Now())
	if op == "" || g.isClosed() {
		return
	}
	if late := time.Since(g.watch.epoch) - time.Duration(g.hangDue.Load()); late > maxLate {
		g.armHang(maxLate)
		return
	}
	wait := g.untilHang()
	if wait < 0 {
		wait = g.shortestHang()
		if g.cfg.OnHang != nil {
			g.cfg.OnHang()
		}
	}
	g.armHang(wait)
}

const (
	// stallFactor is how many times longer than the longest operation one must take to be a stall. A disk that is slow
	// all the time is not stalled. One that takes hangFactor times as long as the longest but one hangs: a single
	// operation that took long tells little.
	stallFactor = 3
	hangFactor  = 2
	// electionSyncs is how many syncs an election takes, one after the other: of votes, and of the first entries.
	electionSyncs = 2
	// stallSamples is how many operations must be known.
	stallSamples = 100
	// maxLate is how much later than it should checkHang may run and trust what it sees.
	maxLate = 10 * time.Millisecond
	// hangFraction: a disk hangs after this fraction of StallMin at the earliest.
	hangFraction = 3
)

// Syncs returns the 99th percentile of the durations of synced operations over the last minute, within 10 %, their
// number, and the median of the last 5 to 10 seconds. All are 0 if there were none.
func (g *Guarded) Syncs() (p99 time.Duration, syncs uint64, median time.Duration) {
	return g.watch.quantiles(time.Now())
}

// ReadOnly reports whether too little space is free by the newest check: the node must accept no new entries.
func (g *Guarded) ReadOnly() bool { return g.readOnly.Load() }

// Progress returns a counter that grows with every byte of a snapshot written or read.
func (g *Guarded) Progress() uint64 { return g.progress.Load() }

// Err returns the error that ended the use of the storage, or nil while it is in use.
func (g *Guarded) Err() error {
	if err := g.fatal.Load(); err != nil {
		return *err
	}
	return nil
}

// Failed returns a channel that is closed when Err is set.
func (g *Guarded) Failed() <-chan struct{} { return g.failed }

// Close closes the storage, once. Call it after Raft's shutdown has begun. A goroutine that then still
// records a term or reads the log ends there (see blockUntilClosed). Other operations fail with ErrClosed. If
// an operation hangs in the storage, Close leaves the storage open after a time limit and returns an error.
func (g *Guarded) Close() error {
	err := error(nil)
	g.closeOnce.Do(func() {
		close(g.closed)
		done := make(chan error, 1)
		go func() { done <- g.storage.Close() }()
		limit := maxBlock
		if g.Err() != nil {
			limit = joinTimeout
		}
		t := time.NewTimer(limit)
		defer t.Stop()
		select {
		case err = <-done:
		case <-t.C:
			err = errors.New("the storage was left open: an operation in it does not end")
		}
	})
	return err
}

func (g *Guarded) isClosed() bool {
	select {
	case <-g.closed:
		return true
	default:
		return false
	}
}

// fail ends the use of the storage, once. Errors after Close are not failures.
func (g *Guarded) fail(err error) {
	if !g.isClosed() && g.fatal.CompareAndSwap(nil, &err) {
		g.cfg.OnFatal(err)
		close(g.failed)
	}
}

// blockUntilClosed blocks a goroutine of the Raft library, which panics if it cannot store a term or read an entry.
// Close ends the goroutine with its deferred calls. Without Close it returns when the process has had time to end.
func (g *Guarded) blockUntilClosed() {
	t := time.NewTimer(maxBlock)
	defer t.Stop()
	select {
	case <-g.closed:
		runtime.Goexit()
	case <-t.C:
	}
}

// write runs one timed operation that changes the storage, and once more without the reserve if the disk is full.
func (g *Guarded) write(op string, f func() error) error {
	if g.isClosed() {
		return ErrClosed
	}
	if err := g.Err(); err != nil {
		return err
	}
	before := g.releases.Load()
	err := g.timed(op, f)
	if err != nil && isNoSpace(err) && g.releaseReserveFor(op, before) {
		err = g.timed(op, f)
	}
	return err
}

func (g *Guarded) timed(op string, f func() error) error {
	start := time.Now()
	id, first := g.watch.begin(op, start)
	if first {
		g.armHang(g.shortestHang())
	}
	defer func() {
		now := time.Now()
		g.watch.end(id, now, op != OpRead)
		if g.cfg.Observe != nil {
			g.cfg.Observe(op, now.Sub(start))
		}
	}()
	return f()
}
