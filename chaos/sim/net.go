package sim

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// NetOptions are the properties of a simulated network that hold for every link unless a fault says otherwise.
type NetOptions struct {
	Latency time.Duration // one way, at least
	Jitter  time.Duration // added to Latency, drawn evenly from [0, Jitter)
	// bytes of one direction of a connection that may be on the way or unread; more blocks the writer
	Window int

	// DeadAfter is how long both directions of a path may be interrupted before the connections over it die with
	// ETIMEDOUT: TCP_USER_TIMEOUT and keepalive in one. Each end draws its own moment from [DeadAfter, 1.25 ×
	// DeadAfter).
	DeadAfter time.Duration
}

// DefaultNetOptions is a local network: a round trip of 0.6 to 0.8 ms.
func DefaultNetOptions() NetOptions {
	return NetOptions{
		Latency: 300 * time.Microsecond, Jitter: 100 * time.Microsecond, Window: 1 << 20,
		DeadAfter: 600 * time.Millisecond,
	}
}

const (
	acceptBacklog = 128                    // dials that wait for Accept; more are dropped like SYNs
	deadProcPause = time.Millisecond       // virtual time that a call of a dead process takes before it fails
	maxRetransmit = 400 * time.Millisecond // after a heal, TCP's back-off delays what was held up by at most this
	maxSynRetry   = time.Second            // the same for a dial, whose first retry comes after a second
)

// Net is a network of ordered, reliable byte streams in virtual time, with partitions, resets and dead machines. It
// works outside of a synctest bubble as well, in real time.
//
// One lock guards everything in it: hosts, links, and each connection's buffers. It is never held while something
// waits, so a goroutine that waits for it never stops virtual time.
type Net struct {
	mu      sync.Mutex
	opt     NetOptions
	seed    uint64
	hosts   map[string]*Host
	links   map[linkKey]*link
	changed chan struct{} // closed, and made again, whenever a way opens
	ports   int           // of dialling ends
	ends    int           // of connections, so far
	digest  *digest       // of what arrives; may be nil
}

type linkKey struct{ from, to string }

// link is the way from one host to another. Its fields are guarded by Net.mu.
type link struct {
	cut   bool
	since time.Time     // when it was cut
	shut  bool          // dials over it are refused
	extra time.Duration // added to the latency of everything on it
	seq   uint64        // of the delays drawn
}

// NewNet makes a network without hosts. The seed fixes the delays: the n-th
// thing sent on a link takes the same time in every run.
func NewNet(seed uint64, opt NetOptions) *Net {
	return &Net{
		seed: seed, opt: opt,
		hosts: map[string]*Host{}, links: map[linkKey]*link{}, changed: make(chan struct{}),
	}
}

// Host is a machine: it has a name, which is the host part of its addresses, and runs at most one process at a time.
type Host struct {
	net  *Net
	name string
	up   bool // has power
	proc *Proc
}

// Host returns the machine with that name, made and powered at the first call.
func (n *Net) Host(name string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[name]
	if h == nil {
		h = &Host{net: n, name: name, up: true}
		n.hosts[name] = h
	}
	return h
}

// Boot powers the host and starts a process on it, through which that process
// listens and dials. The process before it must be dead.
func (h *Host) Boot() *Proc {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.proc != nil {
		panic(fmt.Sprintf("sim: host %s already runs a process", h.name))
	}
	h.up = true
	h.proc = &Proc{host: h, listeners: map[string]*listener{}, conns: map[*conn]struct{}{}}
	h.proc.thawed.L = &h.net.mu
	h.net.opened()
	return h.proc
}

// Proc is a process: what it opened ends with it. Its goroutines may live on
// after Kill; all that they still do with the network fails.
type Proc struct {
	host      *Host
	dead      bool
	frozen    bool
	thawed    sync.Cond
	listeners map[string]*listener
	conns     map[*conn]struct{}
}

// Kill ends the process as kill -9 does, or, with powerLoss, as a power cut of its machine does. After a kill the
// peers get a reset, after a power cut they hear nothing: their connections die after DeadAfter, or with a reset once
// the machine is up again and they send something.
func (p *Proc) Kill(powerLoss bool) {
	n := p.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.dead {
		return
	}
	p.dead, p.frozen = true, false
	p.host.proc = nil
	p.host.up = !powerLoss
	for _, addr := range slices.Sorted(maps.Keys(p.listeners)) {
		p.listeners[addr].close()
	}
	for _, c := range p.ends() {
		c.die(net.ErrClosed)
		if powerLoss {
			c.peer.armDeath()
		} else {
			c.send(segment{kind: segReset})
		}
	}
	p.thawed.Broadcast()
}

// ends returns the process's ends of connections in the order of their making:
// what is done to several of them must not depend on the order of a map.
func (p *Proc) ends() []*conn {
	return slices.SortedFunc(maps.Keys(p.conns), func(a, b *conn) int { return cmp.Compare(a.number, b.number) })
}

// gone reports whether the process was killed.
func (p *Proc) gone() bool {
	p.host.net.mu.Lock()
	defer p.host.net.mu.Unlock()
	return p.dead
}

// Freeze stops every call of the process into the network until Thaw: nothing is read, written, accepted or dialled,
// while the kernel goes on acknowledging and buffering, as with a process under SIGSTOP. Its timers go on.
func (p *Proc) Freeze() {
	p.host.net.mu.Lock()
	defer p.host.net.mu.Unlock()
	p.frozen = !p.dead
}

// Thaw ends a Freeze.
func (p *Proc) Thaw() {
	p.host.net.mu.Lock()
	defer p.host.net.mu.Unlock()
	p.frozen = false
	p.thawed.Broadcast()
}

// waitThawed blocks while the process is frozen. Called, and returns, with Net.mu held.
func (p *Proc) waitThawed() {
	for p.frozen {
		p.thawed.Wait()
	}
}

// awaitThaw blocks while the process is frozen.
func (p *Proc) awaitThaw() {
	p.host.net.mu.Lock()
	defer p.host.net.mu.Unlock()
	p.waitThawed()
}

// Cut interrupts the way from one host to another: what is sent on it waits,
// dials over it get no answer. The other direction stays as it is.
func (n *Net) Cut(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.link(from, to)
	if l.cut {
		return false
	}
	l.cut, l.since = true, time.Now()
	n.eachConn(from, to, (*conn).armDeath)
	return true
}

// IsCut reports whether the way from one host to another is interrupted.
func (n *Net) IsCut(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link(from, to).cut
}

// Heal ends a Cut. What was held up arrives after the latency and a part of
// the time that the cut took, as TCP's retransmission would have it.
func (n *Net) Heal(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.link(from, to)
	if !l.cut {
		return
	}
	l.cut = false
	wait := n.draw(from, to, l, min(time.Since(l.since), maxRetransmit))
	n.eachConn(from, to, func(c *conn) {
		if c.broken() == "" {
			c.disarmDeath()
		}
		if c.proc.host.name == to {
			c.in.retransmit(c, time.Now().Add(n.delay(from, to)+wait))
		}
	})
	n.opened()
}

// Reject resets what is open between two hosts, and refuses what the first dials from then on, as a firewall does
// that was told so: nothing of it says that a process has died.
func (n *Net) Reject(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.link(from, to)
	news := !l.shut
	l.shut = true
	n.eachConn(from, to, func(c *conn) { c.die(syscall.ECONNRESET) })
	return news
}

// Admit ends a Reject.
func (n *Net) Admit(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).shut = false
}

// HealAll ends every Cut, every Reject and every Slow.
func (n *Net) HealAll() {
	n.mu.Lock()
	var keys []linkKey
	for k, l := range n.links {
		l.extra, l.shut = 0, false
		if l.cut {
			keys = append(keys, k)
		}
	}
	n.mu.Unlock()
	slices.SortFunc(keys, func(a, b linkKey) int {
		return cmp.Or(strings.Compare(a.from, b.from), strings.Compare(a.to, b.to))
	})
	for _, k := range keys {
		n.Heal(k.from, k.to)
	}
}

// Slow adds a delay to everything that is sent from one host to another from now on. 0 ends it.
func (n *Net) Slow(from, to string, extra time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).extra = extra
}

// eachConn calls f for every living end of the connections between two hosts.
func (n *Net) eachConn(a, b string, f func(*conn)) {
	for _, name := range [2]string{a, b} {
		h := n.hosts[name]
		if h == nil || h.proc == nil {
			continue
		}
		for _, c := range h.proc.ends() {
			if other := c.peer.proc.host.name; other == a || other == b {
				f(c)
			}
		}
		if a == b {
			return
		}
	}
}

func (n *Net) link(from, to string) *link {
	k := linkKey{from, to}
	l := n.links[k]
	if l == nil {
		l = &link{}
		n.links[k] = l
	}
	return l
}

// delay draws the time that the next thing sent on that way takes.
func (n *Net) delay(from, to string) time.Duration {
	l := n.link(from, to)
	return n.opt.Latency + l.extra + n.draw(from, to, l, n.opt.Jitter)
}

// draw returns an even number from [0, limit), by seed, way and sequence.
func (n *Net) draw(from, to string, l *link, limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	l.seq++
	return time.Duration(hash(n.seed, from, to, l.seq) % uint64(limit))
}

// opened wakes the dials that wait for a way.
func (n *Net) opened() {
	close(n.changed)
	n.changed = make(chan struct{})
}
