package raftnode

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// Limits that are not worth a configuration key.
const (
	// commitTimeout is how long an idle leader waits before it sends its followers the newest commit index; raft.Raft
	// takes up to twice that. Followers' stale reads and watches lag by it after the last write of a burst. It is the
	// library's default; half of it costs an idle cluster about a percent of a core.
	commitTimeout = 50 * time.Millisecond
	// MaxAppendEntries bounds one AppendEntries to so many batches.
	MaxAppendEntries = 32
	// MinTrailingLogs is far above where the library's rollback by an old snapshot was never seen in 50,000 faults.
	MinTrailingLogs = 1000
	// MinSnapshotInterval is the library's.
	MinSnapshotInterval = 5 * time.Millisecond
)

// Config is what one run of raft.Raft needs. All fields are required unless they say otherwise.
type Config struct {
	Self                   cluster.NodeID
	TimeoutMin, TimeoutMax time.Duration
	SnapshotThreshold      uint64
	SnapshotInterval       time.Duration
	TrailingLogs           uint64
	LogBytes               uint64 // a snapshot is written after so many bytes of entries, or as many as the newest has

	Log       raft.LogStore
	Stable    VoteStore
	Snapshots *Snapshots
	Transport Transport // closed by Shutdown
	FSM       *FSM
	Logger    hclog.Logger

	// FirstStart: the cluster has just been bootstrapped, and EndFirstTimeout may be called.
	FirstStart bool
	// KeepState leaves the FSM as it is, if the newest snapshot is not ahead of it.
	KeepState bool
	// ElectionBlocked reports whether a node whose log ends at lastIndex must not become candidate, until it is false.
	ElectionBlocked func(lastIndex uint64) bool
	// OnStuckTransfer is called when a transfer never ends inside raft.Raft: this instance has to be replaced.
	OnStuckTransfer func()
}

// raftConfig returns the library's configuration. Hazards behind some of these values are in docs/raft-hazards.md.
func (c *Config) raftConfig(logger hclog.Logger) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.Self)
	rc.Logger = logger
	rc.HeartbeatTimeout = c.TimeoutMin
	rc.ElectionTimeout = c.TimeoutMin
	// As long as a follower's shortest timeout: a leader without a quorum is gone when the next one is elected (0 %
	// overlap measured), and a busy disk or processor does not depose one that has its quorum.
	rc.LeaderLeaseTimeout = c.TimeoutMin
	rc.CommitTimeout = commitTimeout
	rc.MaxAppendEntries = MaxAppendEntries
	rc.BatchApplyCh = false // futures are lost at shutdown with it; the proposer batches
	rc.ShutdownOnRemove = false
	rc.TrailingLogs = c.TrailingLogs
	rc.SnapshotInterval = c.SnapshotInterval
	rc.SnapshotThreshold = c.SnapshotThreshold
	rc.PreVoteDisabled = false
	rc.NoLegacyTelemetry = true
	rc.RestoreCommittedLogs = false // skips configuration entries, and can hang
	rc.NotifyCh = nil               // it blocks the main loop; an observer's filter reports without blocking
	return rc
}

const (
	// logRepeatInterval is how long an error message of the library is not repeated.
	logRepeatInterval = 10 * time.Second
	// logRetryAfter is how long a call to a peer must fail before that is logged. Single calls fail when nodes start.
	logRetryAfter = time.Second
)

// retriedMessages are those of calls that the library repeats. Events report a peer that stays away.
var retriedMessages = []string{
	"failed to appendEntries to", "failed to heartbeat to", "failed to make requestVote RPC",
	"failed to pipeline appendEntries",
}

// libraryLogger is the Raft library's logger. The library logs each of its steps at info and repeats an error at every
// retry. Here the steps are for debugging, and a repeated error is logged every logRepeatInterval.
type libraryLogger struct {
	hclog.Logger

	mu   sync.Mutex
	seen map[string]errorTimes // by message, of which the library has a fixed set
}

// errorTimes are when an error was logged last, and since when it has been seen again and again.
type errorTimes struct{ since, latest, logged time.Time }

// next records an error, and reports whether it is logged now.
func (e *errorTimes) next(now time.Time, retried bool) bool {
	if now.Sub(e.latest) >= logRepeatInterval {
		e.since = now
	}
	e.latest = now
	if now.Sub(e.logged) < logRepeatInterval || retried && now.Sub(e.since) < logRetryAfter {
		return false
	}
	e.logged = now
	return true
}

func newLibraryLogger(l hclog.Logger) *libraryLogger {
	return &libraryLogger{Logger: l, seen: map[string]errorTimes{}}
}

// Info logs at debug level.
func (l *libraryLogger) Info(msg string, args ...any) { l.Logger.Debug(msg, args...) }

// Warn logs at debug level: the library warns about the steps of elections, and package consensus logs their results.
func (l *libraryLogger) Warn(msg string, args ...any) { l.Logger.Debug(msg, args...) }

// Error logs a warning; repetitions, and the first failures of calls that are repeated, at debug level.
func (l *libraryLogger) Error(msg string, args ...any) {
	for _, a := range args {
		if a == ErrNoopPending {
			return // this is intended, and no error
		}
	}
	l.mu.Lock()
	e := l.seen[msg]
	logged := e.next(time.Now(), slices.Contains(retriedMessages, msg))
	l.seen[msg] = e
	l.mu.Unlock()
	if logged {
		l.Logger.Warn(msg, args...)
	} else {
		l.Logger.Debug(msg, args...)
	}
}

// With keeps the levels for a logger with more fields.
func (l *libraryLogger) With(args ...any) hclog.Logger {
	return newLibraryLogger(l.Logger.With(args...))
}
