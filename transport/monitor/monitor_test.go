package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"northstar/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testMin = 150 * time.Millisecond

// host is a node of a network of pipes.
type host struct {
	id      cluster.NodeID
	nodes   map[cluster.NodeID]*host // by address, which is the ID
	servers *[]cluster.Server        // shared by all
	ms      *Monitors
	ctx     context.Context
	jobs    sync.WaitGroup

	mu      sync.Mutex
	outside map[cluster.NodeID]bool // no members
	heard   map[cluster.NodeID]int  // how many claims counted

	cut   *atomic.Bool // of the network: frames are lost, and no connection completes
	opens atomic.Int64 // attempts
	lost  atomic.Int64 // connections of a dead process, perhaps
}

func (h *host) Claim() cluster.Claim                    { return cluster.Claim{} }
func (h *host) OnConnectionLost(cluster.ConnectionLoss) { h.lost.Add(1) }
func (h *host) Servers() []cluster.Server               { return *h.servers }

func (h *host) LocalPeer() cluster.Peer {
	return cluster.Peer{Identity: cluster.Identity{NodeID: h.id, ClusterID: "c1"}, BootID: "boot-" + string(h.id)}
}

func (h *host) Open(ctx context.Context, addr string, _ cluster.NodeID) (net.Conn, cluster.Peer, error) {
	other := h.nodes[cluster.NodeID(addr)]
	h.opens.Add(1)
	if h.cut.Load() {
		<-ctx.Done()
		return nil, cluster.Peer{}, ctx.Err()
	}
	if other == nil {
		return nil, cluster.Peer{}, errors.New("nobody there")
	}
	here, there := net.Pipe()
	if !other.Spawn(func(ctx context.Context) { _ = other.ms.Accept(ctx, h.LocalPeer(), there, func() {}) }) {
		return nil, cluster.Peer{}, errors.New("it has stopped")
	}
	return here, other.LocalPeer(), nil
}

func (h *host) Dial(context.Context, string) (net.Conn, error) {
	return nil, errors.New("no crash socket")
}

func (h *host) Admit(p cluster.Peer) (member bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.outside[p.NodeID], nil
}
func (h *host) Connected(cluster.Peer, uint64)       {}
func (h *host) LastMessage(cluster.NodeID) time.Time { return time.Time{} }

func (h *host) OnHeard(from cluster.NodeID, _ *cluster.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard[from]++
}

// WaitMainLoop takes 20 ms.
func (h *host) WaitMainLoop(ctx context.Context) error {
	sleep(20*time.Millisecond, ctx.Done())
	return ctx.Err()
}

func (h *host) Spawn(f func(context.Context)) bool {
	if h.ctx.Err() != nil {
		return false
	}
	h.jobs.Go(func() { f(h.ctx) })
	return true
}

func (h *host) ApplyFaults(cluster.NodeID, *cluster.Claim, <-chan struct{}) bool {
	return !h.cut.Load()
}

// newHosts makes nodes that are servers of one configuration. Nothing runs.
func newHosts(ctx context.Context, n int) (hosts []*host) {
	nodes := map[cluster.NodeID]*host{}
	var servers []cluster.Server
	cut := new(atomic.Bool)
	for i := range n {
		h := &host{cut: cut, id: cluster.NodeID(fmt.Sprintf("n%d", i+1)), nodes: nodes, servers: &servers, ctx: ctx}
		h.outside, h.heard = map[cluster.NodeID]bool{}, map[cluster.NodeID]int{}
		h.ms = New(Config{
			Host: h, Members: h, Claims: h,
			TimeoutMin: testMin, TimeoutMax: 2 * testMin, RPCTimeout: 2 * testMin, HelloTimeout: time.Second,
			Logger: hclog.NewNullLogger(),
		})
		nodes[h.id] = h
		servers = append(servers, cluster.Server{ID: h.id, Address: string(h.id)})
		hosts = append(hosts, h)
	}
	return hosts
}

// inBubble runs f with n connected nodes in virtual time.
func inBubble(t *testing.T, n int, f func(t *testing.T, hosts []*host)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hosts := newHosts(ctx, n)
		var running sync.WaitGroup
		for _, h := range hosts {
			running.Go(func() { h.ms.Run(ctx) })
		}
		time.Sleep(time.Second)
		f(t, hosts)
		cancel()
		running.Wait()
		for _, h := range hosts {
			h.jobs.Wait()
		}
	})
}

// After each cut, a new connection completes within an interval, beside one whose packets were lost. No process is
// taken for dead. The attempts become rarer: a stopped process gets all of them when it continues.
func TestRedial(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, hosts []*host) {
		dials, other := hosts[0], hosts[1]
		heard := func() int {
			dials.mu.Lock()
			defer dials.mu.Unlock()
			return dials.heard[other.id]
		}
		for range 3 {
			old := dials.ms.of(other.id).current()
			dials.cut.Store(true)
			time.Sleep(1200 * time.Millisecond) // polls come every 500 ms, and the second finds the first unanswered
			before := heard()
			dials.cut.Store(false)
			time.Sleep(3 * redialInterval)
			now := dials.ms.of(other.id).current()
			if now == old || now == nil || !now.dialled || heard() == before {
				t.Errorf("the connection was not replaced: %v, %d claims heard", now != old, heard()-before)
			}
			if !isClosed(old.gone) {
				t.Error("the old connection is open")
			}
			began := dials.opens.Load()
			time.Sleep(5 * time.Second)
			if n := dials.opens.Load(); n != began {
				t.Errorf("%d more attempts", n-began)
			}
		}
		if n := dials.lost.Load() + other.lost.Load(); n != 0 {
			t.Errorf("%d dead processes", n)
		}
		began := dials.opens.Load()
		dials.cut.Store(true)
		time.Sleep(time.Minute)
		if n := dials.opens.Load() - began; n > 60*5 {
			t.Errorf("%d attempts in a minute", n)
		}
	})
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Of each two nodes the one with the lower ID dials.
func TestTheLowerIDDials(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, hosts []*host) {
		for i, h := range hosts {
			for j, other := range hosts {
				if h == other {
					continue
				}
				c := h.ms.of(other.id).current()
				if c == nil || c.dialled != (i < j) {
					t.Errorf("%s and %s: %+v", h.id, other.id, c)
				}
			}
		}
	})
}

// Up to three slow exchanges are attributed to a busy peer, four to the network.
func TestTheNetworkIsTheLeastOfAFew(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	var m monitor
	for i, step := range []struct{ exchange, want time.Duration }{
		{60 * ms, 60 * ms},
		{ms, ms},
		{90 * ms, ms},
		{250 * ms, ms},
		{90 * ms, ms},
		{40 * ms, 40 * ms},
		{2 * ms, 2 * ms},
	} {
		if m.recordExchange(step.exchange); m.networkRTT() != step.want {
			t.Errorf("%d: %v after one of %v, want %v", i, m.networkRTT(), step.exchange, step.want)
		}
	}
	if len(m.exchanges) != maxExchanges {
		t.Errorf("%d are kept", len(m.exchanges))
	}
}

// A request for a fresh claim includes Raft's time. So it does not change the network's round-trip time at either end.
func TestFreshAnswersAreNoMeasure(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, hosts []*host) {
		for i, h := range hosts {
			m := h.ms.find(hosts[1-i].id)
			unchanged := false
			for range 5 { // they take less time than the interval of routine exchanges
				m.setNetworkRTT(time.Hour)
				seen, ok := m.requestFresh(t.Context(), time.Second)
				if !ok || seen.LastExchange != 20*time.Millisecond {
					t.Errorf("%s: answered %v, after %v", h.id, ok, seen.LastExchange)
				}
				unchanged = unchanged || seen.NetworkRTT == time.Hour
			}
			if !unchanged {
				t.Errorf("%s: what fresh answers took counts for the network", h.id)
			}
			time.Sleep(2 * time.Second) // routine exchanges, which take no time here
			if i == 0 && m.networkRTT() != 0 {
				t.Errorf("routine exchanges have measured %v", m.networkRTT())
			}
		}
	})
}

// A peer answers for its process although its Raft is busy, and only while it is connected.
func TestAnswer(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, hosts []*host) {
		for i, h := range hosts {
			other, began := hosts[1-i], time.Now()
			if got := h.ms.Answer(t.Context(), other.id); got != "boot-"+string(other.id) || time.Since(began) != 0 {
				t.Errorf("%s: %q answers after %v", h.id, got, time.Since(began))
			}
			if got := h.ms.Answer(t.Context(), "n9"); got != "" {
				t.Errorf("%s: %q answers for a node that is not there", h.id, got)
			}
			h.cut.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if got := h.ms.Answer(ctx, other.id); got != "" {
				t.Errorf("%s: %q answers although it is cut off", h.id, got)
			}
			cancel()
			h.cut.Store(false)
		}
	})
}

// A request whose caller has stopped waiting does not count against the limit.
func TestGivenUpRequestsAreForgotten(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, hosts []*host) {
		m := hosts[0].ms.find("n2")
		for range 2 * maxRequests {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, ok := m.requestFresh(ctx, time.Millisecond); ok {
				t.Error("answered before Raft's main loop was free")
			}
			cancel()
		}
		time.Sleep(time.Second)
		if _, ok := m.requestFresh(t.Context(), time.Second); !ok {
			t.Error("no request is answered any more")
		}
		if n := len(m.current().requests); n != 0 {
			t.Errorf("%d requests are kept", n)
		}
	})
}

// The claims of a node that is not a member count for nothing, from the moment when this node learns that. They count
// again once it is one.
func TestClaimsOfOutsiders(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, hosts []*host) {
		for i, h := range hosts {
			other, peer := hosts[(i+1)%3].id, h.ms.find(hosts[(i+1)%3].id)
			for _, outside := range []bool{true, false} {
				h.mu.Lock()
				h.outside[other], h.heard[other] = outside, 0
				h.mu.Unlock()
				time.Sleep(2 * time.Second) // routine exchanges
				_, answered := peer.requestFresh(t.Context(), time.Second)
				_, counts := h.ms.Claims()[other]
				h.mu.Lock()
				if heard := h.heard[other] > 0; heard == outside || answered == outside || counts == outside {
					t.Errorf("%s: %s is no member: %v; heard %v, answered %v, counts %v", h.id, other, outside, heard,
						answered, counts)
				}
				h.mu.Unlock()
			}
		}
	})
}

func TestFrames(t *testing.T) {
	t.Parallel()
	want := frame{Kind: frameAsk, Seq: 9, Fresh: true, Wait: time.Millisecond, RTT: 3, Claim: cluster.Claim{
		NodeID: "n1", Term: 4, Role: cluster.Leader, LeaderSilence: -1, Disk: cluster.DiskState{Stalled: true},
	}}
	b, err := want.encode()
	if err != nil {
		t.Fatal(err)
	}
	here, there := net.Pipe()
	go func() {
		_, _ = there.Write(append(b, b[:7]...))
		_ = there.Close()
	}()
	r := newFrameReader(here)
	if got, err := r.next(); err != nil || got != want {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, err := r.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("of half a frame: %v", err)
	}
}
