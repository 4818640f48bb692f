// Package traffic sends requests to a cluster as applications do, while faults are injected, and checks the responses.
// It has writers and readers, sessions that campaign for a role, an operator who revokes the role, and watches.
// Simulated clusters and real processes use the same traffic.
package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"northstar/chaos/check"
	"northstar/state"
)

// Cluster is the cluster under test. Its methods may be called from any goroutine and do not block.
type Cluster interface {
	Nodes() []Node                // the same nodes in the same order each time
	Leader() int                  // index of the last known leader
	Machine(name string) *Machine // a new machine that reaches every node
	Epoch() uint64                // increases when acknowledged data may be lost, as after a recovery
	Key(i int) string             // the i-th key in use
	Acknowledged()                // called when a write was acknowledged
	Violated(check.Violation)
}

// Node is a member of the cluster as clients see it. Etcd is empty if it does not serve the etcd API.
type Node struct{ ID, HTTP, Etcd string }

// KV is a node, or a whole cluster, as one attempt of an operation reaches it. An error is a *cluster.Error if the
// outcome is known.
type KV interface {
	Propose(ctx context.Context, c state.Command) (state.Result, error)
	Read(ctx context.Context, key, consistency string) (Reading, error)
}

// Reading is the result of a read. At is the revision of the state that was read; 0: unknown.
type Reading struct {
	Value        string
	Revision, At uint64
}

// Attempt makes one attempt of an operation on the node with that index.
type Attempt func(node int, f func(ctx context.Context, n KV) error) error

// Range is a random duration from [Min, Max). Short durations are more likely.
type Range struct{ Min, Max time.Duration }

// Between returns a Range.
func Between(minimum, maximum time.Duration) Range { return Range{minimum, maximum} }

// Draw draws a duration.
func (r Range) Draw(random *rand.Rand) time.Duration {
	f := random.Float64()
	return r.Min + time.Duration(f*f*float64(r.Max-r.Min))
}

// Config is the kind and number of clients, and their behaviour.
type Config struct {
	Seed  uint64
	Start time.Time // all times in the histories are relative to it
	// Rand returns random numbers that depend only on the seed and these values.
	Rand func(a, b string, n uint64) *rand.Rand

	Local       Attempt // used by clients without a machine of their own
	Clients     int     // number of clients that use Local
	Readers     int     // number of clients that only read, from any node
	HTTPClients int     // number of clients over HTTP
	Campaigners int     // number of clients with sessions that campaign for one role over HTTP
	Watchers    int     // number of watchers of all changes over HTTP
	Operators   int     // number of operators whose admin calls are compared with the audit log
	Attachers   int     // number of clients that attach sessions to connections

	EtcdClients    int // number of clients of the etcd API that read and write several keys together
	EtcdHolders    int // number of clients of the etcd API that hold a lock with a lease
	EtcdContenders int // number of clients that use Election and Mutex of etcd's clientv3, by their requests
	EtcdCounters   int // number of clients that use STM of etcd's clientv3, by its requests
	EtcdWatchers   int // number of watchers of all changes over the etcd API; the other kinds need one

	AvailabilityWriters bool  // one at each node; their acknowledgements are WriteAcks
	EvictInterval       Range // between two revocations of the role; the zero Range: none

	Keys         int
	ThinkTime    Range         // between two operations of a client
	ReadPause    Range         // the same of the Readers; the zero Range: ThinkTime
	AnyNodeRatio float64       // share of operations on any node; the others go to the leader
	Timeout      time.Duration // of one attempt of an operation
	MinTTL       time.Duration // of sessions, which have up to 1.5 s more
	CampaignWait time.Duration // how long a candidate waits for the role; 0: up to 1.2 s
}

// Traffic is the clients of one cluster and their observations.
type Traffic struct {
	cfg     Config
	cluster Cluster
	ctx     context.Context

	History   check.History
	Revisions *check.Revisions
	Roles     RoleHistory
	etcd      etcdHistory

	quit      chan struct{} // closed when no operation may begin anymore
	once      sync.Once
	running   sync.WaitGroup
	machines  []*Machine
	watchers  []*Watcher
	operators []*operator

	mu        sync.Mutex
	lastBegin time.Time     // latest start of an acknowledged write
	lastAck   time.Time     // time of the latest acknowledgement; before the first one the end of StartupTime
	gap       time.Duration // longest time between two acknowledgements
	gapEnd    time.Time
	writeAcks []time.Duration
	attached  []check.AttachedSession
}

// StartupTime is how long a new cluster may take to elect a leader. A gap before the first acknowledgement counts from
// its end.
const StartupTime = 2 * time.Second

// New returns traffic without starting it. ctx cancels requests in flight.
func New(ctx context.Context, cfg Config, cluster Cluster) *Traffic {
	return &Traffic{
		cfg: cfg, cluster: cluster, ctx: ctx, quit: make(chan struct{}), etcd: etcdHistory{began: make(chan struct{})},
		Revisions: check.NewRevisions(cluster.Violated), lastAck: cfg.Start.Add(StartupTime),
	}
}

// Start starts all clients except the watchers. Clients of the etcd API come first: a revision before their first call
// would count as compacted.
func (t *Traffic) Start() {
	cfg := t.cfg
	start := func(run func()) {
		t.running.Go(func() {
			if cfg.EtcdClients == 0 || t.etcdAnswers() {
				run()
			}
		})
	}
	for i := range cfg.Clients + cfg.Readers + cfg.HTTPClients {
		attempt := cfg.Local
		if i >= cfg.Clients+cfg.Readers {
			attempt = t.overHTTP(t.newMachine())
		}
		c := t.newClient(i, attempt)
		c.readOnly = i >= cfg.Clients && i < cfg.Clients+cfg.Readers
		start(c.run)
	}
	if cfg.AvailabilityWriters {
		t.startAvailabilityWriters()
	}
	for i := range cfg.Campaigners {
		c := &campaigner{user: t.newUser(1000 + uint64(i)), id: i}
		start(c.run)
	}
	if cfg.EvictInterval != (Range{}) {
		e := roleEvictor{t.newUser(2000)}
		start(e.run)
	}
	t.startOperators()
	t.startEtcd()
	for i := range cfg.Attachers {
		a := &attacher{t.newUser(2100 + uint64(i))}
		start(a.run)
	}
}

// AddClient starts one more client with the given number. Stop ends a pause between its operations.
func (t *Traffic) AddClient(id int, attempt Attempt) { t.running.Go(t.newClient(id, attempt).run) }

// Go runs f until Stop. f must return when Pause returns false.
func (t *Traffic) Go(f func()) { t.running.Go(f) }

func (t *Traffic) newMachine() *Machine {
	m := t.cluster.Machine(fmt.Sprintf("c%d", len(t.machines)+1))
	t.machines = append(t.machines, m)
	return m
}

func (t *Traffic) violated(invariant, format string, args ...any) {
	t.cluster.Violated(check.Violationf(invariant, format, args...))
}

// Stop stops the clients, but no watcher, and waits for their operations.
func (t *Traffic) Stop() {
	t.once.Do(func() {
		close(t.quit)
		t.running.Wait()
		for _, m := range t.machines {
			m.Close()
		}
	})
	t.running.Wait()
}

// Pause waits. It returns false when the clients must stop.
func (t *Traffic) Pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-t.quit:
		return false
	case <-timer.C:
		return true
	}
}

func (t *Traffic) now() time.Duration { return time.Since(t.cfg.Start) }

// AcknowledgedSince reports whether a write that began at or after a time was acknowledged. It returns true if no
// client writes.
func (t *Traffic) AcknowledgedSince(at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cfg.Clients == 0 || !t.lastBegin.Before(at)
}

func (t *Traffic) acknowledged(began time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if began.After(t.lastBegin) {
		t.lastBegin = began
	}
	t.measureGap()
	t.lastAck = time.Now()
	t.cluster.Acknowledged()
}

// measureGap updates the longest gap with the time since the last acknowledgement. The caller holds the lock.
func (t *Traffic) measureGap() {
	if gap := time.Since(t.lastAck); gap > t.gap {
		t.gap, t.gapEnd = gap, time.Now()
	}
}

// CheckGap reports a violation if no write was acknowledged for longer than limit.
func (t *Traffic) CheckGap(limit time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.measureGap()
	if limit > 0 && t.gap > limit {
		t.violated(check.Liveness, "no write was acknowledged for %v, until %v", t.gap, t.gapEnd.Sub(t.cfg.Start))
	}
}

// ExcuseGap excludes a period that ends now from the gap since the last acknowledgement.
func (t *Traffic) ExcuseGap(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.lastAck) > d {
		t.lastAck = t.lastAck.Add(d)
	}
}

const availabilityPause = 20 * time.Millisecond

// startAvailabilityWriters starts a writer at each node, which sends one write after the other to that node.
func (t *Traffic) startAvailabilityWriters() {
	for _, node := range t.cluster.Nodes() {
		kv := httpNode{t.newMachine(), node, t}
		t.running.Go(func() {
			for n := 0; t.Pause(availabilityPause); n++ {
				ctx, cancel := context.WithTimeout(t.ctx, t.cfg.Timeout)
				res, err := kv.Propose(ctx, state.Command{
					Kind: state.KindPut, Put: &state.Put{Key: "probe-" + node.ID, Value: fmt.Append(nil, n)},
				})
				cancel()
				if err == nil && res.Err == nil {
					t.mu.Lock()
					t.writeAcks = append(t.writeAcks, t.now())
					t.mu.Unlock()
				}
			}
		})
	}
}

// WriteAcks returns when the writes of the availability writers were acknowledged.
func (t *Traffic) WriteAcks() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.writeAcks)
}
