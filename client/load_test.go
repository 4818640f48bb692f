package client

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// Many writers, leader changes, hung nodes and lost responses: each acknowledged write was applied, and each at
// most once.
func TestWritesUnderFaults(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		fc.lossRate = 0.1
		names := []string{"n1", "n2", "n3"}
		ctx, stop := context.WithCancel(t.Context())
		var faults, writers sync.WaitGroup
		faults.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(rand.N(300 * time.Millisecond))
				i := rand.N(3)
				switch rand.N(3) {
				case 0:
					fc.depose()
				case 1:
					fc.hang(names[i])
					time.Sleep(rand.N(300 * time.Millisecond))
					i = (i + 1) % 3
				}
				fc.elect(names[i])
				time.Sleep(rand.N(100 * time.Millisecond))
				for _, name := range names {
					fc.resume(name)
				}
			}
		})
		const each = 30
		for w := range 10 {
			writers.Go(func() {
				for i := range each {
					value := fmt.Sprintf("%d.%d", w, i)
					if _, err := c.Put(t.Context(), fmt.Sprintf("w%d", w), []byte(value), WriteOptions{}); err != nil {
						t.Errorf("write %s: %v", value, err)
						return
					}
					e, err := c.Get(t.Context(), fmt.Sprintf("w%d", w), "")
					if err != nil || string(e.Value) != value {
						t.Errorf("read %s: %q, %v", value, e.Value, err)
					}
				}
			})
		}
		writers.Wait()
		stop()
		faults.Wait()
		if fc.applied != 10*each {
			t.Errorf("%d writes were carried out, want %d", fc.applied, 10*each)
		}
	}, "n1", "n2", "n3")
}

// A response of a node is more specific than an unreachable node.
func TestReturnsMostSpecificError(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		for range 10 {
			c := fc.client("n1", "gone1", "gone2")
			fc.nodes["n1"].handle = func(w http.ResponseWriter, _ *http.Request) {
				problem(w, cluster.Errorf(cluster.CodeNoLeader, "none"))
			}
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(time.Second)+10*time.Millisecond)
			if _, err := c.Get(ctx, "k", ""); !errors.Is(err, ErrNoLeader) ||
				!errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want %v", err, ErrNoLeader)
			}
			cancel()
			c.Close()
		}
	}, "n1")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || r.ProtoMajor != 1 {
			t.Errorf("request over %s, TLS %v", r.Proto, r.TLS != nil)
		}
		w.Header().Set(apiv1.HeaderRevision, "3")
	}))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := LoadTLS(ca, "", "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Endpoints: []string{strings.TrimPrefix(server.URL, "https://")}, TLS: cfg})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Get(t.Context(), "k", ""); err != nil {
		t.Error(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, files := range map[string][3]string{
		"no such CA": {
			"/does/not/exist",
		}, "empty CA": {empty}, "half a pair": {ca, "a.crt", ""}, "no such pair": {ca, "a.crt", "a.key"},
	} {
		if _, err := LoadTLS(files[0], files[1], files[2]); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// With an https URL and no TLS configuration, nothing is sent in the clear to the nodes that the cluster names.
func TestTLS_LearnedNodes(t *testing.T) {
	t.Parallel()
	named := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s in the clear, with %q", r.Method, r.URL.Path, r.Header.Get("Authorization"))
	}))
	defer named.Close()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == apiv1.PathLeader {
			address := strings.TrimPrefix(named.URL, "http://")
			reply(w, apiv1.Leader{LeaderID: "n1", LeaderAddress: address, ObservedBy: "n2", Term: 1})
			return
		}
		w.Header().Set(apiv1.HeaderRevision, "3")
	}))
	defer server.Close()
	c, err := New(Config{Endpoints: []string{server.URL}, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.pool.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig
	if l, err := c.Leader(t.Context()); err != nil || l.LeaderID != "n1" {
		t.Fatalf("%+v, %v", l, err)
	}
	if _, err := c.Get(t.Context(), "k", ""); err != nil {
		t.Error(err)
	}
	if _, err := c.Status(t.Context(), strings.TrimPrefix(named.URL, "http://")); err == nil {
		t.Error("a node that speaks no TLS answers")
	}
}

// BenchmarkGet measures what the client adds to its HTTP request.
func BenchmarkGet(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == apiv1.PathLeader {
			reply(w, apiv1.Leader{LeaderID: "n1", LeaderAddress: r.Host, ObservedBy: "n1", Term: 1})
			return
		}
		w.Header().Set(apiv1.HeaderRevision, "3")
	}))
	defer server.Close()
	b.Run("client", func(b *testing.B) {
		c, err := New(Config{Endpoints: []string{server.URL}})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Get(b.Context(), "k", ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		c := &http.Client{Transport: &http.Transport{}}
		defer c.CloseIdleConnections()
		b.ReportAllocs()
		for b.Loop() {
			req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, server.URL+"/v1/kv/k?timeout_ms=1900",
				nil)
			if err != nil {
				b.Fatal(err)
			}
			res, err := c.Do(req)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadAll(res.Body); err != nil {
				b.Fatal(err)
			}
			res.Body.Close()
		}
	})
}
