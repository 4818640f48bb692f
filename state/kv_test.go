package state

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"northstar/cluster"
)

func TestPutAndGet(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	results := apply(s, put("a", "1"), put("b", "2"), put("a", "3"), del("b"), put("b", "4"))
	want := []Result{
		{Revision: 1, Created: true},
		{Revision: 2, Created: true},
		{Revision: 3},
		{Revision: 4},
		{Revision: 5, Created: true},
	}
	if !reflect.DeepEqual(results, want) {
		t.Fatalf("got %+v", results)
	}
	v := s.View()
	a, _ := v.Get("a")
	if want := (Item{Key: "a", Value: []byte("3"), Revision: 3, CreateRevision: 1, Version: 2}); !reflect.DeepEqual(a,
		want) {
		t.Errorf("a: %+v", a)
	}
	b, _ := v.Get("b")
	if want := (Item{Key: "b", Value: []byte("4"), Revision: 5, CreateRevision: 5, Version: 1}); !reflect.DeepEqual(b,
		want) {
		t.Errorf("b: %+v", b)
	}
	if _, ok := v.Get("c"); ok {
		t.Error("c exists")
	}
	if v.Revision() != 5 || v.keys.len() != 2 || v.bytes != 4 || v.AppliedIndex() != 1 || v.AppliedTerm() != 1 {
		t.Errorf("revision %d, %d keys, %d bytes, index %d", v.Revision(), v.keys.len(), v.bytes, v.AppliedIndex())
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	ifRev := func(c Command, rev uint64) Command {
		if c.Put != nil {
			c.Put.IfRevision = &rev
		} else {
			c.Delete.IfRevision = &rev
		}
		return c
	}
	ifAbsent := func(c Command) Command { c.Put.IfAbsent = true; return c }
	ifPresent := func(c Command) Command {
		if c.Put != nil {
			c.Put.IfPresent = true
		} else {
			c.Delete.IfPresent = true
		}
		return c
	}
	for name, c := range map[string]struct {
		cmd     Command
		code    cluster.Code // 0: succeeds
		current uint64
	}{
		"put at its revision":             {ifRev(put("a", "x"), 2), 0, 0},
		"put at an old revision":          {ifRev(put("a", "x"), 1), cluster.CodeConditionFailed, 2},
		"put at a revision of absent key": {ifRev(put("z", "x"), 2), cluster.CodeConditionFailed, 0},
		"put at 0 of a key":               {ifRev(put("a", "x"), 0), cluster.CodeConditionFailed, 2},
		"put at 0 of absent key":          {ifRev(put("z", "x"), 0), 0, 0},
		"put if absent, absent":           {ifAbsent(put("z", "x")), 0, 0},
		"put if absent, present":          {ifAbsent(put("a", "x")), cluster.CodeConditionFailed, 2},
		"put if absent and at revision":   {ifAbsent(ifRev(put("a", "x"), 2)), cluster.CodeConditionFailed, 2},
		"put if present, present":         {ifPresent(put("a", "x")), 0, 0},
		"put if present, absent":          {ifPresent(put("z", "x")), cluster.CodeConditionFailed, 0},
		"delete if present, present":      {ifPresent(del("a")), 0, 0},
		"delete if present, absent":       {ifPresent(del("z")), cluster.CodeConditionFailed, 0},
		"delete at its revision":          {ifRev(del("a"), 2), 0, 0},
		"delete at an old revision":       {ifRev(del("a"), 1), cluster.CodeConditionFailed, 2},
		"delete at revision of absent":    {ifRev(del("z"), 2), cluster.CodeConditionFailed, 0},
		"delete of absent":                {del("z"), cluster.CodeBadRequest, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Options{})
			mustApply(t, s, put("a", "1"), put("a", "2"))
			r := apply(s, c.cmd)[0]
			if c.code == 0 {
				if r.Err != nil || r.Revision != 3 || s.View().Revision() != 3 {
					t.Fatalf("got %+v", r)
				}
				return
			}
			wantCode(t, r.Err, c.code)
			if r.Err.Revision != c.current || r.Revision != 0 || s.View().Revision() != 2 {
				t.Fatalf("got %+v (current %d), revision %d", r, r.Err.Revision, s.View().Revision())
			}
			if c.code == cluster.CodeBadRequest && r.Err.HTTPStatus() != http.StatusNotFound {
				t.Fatalf("status %d", r.Err.HTTPStatus())
			}
		})
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", MaxValue)
	withIdem := func(i Idempotency) Command { c := put("a", ""); c.Idempotency = &i; return c }
	for name, c := range map[string]struct {
		cmd    Command
		status int // 0: valid
		names  string
	}{
		"empty key":       {put("", "v"), http.StatusBadRequest, "key"},
		"longest key":     {put(strings.Repeat("k", MaxKey), "v"), 0, ""},
		"key too long":    {put(strings.Repeat("k", MaxKey+1), "v"), http.StatusBadRequest, "key"},
		"not UTF-8":       {put("a\xff", "v"), http.StatusBadRequest, "key"},
		"any UTF-8":       {put("//../\x00%2F ", "v"), 0, ""},
		"largest value":   {put("a", big), 0, ""},
		"value too large": {put("a", big+"x"), http.StatusRequestEntityTooLarge, "value"},
		"empty delete":    {del(""), http.StatusBadRequest, "key"},
		"empty idem key":  {withIdem(Idempotency{}), http.StatusBadRequest, "idempotency key"},
		"idem key long": {
			withIdem(Idempotency{Key: strings.Repeat("k", MaxIdempotencyKey+1)}), http.StatusBadRequest,
			"idempotency key",
		},
		"request hash long": {
			withIdem(Idempotency{Key: "k", RequestHash: make([]byte, MaxRequestHash+1)}),
			http.StatusBadRequest, "request hash",
		},
		"fence of no role": {
			Command{Kind: KindPut, Fence: &FencingToken{}, Put: &Put{Key: "a"}},
			http.StatusBadRequest,
			"fence",
		},
		"session too long": {
			Command{Kind: KindPut, Put: &Put{Key: "a", Session: big}},
			http.StatusBadRequest,
			"ttl_session",
		},
	} {
		err := c.cmd.Validate()
		s := New(Options{})
		r := apply(s, c.cmd)[0]
		if c.status == 0 {
			if err != nil || r.Err != nil {
				t.Errorf("%s: %v, %v", name, err, r.Err)
			}
			continue
		}
		if err == nil || err.Code != cluster.CodeBadRequest || err.HTTPStatus() != c.status ||
			!strings.Contains(err.Detail, c.names) {
			t.Errorf("%s: Validate returns %v", name, err)
		}
		if !reflect.DeepEqual(r.Err, err) || s.View().Revision() != 0 {
			t.Errorf("%s: Apply returns %+v, revision %d", name, r, s.View().Revision())
		}
	}
}

func TestSessionAndFence(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	tied := put("a", "1")
	tied.Put.Session = "s1"
	fenced := put("b", "1")
	fenced.Fence = &FencingToken{Role: "primary", Token: 5}
	r := apply(s, tied, fenced)
	wantCode(t, r[0].Err, cluster.CodeSessionEnded)
	wantCode(t, r[1].Err, cluster.CodeFenced)

	holder := newSession(t, s, "holder")
	token := campaign(t, s, "primary", holder).Current.Token
	tied.Put.Session = holder
	r = apply(s, tied, fenced)
	if r[0].Err != nil {
		t.Error(r[0].Err)
	}
	wantCode(t, r[1].Err, cluster.CodeFenced)
	fenced.Fence.Token = token
	mustApply(t, s, fenced)
	if a, _ := s.View().Get("a"); a.Session != holder {
		t.Errorf("a: %+v", a)
	}
	// A token is valid only while it is current.
	mustApply(t, s, resign("primary", holder))
	wantCode(t, apply(s, fenced)[0].Err, cluster.CodeFenced)
	if again := campaign(t, s, "primary", holder).Current.Token; again <= token {
		t.Fatalf("token %d after %d", again, token)
	}
	wantCode(t, apply(s, fenced)[0].Err, cluster.CodeFenced)
}

func TestList(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	for _, k := range []string{"a", "a/", "a/b", "a/b/c", "a/c", "a0", "b", "ä", "a/b\x00"} {
		mustApply(t, s, put(k, k))
	}
	v := s.View()
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          string
		next          string
	}{
		{"", "", 0, "a a/ a/b a/b\x00 a/b/c a/c a0 b ä", ""},
		{"a/", "", 0, "a/ a/b a/b\x00 a/b/c a/c", ""},
		{"a/b", "", 2, "a/b a/b\x00", "a/b\x00"},
		{"a/b", "a/b\x00", 2, "a/b/c", ""},
		{"a/", "a/b", 1, "a/b\x00", "a/b\x00"},
		{"a/", "a/c", 5, "", ""},
		{"a/", "a", 2, "a/ a/b", "a/b"},
		{"a/", "z", 2, "", ""},
		{"a/", "a/b", 3, "a/b\x00 a/b/c a/c", ""},
		{"q", "", 1, "", ""},
	} {
		items, next := v.List(c.prefix, c.after, c.limit)
		var keys []string
		for _, it := range items {
			keys = append(keys, it.Key)
		}
		if got := strings.Join(keys, " "); got != c.want || next != c.next {
			t.Errorf("List(%q, %q, %d) = %q, next %q; want %q, next %q", c.prefix, c.after, c.limit, got, next, c.want,
				c.next)
		}
	}
}

// A later batch never changes a View.
func TestViewIsImmutable(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryRevisions: 3, HistoryBytes: 1 << 20})
	mustApply(t, s, put("a", "1"), put("b", "2"))
	v := s.View()
	before := v.Fingerprint()
	for i := range 2 * blockLen {
		mustApply(t, s, put("a", fmt.Sprint(i)), put(fmt.Sprint("k", i), ""))
	}
	mustApply(t, s, del("b"), Command{Kind: KindMember, Member: &cluster.Member{ID: "n1"}})
	if v.Fingerprint() != before {
		t.Fatal("an old view has changed")
	}
	if s.View().Fingerprint() == before {
		t.Fatal("the fingerprint does not tell states apart")
	}
}

func TestRevisionsOfGenerations(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, Command{
		Kind:        KindClusterInit,
		ClusterInit: &ClusterInit{ClusterID: "c", Generation: cluster.Generation{Number: 3}},
	})
	wantNothing(t, cursor(t, s, "", 0)) // and the jump does not keep a watcher busy
	if r := apply(s, put("a", ""))[0]; r.Revision != 2<<40+1 {
		t.Fatalf("revision %d", r.Revision)
	}
}
