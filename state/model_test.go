package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"northstar/cluster"
)

// model is a simple model of the keys of a State.
type model struct {
	keys        map[string]Item
	revision    uint64
	now         int64
	idempotency map[string]idempotencyEntry
	changes     []string
}

func newModel() *model {
	return &model{keys: map[string]Item{}, idempotency: map[string]idempotencyEntry{}}
}

func (m *model) apply(c Command) Result {
	m.now = max(m.now, c.Now)
	if c.Idempotency == nil {
		return m.execute(c)
	}
	if e, ok := m.idempotency[c.Idempotency.Key]; ok && e.at > m.now-int64(idempotencyTTL) {
		if bytes.Equal(e.requestHash, c.Idempotency.RequestHash) {
			return e.result
		}
		return Result{Err: &cluster.Error{Code: cluster.CodeBadRequest, Status: http.StatusUnprocessableEntity}}
	}
	e := idempotencyEntry{requestHash: c.Idempotency.RequestHash, at: m.now, result: m.execute(c)}
	m.idempotency[c.Idempotency.Key] = e
	return e.result
}

func (m *model) execute(c Command) Result {
	key, ifRevision, ifAbsent, ifPresent := "", (*uint64)(nil), false, false
	if c.Kind == KindPut {
		key, ifRevision, ifAbsent, ifPresent = c.Put.Key, c.Put.IfRevision, c.Put.IfAbsent, c.Put.IfPresent
	} else {
		key, ifRevision, ifPresent = c.Delete.Key, c.Delete.IfRevision, c.Delete.IfPresent
	}
	old, exists := m.keys[key]
	if ifAbsent && exists || ifPresent && !exists || ifRevision != nil && *ifRevision != old.Revision {
		return Result{Err: &cluster.Error{Code: cluster.CodeConditionFailed, Revision: old.Revision}}
	}
	if c.Kind == KindDelete {
		if !exists {
			return Result{Err: &cluster.Error{Code: cluster.CodeBadRequest, Status: http.StatusNotFound}}
		}
		m.revision++
		delete(m.keys, key)
		m.changes = append(m.changes, fmt.Sprintf("%d:%s!", m.revision, key))
		return Result{Revision: m.revision}
	}
	if c.Put.Session != "" {
		return Result{Err: &cluster.Error{Code: cluster.CodeSessionEnded}}
	}
	m.revision++
	it := Item{Key: key, Value: c.Put.Value, Revision: m.revision, CreateRevision: m.revision, Version: 1}
	if exists {
		it.CreateRevision, it.Version = old.CreateRevision, old.Version+1
	}
	m.keys[key] = it
	m.changes = append(m.changes, fmt.Sprintf("%d:%s", m.revision, key))
	return Result{Revision: m.revision, Created: !exists}
}

func (m *model) list(prefix, after string) []string {
	var keys []string
	for k := range m.keys {
		if strings.HasPrefix(k, prefix) && k > after {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	return keys
}

var modelKeys = []string{"a", "a/", "a/b", "a/b/c", "ab", "b", "ä", "\x00", "a/b\x00"}

// drawCommand draws a put or delete, often with a current revision.
func drawCommand(t *rapid.T, m *model) Command {
	key := rapid.SampledFrom(modelKeys).Draw(t, "key")
	var ifRevision *uint64
	switch rapid.IntRange(0, 5).Draw(t, "condition") {
	case 0:
		ifRevision = ptr(m.keys[key].Revision)
	case 1:
		ifRevision = ptr(rapid.Uint64Range(0, m.revision+1).Draw(t, "revision"))
	}
	c := Command{Now: m.now + rapid.SampledFrom([]int64{
		0, 1, -5, int64(idempotencyTTL) / 3,
		int64(idempotencyTTL),
	}).Draw(t, "clock")}
	if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
		c.Kind, c.Delete = KindDelete, &Delete{
			Key: key, IfRevision: ifRevision,
			IfPresent: rapid.IntRange(0, 5).Draw(t, "present") == 0,
		}
	} else {
		value := rapid.SliceOfN(rapid.Byte(), 0, 6).Draw(t, "value")
		c.Kind, c.Put = KindPut, &Put{Key: key, Value: value, IfRevision: ifRevision}
		c.Put.IfAbsent = rapid.IntRange(0, 5).Draw(t, "absent") == 0
		c.Put.IfPresent = rapid.IntRange(0, 5).Draw(t, "present") == 0
		if rapid.IntRange(0, 19).Draw(t, "tied") == 0 {
			c.Put.Session = "gone"
		}
	}
	if rapid.IntRange(0, 2).Draw(t, "idempotent") == 0 {
		c.Idempotency = &Idempotency{
			Key:         rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "idem"),
			RequestHash: rapid.SliceOfN(rapid.ByteRange(0, 1), 1, 1).Draw(t, "print"),
		}
	}
	return c
}

// throughLog encodes and decodes the commands, as the log does.
func throughLog(t *rapid.T, cmds []Command) []Command {
	raw, err := EncodeBatch(cmds)
	if err != nil {
		t.Fatal(err)
	}
	cmds, err = DecodeBatch(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cmds
}

func agree(got, want Result) bool {
	if got.Err == nil || want.Err == nil {
		return got.Err == nil && want.Err == nil && got.Revision == want.Revision && got.Created == want.Created
	}
	return got.Err.Code == want.Err.Code && got.Err.Status == want.Err.Status && got.Err.Revision == want.Err.Revision
}

// A State returns the results of the model. So does a second one that goes through snapshots, restarts and installs
// at random. Both have the same fingerprint after every batch, and their watchers get every change once and in
// order.
func TestAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		keep := Options{HistoryRevisions: 1 << 20}
		m, steady, moved := newModel(), New(keep), New(keep)
		watchers := []*watcher{watch(t, steady, ""), watch(t, moved, ""), watch(t, moved, "a/")}
		for i := range rapid.IntRange(1, 30).Draw(t, "batches") {
			cmds := make([]Command, rapid.IntRange(1, 8).Draw(t, "commands"))
			want := make([]Result, len(cmds))
			for j := range cmds {
				cmds[j] = drawCommand(t, m)
				want[j] = m.apply(cmds[j])
			}
			term := uint64(1 + i/5)
			got := steady.Apply(uint64(i+1), term, throughLog(t, cmds))
			got2 := moved.Apply(uint64(i+1), term, throughLog(t, cmds))
			for j := range want {
				if !agree(got[j], want[j]) || !agree(got2[j], want[j]) {
					t.Fatalf("batch %d command %d: %+v, %+v, model %+v", i, j, got[j], got2[j], want[j])
				}
			}
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0: // restart: a new State, old cursors are gone with the process
				raw := snapshot(t, moved)
				moved = New(keep)
				read(t, moved, raw)
				for _, w := range watchers[1:] {
					w.resume(t, moved)
				}
			case 1: // a snapshot of the other node is installed
				read(t, moved, snapshot(t, steady))
			case 2:
				watchers[rapid.IntRange(0, len(watchers)-1).Draw(t, "reader")].read(t)
			}
			if steady.View().Fingerprint() != moved.View().Fingerprint() {
				t.Fatalf("after batch %d the states differ", i)
			}
		}
		compareKeys(t, steady.View(), m)
		for _, w := range watchers {
			w.read(t)
			w.compare(t, m)
		}
	})
}

func snapshot(t *rapid.T, s *State) []byte {
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(t *rapid.T, s *State, raw []byte) {
	if _, err := s.ReadFrom(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
}

func compareKeys(t *rapid.T, v *View, m *model) {
	if v.Revision() != m.revision || v.keys.len() != len(m.keys) {
		t.Fatalf("revision %d of %d, %d keys of %d", v.Revision(), m.revision, v.keys.len(), len(m.keys))
	}
	bytesHeld := int64(0)
	for _, key := range modelKeys {
		got, ok := v.Get(key)
		want, exists := m.keys[key]
		if ok != exists || !bytes.Equal(got.Value, want.Value) || got.Revision != want.Revision ||
			got.CreateRevision != want.CreateRevision || got.Version != want.Version {
			t.Fatalf("%q: %+v, model %+v", key, got, want)
		}
		bytesHeld += want.size()
	}
	if v.bytes != bytesHeld {
		t.Fatalf("%d bytes, model %d", v.bytes, bytesHeld)
	}
	for _, prefix := range append(modelKeys, "") {
		for _, after := range append(modelKeys, "") {
			pageAll(t, v, prefix, after, m.list(prefix, after))
		}
	}
}

// pageAll lists in pages of every small size.
func pageAll(t *rapid.T, v *View, prefix, after string, want []string) {
	for limit := range 4 {
		var got []string
		items, next := v.List(prefix, after, limit)
		for {
			for _, it := range items {
				got = append(got, it.Key)
			}
			if next == "" {
				break
			}
			items, next = v.List(prefix, next, limit)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("List(%q, %q, %d): %q, model %q", prefix, after, limit, got, want)
		}
	}
}

// watcher collects all changes under a prefix.
type watcher struct {
	prefix string
	cursor *Cursor
	got    []string
	last   uint64
}

func watch(t *rapid.T, s *State, prefix string) *watcher {
	w := &watcher{prefix: prefix}
	w.resume(t, s)
	return w
}

// resume continues where the watcher was, like a client with its Last-Event-ID.
func (w *watcher) resume(t *rapid.T, s *State) {
	var err error
	if w.cursor, err = s.Feed().Cursor(w.prefix, w.last); err != nil {
		t.Fatal(err)
	}
}

// read reads all changes that are available.
func (w *watcher) read(t *rapid.T) {
	w.each(t, func(c Change) {
		w.last = c.Revision
		w.got = append(w.got, given([]Change{c}))
	})
}

// each calls handle for every available change.
func (w *watcher) each(t *rapid.T, handle func(Change)) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		changes, err := w.cursor.Next(ctx, 3)
		if errors.Is(err, context.Canceled) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			handle(c)
		}
	}
}

func (w *watcher) compare(t *rapid.T, m *model) {
	var want []string
	for _, c := range m.changes {
		if _, key, _ := strings.Cut(c, ":"); strings.HasPrefix(key, w.prefix) {
			want = append(want, c)
		}
	}
	if !slices.Equal(w.got, want) {
		t.Fatalf("watcher of %q got %q, model %q", w.prefix, w.got, want)
	}
}

// With a short history a watcher gets changes without a gap until it gets a compaction error.
func TestShortHistoryNeverSkips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		keep := Options{HistoryRevisions: rapid.IntRange(1, 6).Draw(t, "kept"), HistoryBytes: 20}
		m, s, ahead := newModel(), New(keep), New(keep)
		c, err := s.Feed().Cursor("", 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		var seen uint64
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			cmd := drawCommand(t, m)
			m.apply(cmd)
			ahead.Apply(uint64(i), 1, []Command{cmd})
			if rapid.Bool().Draw(t, "installed") {
				read(t, s, snapshot(t, ahead))
			} else if s.View().AppliedIndex()+1 == uint64(i) || i == 0 {
				s.Apply(uint64(i), 1, []Command{cmd})
			}
			if rapid.Bool().Draw(t, "idle") {
				continue
			}
			changes, err := c.Next(ctx, rapid.IntRange(1, 3).Draw(t, "limit"))
			if cluster.IsCode(err, cluster.CodeHistoryCompacted) {
				if seen >= s.View().history.floor {
					t.Fatalf("compacted at %d, but history reaches back to %d", seen, s.View().history.floor)
				}
				return
			}
			for _, ch := range changes {
				if ch.Revision != seen+1 {
					t.Fatalf("%d after %d", ch.Revision, seen)
				}
				seen = ch.Revision
			}
		}
	})
}
