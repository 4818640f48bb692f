// Package transport carries all traffic between nodes. It has one listener per node, a hello that binds each
// connection to a node's identity, the Raft messages with the guards that the Raft library needs, and probes.
//
// DESIGN.md explains why it has this shape.
package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/transport/monitor"
)

// MaxMessage is the largest Raft message on the wire, without the data of a snapshot. It also bounds all unfinished
// messages of one peer together. Raft's MaxAppendEntries times its largest entry must stay below it.
const MaxMessage = 128 << 20

// MaxField is the longest byte string in a Raft message, and so the largest log entry.
const MaxField = 16 << 20

// Transport is one node's end of all peer traffic.
type Transport struct {
	cfg         Config
	log         hclog.Logger
	quiet       *rateLimitedLog
	acks        *Acks
	half        *halfOpen
	connections atomic.Int64 // accepted connections
	params      timing

	monitors *monitor.Monitors
	relaying atomic.Int64 // relayed messages in progress
	calls    calls

	leaderContact atomic.Pointer[LeaderContact] // nil: none since the process started

	mu      sync.Mutex
	raft    *Raft           // the current one; replaced when it was closed
	stopped bool            // Run has ended
	running context.Context // Run's context; nil before Run, and once no job may be added
	jobs    sync.WaitGroup  // short goroutines that Run waits for
}

// timing holds the durations that follow from the election timeouts.
type timing struct {
	rpc          time.Duration // one small RPC, or dialling including the hello
	hello        time.Duration // an accepted connection's handshake and hello
	stall        time.Duration // silence in the middle of a message
	storeTimeout time.Duration // the longest store operation during which heartbeats are answered
}

// maxStall is how long a connection may make no progress in the middle of a message if its peer is known to be alive.
const maxStall = 10 * time.Second

// maxProxiedStore bounds the store operation during which heartbeats are answered, in timeout-max. A node whose disk
// hangs cannot vote, so its acknowledgements keep no other leader from being elected. But writes that wait for such
// disks get a definite answer only when the leader steps down.
const maxProxiedStore = 20

// minFailureDelay is how long a failing RPC takes at least: the library retries some immediately and without end.
const minFailureDelay = time.Millisecond

func timingOf(timeoutMin, timeoutMax time.Duration) timing {
	return timing{
		rpc:          2 * timeoutMin,
		hello:        max(2*timeoutMax, time.Second),
		stall:        max(2*timeoutMax, time.Second),
		storeTimeout: maxProxiedStore * timeoutMax,
	}
}

// New checks the configuration and creates a transport. It starts nothing.
func New(cfg Config) (*Transport, error) {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("transport: no "+what))
		}
	}
	need(cfg.Listener != nil, "listener")
	need(cfg.Advertise != "", "advertised address")
	need(cfg.Membership != nil, "membership")
	need(cfg.TimeoutMin > 0 && cfg.TimeoutMax >= cfg.TimeoutMin, "valid election timeouts")
	need(cfg.Elections != nil && cfg.Replication != nil && cfg.Claims != nil && cfg.Events != nil, "callbacks")
	need(cfg.Dial != nil && cfg.Logger != nil, "dialer and logger")
	need(cfg.TLS == nil || cfg.ClusterName != "", "cluster name, which certificates need")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	log := cfg.Logger.Named("transport")
	t := &Transport{
		cfg:    cfg,
		log:    log,
		quiet:  newLimitedLog(log),
		acks:   newAcks(),
		half:   newHalfOpen(maxHalfOpen, maxHalfOpenAddress),
		params: timingOf(cfg.TimeoutMin, cfg.TimeoutMax),
	}
	t.monitors = monitor.New(monitor.Config{
		Host: monitorHost{t}, Members: cfg.Membership, Claims: cfg.Claims,
		CrashSocketPort: cfg.CrashSocketPort, TimeoutMin: cfg.TimeoutMin, TimeoutMax: cfg.TimeoutMax,
		RPCTimeout: t.params.rpc, HelloTimeout: t.params.hello, Logger: log,
	})
	return t, nil
}

// Raft returns the transport for a raft.Raft, and a new one for the next when that has closed it.
func (t *Transport) Raft() *Raft {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.raft == nil || (t.raft.ctx.Err() != nil && !t.stopped) {
		t.raft = newRaft(t)
		if t.stopped {
			t.raft.shut()
		}
	}
	return t.raft
}

// Acks returns the record of acknowledged AppendEntries.
func (t *Transport) Acks() *Acks { return t.acks }

// ResetPeers closes the connections with all peers, each after its message in progress, so that the next message
// repeats the hello. It must be called after this node's identity has changed.
func (t *Transport) ResetPeers() {
	for _, p := range t.Raft().allPeers() {
		p.reset()
	}
}

// admit decides whether a peer is admitted, from what is known now.
func (t *Transport) admit(peer cluster.Peer) cluster.Admission {
	return cluster.Admit(t.cfg.Membership.LocalPeer(), peer, t.cfg.Membership.Record(peer.NodeID))
}

// adopt adopts the peer's cluster ID, unless this node has one.
func (t *Transport) adopt(from cluster.Peer) error {
	if t.cfg.Membership.LocalPeer().ClusterID != "" {
		return nil
	}
	if err := t.cfg.Membership.Adopt(from); err != nil {
		return fmt.Errorf("adopt cluster ID %s of node %s: %w", from.ClusterID, from.NodeID, err)
	}
	t.log.Info("adopted cluster ID",
		"cluster_id", from.ClusterID, "generation", from.Generation.Number, "from", from.NodeID)
	t.ResetPeers()
	// The others see that the hellos of their monitor connections are out of date, and say hello again: a leader
	// transfers nothing to a node without its cluster ID.
	t.monitors.Announce()
	return nil
}

// spawn runs f in a goroutine that Run waits for; f must end with its ctx. It returns false if Run does not run.
func (t *Transport) spawn(f func(context.Context)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == nil || t.running.Err() != nil {
		return false
	}
	ctx := t.running
	t.jobs.Go(func() { f(ctx) })
	return true
}

// identityChanged reports whether this node's identity has changed since the hello x.
func (t *Transport) identityChanged(x completedHello) bool {
	return t.cfg.Membership.LocalPeer().Identity != x.sentIdentity
}

// recordedSince reports whether a peer without a cluster ID may adopt this node's now, and the hello x has not told it:
// this node has recorded the peer's data directory since. The peer may wait for the ID before it starts Raft.
func (t *Transport) recordedSince(x completedHello) bool {
	return x.sentIdentity.ClusterID != "" && x.peer.ClusterID == "" && !x.mine.MayAdoptClusterID &&
		t.admit(x.peer).MayAdoptClusterID
}

func (t *Transport) reject(kind, reason string) { t.cfg.Events.Rejected(kind, reason) }

// sleep waits for d, or until done is closed.
func sleep(d time.Duration, done <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}

// rateLimitedLog logs what unauthenticated peers can cause: each kind at most once per logInterval, with the number of
// dropped messages. Kinds come from a small fixed set. Safe for concurrent use.
type rateLimitedLog struct {
	log hclog.Logger

	mu    sync.Mutex
	kinds map[string]*logKind
}

type logKind struct {
	last    time.Time
	dropped int
}

const logInterval = 10 * time.Second

func newLimitedLog(log hclog.Logger) *rateLimitedLog {
	return &rateLimitedLog{log: log, kinds: make(map[string]*logKind)}
}

func (l *rateLimitedLog) warn(kind, msg string, args ...any) { l.logAt(hclog.Warn, kind, msg, args...) }

func (l *rateLimitedLog) logAt(level hclog.Level, kind, msg string, args ...any) {
	dropped, ok := l.due(kind, time.Now())
	if !ok {
		return
	}
	if dropped > 0 {
		args = append(args, "not_logged", dropped)
	}
	l.log.Log(level, msg, args...)
}

func (l *rateLimitedLog) due(kind string, now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[kind]
	if k == nil {
		k = &logKind{}
		l.kinds[kind] = k
	}
	if !k.last.IsZero() && now.Sub(k.last) < logInterval {
		k.dropped++
		return 0, false
	}
	dropped = k.dropped
	*k = logKind{last: now}
	return dropped, true
}
