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
	cfg    Config
	log    hclog.Logger
	quiet  *rateLimitedLog
	acks   *Acks
	half   *halfOpen
	params timing

	monitors *monitor.Monitors
	relaying atomic.Int64 // relayed messages in progress

	leaderContact atomic.Pointer[leaderContact] // nil: none since the process started

	mu      sync.Mutex
	raft    *Raft // the current one; replaced when it was closed
	stopped bool

	life    sync.Mutex      // guards adding to jobs once Run ends
	running context.Context // Run's context; nil before and after Run
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

// minFailureDelay is the minimum duration of a failing RPC: the library retries some failures immediately and without
// end.
const minFailureDelay = time.Millisecond

func timingOf(timeoutMin, timeoutMax time.Duration) timing {
	return timing{
		rpc:          2 * timeoutMin,
		hello:        max(2*timeoutMax, time.Second),
		stall:        max(2*timeoutMax, time.Second),
		storeTimeout: timeoutMax,
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
	need(cfg.TLS == nil || cfg.ClusterName != "", "cluster name, which certificates need")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cfg.fillDefaults()
	log := cfg.Logger.Named("transport")
	t := &Transport{
		cfg:    cfg,
		log:    log,
		quiet:  newLimitedLog(log),
		acks:   newAcks(),
		half:   newHalfOpen(maxHalfOpen),
		params: timingOf(cfg.TimeoutMin, cfg.TimeoutMax),
	}
	t.monitors = t.newMonitors()
	return t, nil
}

// Raft returns the transport for a raft.Raft, which closes it when it shuts down. The next call then returns a new
// one, for the next raft.Raft.
func (t *Transport) Raft() *Raft {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.raft == nil || (t.raft.isClosed() && !t.stopped) {
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
	return nil
}

// spawn runs f in a goroutine that Run waits for; f must end with its ctx. It returns false if Run does not run.
func (t *Transport) spawn(f func(context.Context)) bool {
	t.life.Lock()
	defer t.life.Unlock()
	if t.running == nil || t.running.Err() != nil {
		return false
	}
	ctx := t.running
	t.jobs.Go(func() { f(ctx) })
	return true
}

// openJobs lets spawn start goroutines until ctx ends.
func (t *Transport) openJobs(ctx context.Context) {
	t.life.Lock()
	defer t.life.Unlock()
	t.running = ctx
}

// awaitJobs waits for the spawned goroutines. The context given to openJobs must have ended.
func (t *Transport) awaitJobs() {
	t.life.Lock()
	t.running = nil // from now on spawn adds no job
	t.life.Unlock()
	t.jobs.Wait()
}

// identityChanged reports whether this node's identity has changed since the hello x.
func (t *Transport) identityChanged(x completedHello) bool {
	return t.cfg.Membership.LocalPeer().Identity != x.sentIdentity
}

func (t *Transport) reject(kind, reason string) { t.cfg.Rejected(kind, reason) }

// sleep waits for d, or until done is closed.
func sleep(d time.Duration, done <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}
