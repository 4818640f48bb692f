package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// tokenServer accepts the tokens "old" and "new", and only "new" once the old one is removed. Its streams then end, as
// those of a node do.
type tokenServer struct {
	removed     chan struct{}
	file        string
	endsStreams atomic.Bool  // each stream ends immediately, though its request is accepted
	watches     atomic.Int64 // requests for streams
	dials       atomic.Int64
}

// withTokens returns a client whose token is in a file, and what checks it at every node.
func (fc *fakeCluster) withTokens(t *testing.T, names ...string) (*tokenServer, *Client) {
	t.Helper()
	s := &tokenServer{removed: make(chan struct{}), file: filepath.Join(t.TempDir(), "token")}
	s.write(t, "old")
	for _, n := range fc.nodes {
		inner := n.handle
		n.handle = func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, inner) }
	}
	var endpoints []string
	for _, name := range names {
		endpoints = append(endpoints, name+":1")
	}
	c, err := New(Config{Endpoints: endpoints, TokenFile: s.file, Dial: func(
		ctx context.Context, network, address string,
	) (net.Conn, error) {
		s.dials.Add(1)
		return fc.net.dial(ctx, network, address)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func (s *tokenServer) write(t *testing.T, token string) {
	t.Helper()
	if err := os.WriteFile(s.file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *tokenServer) serve(w http.ResponseWriter, r *http.Request, inner http.HandlerFunc) {
	revoked := cluster.Errorf(cluster.CodeUnauthenticated, "the credentials of this stream are no longer valid")
	old, stream := r.Header.Get("Authorization") == "Bearer old", strings.HasSuffix(r.URL.Path, "/watch")
	if stream {
		s.watches.Add(1)
	}
	select {
	case <-s.removed:
		if old {
			problem(w, revoked)
			return
		}
	default:
	}
	if old && strings.HasSuffix(r.URL.Path, "/campaign") {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		ended := make(chan struct{})
		rec := httptest.NewRecorder()
		go func() { defer close(ended); inner(rec, r.WithContext(ctx)) }()
		select {
		case <-ended:
			maps.Copy(w.Header(), rec.Header())
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes())
		case <-s.removed:
			cancel()
			<-ended
			problem(w, revoked)
		}
		return
	}
	if !stream || !old && !s.endsStreams.Load() {
		inner(w, r)
		return
	}
	w.Header().Set("Content-Type", apiv1.TypeEventStream)
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	if !s.endsStreams.Load() {
		select {
		case <-s.removed:
		case <-r.Context().Done():
		}
	}
	fmt.Fprintf(w, "event: error\ndata: {\"code\":%d,\"status\":401,\"detail\":%q}\n\n", revoked.Code, revoked.Detail)
}

// The token is replaced, in the client's file first. Streams of the old one end; the watch and that of the tenure go
// on with the new one.
func TestCredentials_ReplacedToken(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		tokens, c := fc.withTokens(t, "n1", "n2")
		defer c.Close()
		k := candidate(t, c, 10*time.Second)
		l, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		watched := make(chan error, 8) // the election and the resignation
		go func() {
			for _, err := range c.WatchRole(t.Context(), "r", WatchOptions{}) {
				watched <- err
			}
		}()
		time.Sleep(10 * time.Second)
		tokens.write(t, "new")
		time.Sleep(time.Minute)
		close(tokens.removed)
		time.Sleep(time.Minute)
		if l.Cause() != nil {
			t.Error(l.Cause())
		}
		if err := f.resign("r", l.Session, 0); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if l.Cause() == nil {
			t.Error("the tenure goes on after its resignation")
		}
		if len(watched) != 2 || <-watched != nil || <-watched != nil {
			t.Error("the watch has ended")
		}
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1", "n2")
}

// The token of a waiting candidate is replaced. It asks again with the new one. Without a new one it learns that the
// old one is refused.
func TestCredentials_WaitingCandidate(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{true, false} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			f := fc.withRoles()
			tokens, c := fc.withTokens(t, "n1", "n2")
			defer c.Close()
			const ttl = 10 * time.Second
			first, second := candidate(t, c, ttl), candidate(t, c, ttl)
			l, err := first.Campaign(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			elected := make(chan error, 1)
			go func() {
				_, err := second.Campaign(t.Context())
				elected <- err
			}()
			time.Sleep(10 * time.Second)
			if replaced {
				tokens.write(t, "new")
			}
			time.Sleep(time.Minute)
			close(tokens.removed)
			time.Sleep(time.Second)
			if err := f.resign("r", l.Session, 0); err != nil {
				t.Error(err)
			}
			err = <-elected
			refused := cluster.IsCode(err, cluster.CodeUnauthenticated)
			if refused == replaced || !refused && err != nil {
				t.Errorf("replaced %v: %v", replaced, err)
			}
		}, "n1", "n2")
	}
}

// A stream whose credentials are no longer valid continues on a new connection, which shows the current certificate.
func TestCredentials_NewConnection(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		tokens, c := fc.withTokens(t, "n1")
		var watching sync.WaitGroup
		watching.Go(func() {
			for ch, err := range c.WatchRole(t.Context(), "r", WatchOptions{}) {
				if !errors.Is(err, ErrClosed) {
					t.Errorf("%+v, %v", ch, err)
				}
			}
		})
		defer watching.Wait()
		defer c.Close()
		synctest.Wait()
		q := &call{op: "role r", method: http.MethodGet, path: rolePath("r"), long: true} // leaves its connection open
		if _, err := c.do(t.Context(), q); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
		tokens.write(t, "new")
		time.Sleep(5 * time.Second)
		before := tokens.dials.Load()
		close(tokens.removed)
		time.Sleep(time.Second)
		if n := tokens.dials.Load() - before; n != 1 || tokens.watches.Load() != 2 {
			t.Errorf("%d new connections, %d streams", n, tokens.watches.Load())
		}
	}, "n1")
}

// A token that is removed without another one ends a watch with the error of the node, also if a node accepts each
// stream only to end it.
func TestCredentials_RefusedToken(t *testing.T) {
	t.Parallel()
	for _, endsStreams := range []bool{false, true} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			fc.withRoles()
			tokens, c := fc.withTokens(t, "n1", "n2")
			defer c.Close()
			tokens.endsStreams.Store(endsStreams)
			if !endsStreams {
				time.AfterFunc(time.Minute, func() { close(tokens.removed) })
			}
			for ch, err := range c.WatchRole(t.Context(), "r", WatchOptions{}) {
				if !cluster.IsCode(err, cluster.CodeUnauthenticated) {
					t.Errorf("%+v, %v, want refused credentials", ch, err)
				}
			}
			if n := tokens.watches.Load(); n != 2 {
				t.Errorf("ended immediately %v: %d requests, want one after the end of the stream", endsStreams, n)
			}
		}, "n1", "n2")
	}
}

// The credentials are refused for a moment when the watch of a tenure moves to another node. The tenure is watched
// again after that: only the watch tells of a resignation by another process.
func TestCredentials_TenureIsWatchedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		var refuse atomic.Bool
		var refused atomic.Int64
		f.reject = func(r *http.Request) error {
			if !refuse.Load() || !strings.HasSuffix(r.URL.Path, "/watch") {
				return nil
			}
			refused.Add(1)
			return fail(cluster.CodeUnauthenticated)
		}
		c := fc.client("n1", "n2")
		defer c.Close()
		k := candidate(t, c, 10*time.Second)
		l, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		refuse.Store(true)
		next := "n1"
		for _, r := range fc.requests("n1") {
			if strings.HasSuffix(r.URL.Path, "/watch") {
				next = "n2"
			}
		}
		fc.kill(map[string]string{"n1": "n2", "n2": "n1"}[next])
		fc.elect(next)
		time.Sleep(time.Minute)
		if n := refused.Load(); n < 1 || n > 60 {
			t.Errorf("%d requests in a minute of refusals", n)
		}
		refuse.Store(false)
		time.Sleep(2 * checkInterval)
		if err := f.resign("r", l.Session, 0); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if l.Cause() == nil {
			t.Error("the tenure goes on after its resignation")
		}
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1", "n2")
}

// A connection that is older than the present certificate shows one that has expired. What is refused for it is sent
// again on another connection, also a stream. What is refused on a new one is not.
func TestCredentials_OlderConnection(t *testing.T) {
	t.Parallel()
	var requests, refusals atomic.Int64
	var old atomic.Value
	old.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != rolePath("r") {
			http.NotFound(w, r)
			return
		}
		requests.Add(1)
		if at := old.Load(); at == r.RemoteAddr || at == "all" {
			refusals.Add(1)
			w.Header().Set("Connection", "close") // as a node does
			problem(w, cluster.Errorf(cluster.CodeUnauthenticated, "the certificate has expired"))
			return
		}
		old.Store(r.RemoteAddr)
		if body, err := io.ReadAll(r.Body); err != nil || r.Method == http.MethodPost && string(body) != "{}" {
			t.Errorf("body %q, %v", body, err)
		}
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	c, err := New(Config{Endpoints: []string{server.URL}, TLS: &tls.Config{
		MinVersion: tls.VersionTLS13, GetClientCertificate: (&pairFiles{}).get,
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	post := func(class retryClass) error {
		_, err := c.do(t.Context(), &call{
			op: "role r", retryClass: class, method: http.MethodPost, path: rolePath("r"), body: []byte("{}"),
		})
		return err
	}
	open := func() error {
		q := &call{op: "watch", method: http.MethodGet, path: rolePath("r"), long: true}
		s, err := c.open(t.Context(), q, "", time.Hour)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, s.res.Body) // the connection may be used again
		s.close()
		return err
	}
	sent := int64(0)
	for i, send := range []func() error{
		func() error { return post(leaderRead) }, func() error { return post(nonIdempotentWrite) }, open,
	} {
		for refusals.Load() <= int64(i) { // it may come before the connection of the one before is idle
			sent++
			if err := send(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := requests.Load(); n != sent+refusals.Load() {
		t.Errorf("%d requests for %d, of which %d were refused once", n, sent, refusals.Load())
	}
	old.Store("all")
	before := requests.Load()
	err = post(leaderRead)
	n := requests.Load() - before
	if n < 1 || n > maxRefusedConns || !cluster.IsCode(err, cluster.CodeUnauthenticated) {
		t.Errorf("%d requests, %v; want the refusal", n, err)
	}
}
