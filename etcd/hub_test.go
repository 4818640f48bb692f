package etcd

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// testHub returns a hub that the test advances, and its only stream.
func testHub(t *testing.T) (*fakeNode, *hub, *watchStream) {
	t.Helper()
	n := newFakeNode(t)
	s := New(testDeps(n))
	t.Cleanup(s.grpc.Stop)
	return n, s.hub, newWatchStream(t.Context(), s, nil, &n.watches)
}

func (ws *watchStream) watchKey(n *fakeNode, key string) *watch {
	w := &watch{key: key, stream: ws, next: n.View().Revision() + 1}
	ws.hub.add(w)
	return w
}

// TestHub_MarksEachChange: no change is passed over, also where one batch of the history ends.
func TestHub_MarksEachChange(t *testing.T) {
	t.Parallel()
	n, h, ws := testHub(t)
	watches := make([]*watch, 2*hubBatch+3)
	for i := range watches {
		watches[i] = ws.watchKey(n, fmt.Sprintf("k%04d", i))
	}
	first := n.View().Revision() + 1
	for i := range watches {
		n.apply(t, put(fmt.Sprintf("k%04d", i), "v"))
	}
	h.advance()
	for i, w := range watches {
		if !w.marked || w.next != first+uint64(i) {
			t.Errorf("watch %d: marked %v, next revision %d instead of %d", i, w.marked, w.next, first+uint64(i))
		}
	}
	if marked, position := h.take(ws); len(marked) != len(watches) || position != n.View().Revision() {
		t.Errorf("%d watches up to revision %d", len(marked), position)
	}
}

// TestHub_SettleMarksAgain: a change that comes while a watch is marked is not looked for. The watch is marked again
// when it has sent what was there before.
func TestHub_SettleMarksAgain(t *testing.T) {
	t.Parallel()
	n, h, ws := testHub(t)
	w := ws.watchKey(n, "a")
	n.apply(t, put("a", "1"))
	h.advance()
	h.take(ws)
	sent := n.View().Revision()
	n.apply(t, put("a", "2"))
	h.advance()
	if marked, _ := h.take(ws); len(marked) != 0 {
		t.Error("a marked watch is marked twice")
	}
	w.next = sent + 1
	h.finishSend(w, sent)
	if marked, _ := h.take(ws); len(marked) != 1 {
		t.Error("the change during the sending is lost")
	}
	w.next = n.View().Revision() + 1
	h.finishSend(w, n.View().Revision())
	if marked, _ := h.take(ws); len(marked) != 0 || w.marked {
		t.Error("a watch with nothing to send is marked")
	}
}

// TestWatchers: watches of the etcd API count, and their lag until the client has taken what they send.
func TestWatchers(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		want := func(wantOpen int, wantLag uint64) {
			t.Helper()
			synctest.Wait()
			if open, lag := p.server.Watchers(); open != wantOpen || lag != wantLag {
				t.Errorf("%d watches, %d behind; want %d, %d", open, lag, wantOpen, wantLag)
			}
		}
		want(0, 0)
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a")})
		<-p.out
		want(1, 0)
		n.apply(t, put("a", "1"), put("a", "2"), put("a", "3"))
		want(1, 3)
		for events := 0; events < 3; {
			events += len((<-p.out).Events)
		}
		want(1, 0)
		p.in <- cancelWatch(0)
		<-p.out
		want(0, 0)
	})
}

// looksAt returns the number of watches that a change of a key looks at. It checks the hub's lists on the way.
func (h *hub) looksAt(t *testing.T, key string) (looked int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	look := func(at *places) {
		for i, w := range at.clean {
			if w.marked || w.later || w.at != at || w.index != i {
				t.Fatalf("watch %d of %d is not clean, or elsewhere: %+v", i, len(at.clean), w)
			}
		}
		looked += len(at.clean)
	}
	if at := h.keys[key]; at != nil {
		look(at)
	}
	h.ranges.root.visit(key, func(s *span) { look(&s.places) })
	return looked
}

// TestHub_MarkedWatchesCostNothing: no change looks at the watches whose clients do not read.
func TestHub_MarkedWatchesCostNothing(t *testing.T) {
	t.Parallel()
	n, h, ws := testHub(t)
	const slow = 1000
	for range slow {
		w := &watch{key: "\x00", end: "\x00", stream: ws, next: n.View().Revision() + 1}
		h.add(w)
	}
	if looked := h.looksAt(t, "a"); looked != slow {
		t.Errorf("the first change looks at %d watches", looked)
	}
	n.apply(t, put("a", "1"))
	h.advance()
	if looked, reach := h.looksAt(t, "a"), h.ranges.root.reach; looked != 0 || reach != "" {
		t.Errorf("the second change looks at %d watches, in ranges up to %q", looked, reach)
	}
	marked, position := h.take(ws)
	for i, w := range marked {
		switch i % 3 {
		case 0:
			h.finishSend(w, position)
		case 1:
			h.remark(w)
		case 2:
			h.remove(w)
		}
	}
	if looked := h.looksAt(t, "a"); looked != slow/3+1 || h.watching() != 2*slow/3+1 {
		t.Errorf("a change looks at %d of %d watches", looked, h.watching())
	}
	for _, w := range marked {
		h.remove(w)
	}
	if h.watching() != 0 || h.ranges.root != nil {
		t.Errorf("%d watches are left", h.watching())
	}
}

// TestHub_OtherWatchesCostNothing: a change looks at no watch of other keys, and at none that begins later.
func TestHub_OtherWatchesCostNothing(t *testing.T) {
	t.Parallel()
	n, h, ws := testHub(t)
	const others = 1000
	next := n.View().Revision() + 1
	for i := range others {
		h.add(&watch{key: fmt.Sprintf("a%d", i), end: "c", stream: ws, next: next})
		h.add(&watch{key: fmt.Sprintf("x%d", i), stream: ws, next: next})
		h.add(&watch{key: "\x00", end: fmt.Sprintf("b%d", i), stream: ws, next: next})
		h.add(&watch{key: "\x00", end: "\x00", stream: ws, start: 1 << 40, next: 1<<40 + uint64(i)})
	}
	own := ws.watchKey(n, "m")
	if looked := h.looksAt(t, "m"); looked != 1 {
		t.Errorf("a change looks at %d watches", looked)
	}
	n.apply(t, put("m", "1"))
	h.advance()
	if marked, _ := h.take(ws); len(marked) != 1 || marked[0] != own {
		t.Errorf("%d watches are marked", len(marked))
	}
}

// TestProgressNotify_BesideABusyWatch: a watch is told its revision when it has shown all, also while another one of
// its stream has not.
func TestProgressNotify_BesideABusyWatch(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := New(testDeps(n))
	defer s.grpc.Stop()
	var sent []string
	ws := watchesOf(t, s, func(r *pb.WatchResponse) { sent = append(sent, describeResponse(r)) })
	must := func(err error, want ...string) {
		t.Helper()
		slices.Sort(sent) // a tick passes through the watches in any order
		if err != nil || !slices.Equal(sent, want) {
			t.Errorf("sent %q, %v; want %q", sent, err, want)
		}
		sent = nil
	}
	first := n.View().Revision()
	for id, key := range []string{"idle", "busy"} {
		r := &pb.WatchCreateRequest{Key: []byte(key), WatchId: int64(id + 1), ProgressNotify: true}
		must(ws.handle(createWatch(r)), fmt.Sprintf("%d@%d created", id+1, first))
	}
	must(ws.tick(), fmt.Sprintf("1@%d", first), fmt.Sprintf("2@%d", first))
	n.apply(t, put("busy", "v"), put("other", "v"))
	must(ws.tick(), fmt.Sprintf("1@%d", first+2))
	n.apply(t, put("idle", "v"))
	must(ws.tick()) // both have something to show
	_, err := ws.step()
	must(err, fmt.Sprintf("2@%d PUT busy=v@%d", first+3, first+1))
	must(ws.tick()) // the idle one is behind
	_, err = ws.step()
	must(err, fmt.Sprintf("1@%d PUT idle=v@%[1]d", first+3))
	must(ws.tick(), fmt.Sprintf("2@%d", first+3))
}
