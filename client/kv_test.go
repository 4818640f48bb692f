package client

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"northstar/api/apiv1"
	"northstar/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a real HTTP server and a client of it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case apiv1.PathLeader:
			reply(w, apiv1.Leader{LeaderID: "n1", LeaderAddress: r.Host, Term: 1, ObservedBy: "n1"})
			return
		case apiv1.PathCluster:
			http.NotFound(w, r)
			return
		}
		h(w, r)
	}))
	t.Cleanup(server.Close)
	c, err := New(Config{Endpoints: []string{server.URL}, Token: "secret", Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Keys arrive unchanged over a real connection.
func TestKeysAreEscaped(t *testing.T) {
	t.Parallel()
	var got string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		escaped := strings.TrimPrefix(r.URL.EscapedPath(), apiv1.PathKVPrefix)
		var err error
		if got, err = url.PathUnescape(escaped); err != nil || strings.Contains(escaped, "/") {
			t.Errorf("path %q: %v", r.RequestURI, err)
		}
		w.Header().Set(apiv1.HeaderRevision, "3")
	})
	for _, key := range []string{
		"a", "/", "//", ".", "..", "../..", "a//b/../c/", "a%2Fb", "%", "a b?c#d&e=f+g", "ключ/鍵", "\x00\n",
		strings.Repeat(
			"k", apiv1.MaxKeyBytes,
		),
	} {
		if _, err := c.Get(t.Context(), key, ""); err != nil || got != key {
			t.Errorf("key %q arrived as %q, %v", key, got, err)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", apiv1.MaxKeyBytes+1), "\xff"} {
		if _, err := c.Get(t.Context(), key, ""); !cluster.IsCode(err, cluster.CodeBadRequest) {
			t.Errorf("key %.10q: %v, want it refused", key, err)
		}
	}
}

func TestWriteOptions_Headers(t *testing.T) {
	t.Parallel()
	var last *http.Request
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		last = r
		reply(w, apiv1.PutResult{Key: "k", Revision: 8})
	})
	opts := WriteOptions{IfRevision: 7, Fence: &Fence{"db", 12}, Session: "s1", IdempotencyKey: "once"}
	if _, err := c.Put(t.Context(), "k", []byte("v"), opts); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"If-Match": `"7"`, apiv1.HeaderFence: "db=12", apiv1.HeaderIdempotencyKey: "once",
		"Authorization": "Bearer secret", "User-Agent": "northstar-client", "If-None-Match": "",
	} {
		if got := last.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if q := last.URL.Query(); q.Get("ttl_session") != "s1" || q.Get("timeout_ms") == "" {
		t.Errorf("query %v", q)
	}
	if _, err := c.Put(t.Context(), "k", nil, WriteOptions{IfAbsent: true, NoIdempotencyKey: true}); err != nil {
		t.Fatal(err)
	}
	if last.Header.Get("If-None-Match") != "*" || last.Header.Get(apiv1.HeaderIdempotencyKey) != "" {
		t.Errorf("header %v", last.Header)
	}
	if _, err := c.Delete(t.Context(), "k", WriteOptions{IfPresent: true}); err != nil ||
		last.Header.Get("If-Match") != "*" {
		t.Errorf("%v, header %v", err, last.Header)
	}
	for name, bad := range map[string]WriteOptions{
		"both conditions": {IfAbsent: true, IfRevision: 1},
		"there and not":   {IfAbsent: true, IfPresent: true},
		"there and at 1":  {IfPresent: true, IfRevision: 1},
		"key and no key":  {IdempotencyKey: "a", NoIdempotencyKey: true},
		"long key":        {IdempotencyKey: strings.Repeat("k", 129)},
	} {
		if _, err := c.Put(t.Context(), "k", nil, bad); !cluster.IsCode(err, cluster.CodeBadRequest) {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
	if _, err := c.Put(t.Context(), "k", make([]byte, apiv1.MaxValueBytes+1), WriteOptions{}); !cluster.IsCode(err,
		cluster.CodeBadRequest) {
		t.Errorf("large value: %v, want it refused", err)
	}
	if _, err := c.Delete(t.Context(), "k", WriteOptions{IfAbsent: true}); !cluster.IsCode(err,
		cluster.CodeBadRequest) {
		t.Errorf("delete if absent: %v, want it refused", err)
	}
}

func TestErrors_MatchSentinels(t *testing.T) {
	t.Parallel()
	var p apiv1.Problem
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", apiv1.TypeProblem)
		w.WriteHeader(p.Status)
		json.NewEncoder(w).Encode(p)
	})
	p = apiv1.Problem{
		Status: 412, Code: 4014, Detail: "revision is 9", Revision: 9, LeaderID: "n2", LeaderAddress: "n2:7701",
	}
	_, err := c.Put(t.Context(), "k", nil, WriteOptions{IfRevision: 8})
	var e *Error
	if !errors.Is(err, ErrConditionFailed) ||
		!errors.As(err, &e) || e.Problem.Revision != 9 || e.LeaderID != "n2" || e.LeaderAddress != "n2:7701" {
		t.Errorf("error %#v", err)
	}
	if got, want := err.Error(), "put k: ERR_CONDITION_FAILED: revision is 9"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	p = apiv1.Problem{Status: 404, Code: 4400, Detail: "no such key"}
	if _, err := c.Get(t.Context(), "k", ""); !errors.Is(err, ErrNotFound) || errors.Is(err, ErrCompacted) {
		t.Errorf("error %v, want %v", err, ErrNotFound)
	}
	p = apiv1.Problem{Status: 400, Code: 4400, Detail: "limit"}
	if _, err := c.ListPage(t.Context(), "", ListOptions{}); errors.Is(err, ErrNotFound) {
		t.Errorf("error %v is no %v", err, ErrNotFound)
	}
}

func TestList_FollowsPages(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("prefix") != "a/" || q.Get("limit") != "2" || q.Get("consistency") != "stale" {
			t.Errorf("query %v", q)
		}
		switch q.Get("after") {
		case "":
			reply(w, apiv1.List{Items: []apiv1.Item{{Key: "a/1"}, {Key: "a/2"}}, Next: "a/2"})
		case "a/2":
			reply(w, apiv1.List{Items: []apiv1.Item{{Key: "a/3"}}})
		}
	})
	var got []string
	for item, err := range c.List(t.Context(), "a/", ListOptions{Limit: 2, Consistency: Stale}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, item.Key)
	}
	if fmt.Sprint(got) != "[a/1 a/2 a/3]" {
		t.Errorf("listed %v", got)
	}
}

func TestSnapshotSave_VerifiesChecksum(t *testing.T) {
	t.Parallel()
	data := bytes.Repeat([]byte("northstar"), 100_000)
	sum := sha256.Sum256(data)
	for name, tc := range map[string]struct {
		sum string
		cut bool
		ok  bool
	}{
		"good":      {"sha256:" + hex.EncodeToString(sum[:]), false, true},
		"damaged":   {"sha256:" + strings.Repeat("0", 64), false, false},
		"no sum":    {"", false, false},
		"truncated": {"sha256:" + hex.EncodeToString(sum[:]), true, false},
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", apiv1.HeaderChecksum)
			w.Write(data)
			if tc.cut {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set(apiv1.HeaderChecksum, tc.sum)
		})
		var out bytes.Buffer
		n, err := c.SnapshotSave(t.Context(), &out)
		if (err == nil) != tc.ok || (tc.ok && (n != int64(len(data)) || !bytes.Equal(out.Bytes(), data))) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
}

func TestSnapshotRestore(t *testing.T) {
	t.Parallel()
	var leader apiv1.Leader
	var got []byte
	fail := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == apiv1.PathLeader:
			reply(w, leader)
		case fail:
			panic(http.ErrAbortHandler)
		default:
			got, _ = io.ReadAll(r.Body)
			reply(w, apiv1.RestoreResult{Revision: 77})
		}
	}))
	defer server.Close()
	leader = apiv1.Leader{
		LeaderID: "n1", LeaderAddress: strings.TrimPrefix(server.URL, "http://"), ObservedBy: "n1", Term: 1,
	}
	c, err := New(Config{Endpoints: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	res, err := c.SnapshotRestore(t.Context(), strings.NewReader("backup"))
	if err != nil || res.Revision != 77 || string(got) != "backup" {
		t.Errorf("restore: %+v, %v, body %q", res, err, got)
	}
	fail = true
	if _, err := c.SnapshotRestore(t.Context(), strings.NewReader("backup")); !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("broken restore: %v, want %v", err, ErrOutcomeUnknown)
	}
}

// The cluster takes longer for a large backup than the limit of a transfer without progress. The wait for a node that
// hangs ends, too.
func TestSnapshotRestore_TakesLong(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]error{5 * time.Minute: nil, time.Hour: ErrOutcomeUnknown} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			c := fc.client("n1")
			defer c.Close()
			fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-time.After(took):
					reply(w, apiv1.RestoreResult{Revision: 77})
				case <-r.Context().Done():
				}
			}
			if _, err := c.SnapshotRestore(t.Context(), strings.NewReader("backup")); !errors.Is(err, want) {
				t.Errorf("a restore that takes %v: %v", took, err)
			}
		}, "n1")
	}
}

func TestNew_InvalidConfig(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"no endpoints":   {},
		"bad scheme":     {Endpoints: []string{"ftp://h:1"}},
		"a path":         {Endpoints: []string{"http://h:1/v1"}},
		"no host":        {Endpoints: []string{"http://"}},
		"negative":       {Endpoints: []string{"h:1"}, Timeout: -1},
		"token of lines": {Endpoints: []string{"h:1"}, Token: "a\nb"},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestGetStale(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		defer c.Close()
		if _, err := c.Put(t.Context(), "k", []byte("v"), WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if e, err := c.GetStale(t.Context(), "k", 1500*time.Millisecond); err != nil || string(e.Value) != "v" {
			t.Errorf("%+v, %v", e, err)
		}
		all := fc.requests("n1")
		if q := all[len(all)-1].URL.Query(); q.Get("consistency") != "stale" || q.Get("max_stale_ms") != "1500" {
			t.Errorf("query %v", q)
		}
		if _, err := c.GetStale(t.Context(), "k", time.Microsecond); err == nil {
			t.Error("a bound below a millisecond is accepted")
		}
	}, "n1")
}
