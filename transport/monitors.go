package transport

import (
	"context"
	"net"
	"sync"
	"time"

	"northstar/cluster"
)

// reconcileInterval is how often the configuration is looked at for new peers. The
// hello of one that is not monitored yet makes it happen at once.
const reconcileInterval = time.Second

// monitors holds one monitor for each peer. Safe for concurrent use.
type monitors struct {
	t *Transport

	mu       sync.Mutex
	byID     map[cluster.NodeID]*monitor
	dialled  map[cluster.NodeID]context.CancelFunc // those that this node dials
	changed  chan struct{}                         // closed at the next claim; nil while nobody waits
	update   chan struct{}                         // capacity 1: look at the configuration now
	fastPoll chan struct{}                         // capacity 1: claims matter now
}

func newMonitors(t *Transport) *monitors {
	return &monitors{
		t: t, byID: map[cluster.NodeID]*monitor{}, dialled: map[cluster.NodeID]context.CancelFunc{},
		update: make(chan struct{}, 1), fastPoll: make(chan struct{}, 1),
	}
}

// voteIn gives the peer's monitor, made at first use; nil when there are too many.
func (ms *monitors) of(id cluster.NodeID) *monitor {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.byID[id]
	if m == nil {
		if len(ms.byID) >= maxPeers && !ms.evict() {
			return nil
		}
		m = &monitor{t: ms.t, id: id, kick: make(chan struct{}, 1)}
		ms.byID[id] = m
	}
	return m
}

// evict removes a monitor that is neither connected nor dialled. mu is held.
func (ms *monitors) evict() bool {
	for id, m := range ms.byID {
		if ms.dialled[id] == nil && m.current() == nil {
			delete(ms.byID, id)
			return true
		}
	}
	return false
}

// find gives the peer's monitor, nil when there is none.
func (ms *monitors) find(id cluster.NodeID) *monitor {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.byID[id]
}

// process gives the node that a process belonged to when it was last connected
// with, "" when it is not known.
func (ms *monitors) process(bootID string) cluster.NodeID {
	for _, m := range ms.all() {
		if boot, _ := m.leaderSign(); boot == bootID {
			return m.id
		}
	}
	return ""
}

func (ms *monitors) all() []*monitor {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	all := make([]*monitor, 0, len(ms.byID))
	for _, m := range ms.byID {
		all = append(all, m)
	}
	return all
}

// notify wakes whoever waits for claims.
func (ms *monitors) notify() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.changed != nil {
		close(ms.changed)
		ms.changed = nil
	}
}

// kick makes a monitor that waits to dial again do so now: the peer has shown
// itself.
func (ms *monitors) kick(id cluster.NodeID) {
	m := ms.find(id)
	if m == nil {
		wake(ms.update)
		return
	}
	if m.current() == nil {
		wake(m.kick)
	}
}

// wake wakes whoever waits on a channel of capacity 1.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// address is where the peer is dialled, "" when it is not a server.
func (ms *monitors) address(id cluster.NodeID) string {
	s, _ := cluster.FindServer(ms.t.cfg.Servers(), id)
	return s.Address
}

// Claims are exchanged often for fastPollDuration after something has happened, but not
// in the first moment of it: a failover asks for itself what it must know, and
// whatever else is said then delays it on a busy machine.
const (
	fastPollDuration = time.Second
	fastPollAfter    = 25 * time.Millisecond
)

// run dials the peers that are this node's to dial, as the configuration names
// them, and asks them at each interval for their claims, until ctx ends; all has
// ended when it returns. One beat for all, slow while there is a leader, keeps
// an idle cluster asleep.
func (ms *monitors) run(ctx context.Context) {
	var dialling sync.WaitGroup
	defer dialling.Wait()
	var followed, hurried time.Time
	for {
		now := time.Now()
		if now.Sub(followed) >= reconcileInterval {
			ms.reconcile(ctx, &dialling)
			followed = now
		}
		beat := time.NewTimer(ms.interval(now, hurried))
		select {
		case <-beat.C:
			ms.request()
		case <-ms.fastPoll:
			if now := time.Now(); now.Sub(hurried) >= fastPollDuration {
				hurried = now
			}
		case <-ms.update:
			sleep(minFailureDelay, ctx.Done()) // so that hellos never make it spin
			followed = time.Time{}
		case <-ctx.Done():
		}
		beat.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// interval is the time until the next questions. hurried is when claims were
// last said to matter.
func (ms *monitors) interval(now, hurried time.Time) time.Duration {
	if !ms.dials() {
		return reconcileInterval
	}
	if since := now.Sub(hurried); since < fastPollAfter {
		return fastPollAfter - since
	}
	silence := ms.t.Claim().LeaderSilence
	if silence < 0 || silence >= ms.t.cfg.TimeoutMin || now.Sub(hurried) < fastPollDuration {
		return ms.t.params.probe
	}
	return ms.t.params.probeIdle
}

// dials says whether there is anybody to dial.
func (ms *monitors) dials() bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return len(ms.dialled) > 0
}

// request asks the dialled peers for their claims, but none twice before it has
// answered. That keeps the answering sides up to date as well: a question bears
// a claim.
func (ms *monitors) request() {
	for _, m := range ms.all() {
		if c := m.current(); c != nil && c.dialled {
			c.poll()
		}
	}
}

// reconcile starts and stops dialling as the configuration says.
func (ms *monitors) reconcile(ctx context.Context, dialling *sync.WaitGroup) {
	self := ms.t.cfg.Local().NodeID
	servers := ms.t.cfg.Servers()
	for _, s := range servers {
		if s.ID <= self {
			continue
		}
		m := ms.of(s.ID)
		if own := ms.begin(ctx, m); own != nil {
			dialling.Go(func() { m.dial(own) })
		}
	}
	for _, m := range ms.all() {
		if _, ok := cluster.FindServer(servers, m.id); !ok {
			ms.stopDialing(m)
		}
	}
}

// begin gives the context to dial a peer in, nil when it is dialled already.
func (ms *monitors) begin(ctx context.Context, m *monitor) context.Context {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m == nil || ms.dialled[m.id] != nil {
		return nil
	}
	own, cancel := context.WithCancel(ctx)
	ms.dialled[m.id] = cancel
	return own
}

// stopDialing ends dialling a peer that is no server any more.
func (ms *monitors) stopDialing(m *monitor) {
	ms.mu.Lock()
	cancel := ms.dialled[m.id]
	delete(ms.dialled, m.id)
	ms.mu.Unlock()
	if cancel == nil {
		return
	}
	if c := m.current(); c != nil {
		c.goodbye(errNoServer)
	}
	cancel()
}

// accept converses on an accepted probe connection until it ends. began is
// called once the peer has said something: until then it may only have wanted
// the hello.
func (ms *monitors) accept(ctx context.Context, x completedHello, conn net.Conn, began func()) error {
	m := ms.of(x.peer.NodeID)
	if m == nil {
		_ = closeNow(conn)
		return errTooMany
	}
	c := newConversation(m, conn, x)
	c.onFirstFrame = began
	_, err := m.serveConn(ctx, c)
	return err
}
