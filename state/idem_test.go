package state

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

func withIdempotency(c Command, key, print string) Command {
	c.Idempotency = &Idempotency{Key: key, RequestHash: []byte(print)}
	return c
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	cond := func() Command { c := put("a", "x"); c.Put.IfAbsent = true; return c }
	r := apply(s,
		withIdempotency(put("a", "1"), "k1", "f"),
		withIdempotency(put("a", "1"), "k1", "f"), // in the same batch
		withIdempotency(cond(), "k2", "f"),
		withIdempotency(del("zz"), "k3", "f"),
		withIdempotency(put("a", "2"), "k1", "g"),
		withIdempotency(put("", ""), "k4", "f"),
	)
	if r[0].Err != nil || !reflect.DeepEqual(r[0], r[1]) {
		t.Fatalf("first %+v, repeated %+v", r[0], r[1])
	}
	wantCode(t, r[2].Err, cluster.CodeConditionFailed)
	if r[3].Err.HTTPStatus() != http.StatusNotFound || r[4].Err.HTTPStatus() != http.StatusUnprocessableEntity {
		t.Fatalf("got %v, %v", r[3].Err, r[4].Err)
	}
	wantCode(t, r[5].Err, cluster.CodeBadRequest)

	// Executed again, each command would now have another result.
	mustApply(t, s, del("a"), put("zz", ""))
	again := New(Options{})
	restore(t, again, snapshotOf(t, s)) // the memory survives a restart
	for name, s := range map[string]*State{"same": s, "restored": again} {
		rev := s.View().Revision()
		r2 := apply(s, withIdempotency(put("a", "1"), "k1", "f"), withIdempotency(cond(), "k2", "f"),
			withIdempotency(del("zz"), "k3", "f"))
		want := []Result{r[0], r[2], r[3]}
		for i := range want {
			if !sameResult(r2[i], want[i]) {
				t.Errorf("%s: repeated %d: %+v, first %+v", name, i, r2[i], want[i])
			}
		}
		if s.View().Revision() != rev {
			t.Errorf("%s: a repeated command took effect", name)
		}
	}
	// The result of an invalid command is not recorded.
	mustApply(t, s, withIdempotency(put("b", "1"), "k4", "other"))
}

// sameResult compares the replicated part of results.
func sameResult(a, b Result) bool {
	if (a.Err == nil) != (b.Err == nil) {
		return false
	}
	if a.Err != nil && (a.Err.Code != b.Err.Code || a.Err.Detail != b.Err.Detail || a.Err.Status != b.Err.Status ||
		a.Err.Revision != b.Err.Revision) {
		return false
	}
	return a.Revision == b.Revision && a.Created == b.Created
}

func TestIdempotencyExpires(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	at := func(c Command, d time.Duration) Command { c.Now = int64(time.Hour + d); return c }
	first := at(withIdempotency(put("a", "1"), "k", "f"), 0)
	mustApply(t, s, first)
	if r := apply(s, at(first, idempotencyTTL-1))[0]; r.Revision != 1 {
		t.Fatalf("forgotten early: %+v", r)
	}
	if r := apply(s, at(first, idempotencyTTL))[0]; r.Revision != 2 {
		t.Fatalf("kept too long: %+v", r)
	}
	// A clock that goes back does not set the state's time back.
	if r := apply(s, at(first, 0))[0]; r.Revision != 2 {
		t.Fatalf("time went back: %+v", r)
	}
	if got := s.View().Time(); !got.Equal(time.Unix(0, int64(time.Hour+idempotencyTTL))) {
		t.Fatalf("state time %v", got)
	}
}

func TestIdempotencyIsBounded(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryRevisions: 1})
	batch := make([]Command, 0, 1000)
	for i := range maxIdempotencyKeys + 1 {
		batch = append(batch, withIdempotency(put("a", ""), fmt.Sprint("k", i), "f"))
		if len(batch) == cap(batch) || i == maxIdempotencyKeys {
			mustApply(t, s, batch...)
			batch = batch[:0]
		}
	}
	v := s.View()
	if n := v.idempotency.order.len(); n != maxIdempotencyKeys || v.idempotency.byKey.len() != n {
		t.Fatalf("%d kept, %d by key", n, v.idempotency.byKey.len())
	}
	rev := v.Revision()
	r := apply(s, withIdempotency(put("a", ""), "k1", "f"), withIdempotency(put("a", ""), "k0", "f"))
	if r[0].Revision != 2 || r[1].Revision != rev+1 {
		t.Fatalf("second oldest %+v, oldest %+v", r[0], r[1])
	}
}

// The keys of nodes, of which every command of the etcd API has one, evict no keys of clients.
func TestIdempotencyKeysOfNodes(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	client := withIdempotency(put("a", "1"), "client/1", "f")
	client.Now = 1
	mustApply(t, s, client)
	cmds := putsOfNode(0, maxIdempotencyKeys+10, 0)
	mustApply(t, s, cmds...)
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		if n := s.View().idempotency.len(); n != maxIdempotencyKeys+1 {
			t.Errorf("%d keys", n)
		}
		before := s.View().Revision()
		mustApply(t, s, client, cmds[len(cmds)-1])
		if got := s.View().Revision(); got != before {
			t.Errorf("%d writes were applied again", got-before)
		}
		later := withIdempotency(put("c", "1"), "client/2", "f")
		later.Now = 2 + int64(idempotencyTTL)
		mustApply(t, s, later)
		if n := s.View().idempotency.len(); n != 1 || s.View().idempotency.byKey.len() != 1 {
			t.Errorf("%d keys after %v", n, idempotencyTTL)
		}
	}
}

// putsOfNode returns count puts with keys of a node, first proposed after an index.
func putsOfNode(first, count int, after uint64) (cmds []Command) {
	for i := range count {
		c := withIdempotency(put("b", "1"), NodeIdempotencyPrefix+strconv.Itoa(first+i), "")
		c.Now, c.Idempotency.After = 2, after
		cmds = append(cmds, c)
	}
	return cmds
}

// A repeated command of a node is never applied twice, also when its result has been dropped. New ones are applied.
func TestForgottenCommandOfNode(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(s *State){
		"by count": func(s *State) {
			mustApply(t, s, putsOfNode(1, maxIdempotencyKeys, s.View().AppliedIndex())...)
		},
		"by age": func(s *State) {
			c := put("c", "1")
			c.Now = 2 + int64(idempotencyTTL)
			mustApply(t, s, c)
		},
	} {
		s := New(Options{})
		mustApply(t, s, put("a", "1"))
		first := putsOfNode(0, 1, s.View().AppliedIndex())[0]
		mustApply(t, s, first)
		forget(s)
		apply(s, first) // drops what has expired
		again := New(Options{})
		restore(t, again, snapshotOf(t, s))
		for _, s := range []*State{s, again} {
			before := s.View().Revision()
			r := apply(s, first)[0]
			if got := s.View().Revision(); got != before {
				t.Errorf("%s: the command was applied again", name)
			}
			wantCode(t, r.Err, cluster.CodeOutcomeUnknown)
			mustApply(t, s, putsOfNode(-1, 1, s.View().AppliedIndex())...)
		}
	}
}

// The audit record of a repeated command has the text of its error. All nodes record the same text: below NumberVersion
// the whole one, as builds that know no numbers do, and later a short one, also of what was recorded before.
func TestIdempotency_TextOfRepeatedError(t *testing.T) {
	t.Parallel()
	failing := put(strings.Repeat("k", 1000), "x")
	failing.Put.IfRevision = new(uint64)
	failing = withIdempotency(failing, "ann\nonce", "f")
	failing.Audit = &AuditRecord{Who: "ann", What: "PUT /v1/kv"}

	s := New(Options{})
	mustApply(t, s, put(failing.Put.Key, "there"))
	apply(s, failing, failing)
	loaded := New(Options{})
	restore(t, loaded, snapshotOf(t, s))
	for name, s := range map[string]*State{"in memory": s, "loaded": loaded} {
		apply(s, failing)
		mustApply(t, s, numbered(put("a", "1"), 1, 1, 1))
		apply(s, failing)
		var got []int
		for r := range s.View().AuditAfter(0) {
			got = append(got, len(r.Detail))
		}
		whole, short := len(`key "" is at revision 1`)+1000, maxRecordedDetail+len("…")
		if want := []int{whole, whole, whole, short}; !slices.Equal(got, want) {
			t.Errorf("%s: texts of %d bytes, want %d", name, got, want)
		}
	}
}
