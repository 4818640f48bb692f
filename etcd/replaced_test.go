package etcd

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"northstar/state"
)

// snapshotOf returns the state of a node, and restore replaces it.
func (n *fakeNode) snapshotOf(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := n.state.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (n *fakeNode) restore(t *testing.T, snapshot []byte) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := n.state.ReadFrom(bytes.NewReader(snapshot)); err != nil {
		t.Fatal(err)
	}
}

// restored returns the state after the restore of a backup.
func (n *fakeNode) restored(t *testing.T) []byte {
	t.Helper()
	backup, err := state.ReadBackup(bytes.NewReader(n.snapshotOf(t)))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := state.MergeBackup(n.state.Snapshot(), backup, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := merged.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestWatchOfReplacedState: a restore ends the watches, and so does its undoing on a node that has installed a restore
// which the cluster has not committed. Watches that begin then get every change.
func TestWatchOfReplacedState(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		watchA := func(id int64) {
			t.Helper()
			p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: id})
			p.want(t, fmt.Sprintf("%d@%d created", id, n.View().Revision()))
		}
		n.apply(t, put("a", "1"))
		before := n.snapshotOf(t)
		watchA(1)
		n.restore(t, n.restored(t))
		p.want(t, fmt.Sprintf("1@%d canceled compacted %d", n.View().Revision(), n.View().Revision()))
		watchA(2)
		n.restore(t, before)
		p.want(t, fmt.Sprintf("2@%d canceled compacted 1", n.View().Revision()))
		watchA(3)
		n.apply(t, put("a", "2"))
		p.want(t, fmt.Sprintf("3@%d PUT a=2@%[1]d", n.View().Revision()))
	})
}

// TestHub_StateGoesBack: a state of the same epoch with fewer revisions ends the watches that have shown more.
func TestHub_StateGoesBack(t *testing.T) {
	t.Parallel()
	n, h, ws := testHub(t)
	before := n.snapshotOf(t)
	n.apply(t, put("a", "1"), put("a", "2"))
	clean, future := ws.watchKey(n, "a"), &watch{key: "a", stream: ws, start: 9, next: 9}
	h.add(future)
	n.restore(t, before)
	v := h.advance()
	if marked, position := h.take(ws); len(marked) != 2 || position != v.Revision() {
		t.Errorf("%d watches are marked up to revision %d", len(marked), position)
	}
	if !clean.replaced(v) || future.replaced(v) {
		t.Errorf("watches end: %v, %v", clean.replaced(v), future.replaced(v))
	}
}

// TestHub_ReplacedWhileSending: a watch that shows a change while the state is replaced ends as well.
func TestHub_ReplacedWhileSending(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(n *fakeNode, before []byte){
		"the state goes back": func(n *fakeNode, before []byte) { n.restore(t, before) },
		"a restore":           func(n *fakeNode, _ []byte) { n.restore(t, n.restored(t)) },
	} {
		n, h, ws := testHub(t)
		before := n.snapshotOf(t)
		w := ws.watchKey(n, "a")
		n.apply(t, put("a", "1"))
		v := h.advance()
		h.take(ws)
		replace(n, before)
		w.next = v.Revision() + 1
		if now := h.advance(); !w.replaced(now) {
			t.Errorf("%s: the watch goes on at revision %d", name, now.Revision())
		} else if now.Revision() > v.Revision() {
			v = now // as if the restored state had as many revisions
		}
		h.finishSend(w, v.Revision())
		if marked, _ := h.take(ws); len(marked) != 1 {
			t.Errorf("%s: the watch does not learn of it", name)
		}
	}
}

// TestProgressNotify_StateGoesBack: headers do not go back with the state, so a watch is told no progress until it has
// shown as much as they name.
func TestProgressNotify_StateGoesBack(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		before := n.snapshotOf(t)
		n.apply(t, put("b", "1"))
		highest := n.View().Revision()
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 1})
		p.want(t, fmt.Sprintf("1@%d created", highest))
		p.in <- cancelWatch(1)
		p.want(t, fmt.Sprintf("1@%d canceled", highest))
		n.restore(t, before)
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 2, ProgressNotify: true})
		p.want(t, fmt.Sprintf("2@%d created", highest))
		time.Sleep(time.Hour) // of virtual time
		p.want(t)
		n.apply(t, put("b", "2"))
		p.want(t, fmt.Sprintf("2@%d", highest))
	})
}
