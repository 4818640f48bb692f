package node

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// oldData holds what the build before has written; its README says how.
const oldData = "testdata/f89d65c"

// unpack extracts an archive of oldData.
func unpack(t *testing.T, name, to string) {
	t.Helper()
	r := tar.NewReader(unzip(t, name))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(to, filepath.FromSlash(h.Name))
		if h.FileInfo().IsDir() {
			err = os.MkdirAll(path, 0o700)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func unzip(t *testing.T, name string) io.Reader {
	t.Helper()
	f, err := os.Open(filepath.Join(oldData, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// oldNodes prepares n1 and n2 on data that the previous build has left. That data contains the addresses of
// its cluster; the test maps them to free ones.
func oldNodes(t *testing.T) []*testNode {
	t.Helper()
	old := []string{"127.0.0.1:27701", "127.0.0.1:27801", "127.0.0.1:27702", "127.0.0.1:27802"}
	free := freeAddresses(t, len(old))
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		for i := range old {
			if addr == old[i] {
				addr = free[i]
			}
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}
	nodes := []*testNode{
		prepare(t, "n1", func(c *Config) {
			c.RaftAddr, c.RaftAdvertise, c.HTTPAddr, c.HTTPAdvertise = free[0], old[0], free[1], old[1]
			calm(0, c) // failover is paused: who has lost leadership is not replaced
		}),
		prepare(t, "n2", func(c *Config) {
			c.RaftAddr, c.RaftAdvertise, c.HTTPAddr, c.HTTPAdvertise = free[2], old[2], free[3], old[3]
			calm(1, c)
		}),
	}
	for i, archive := range []string{"leader.tar.gz", "follower.tar.gz"} {
		nodes[i].env.Dial = dial
		unpack(t, archive, nodes[i].cfg.DataDir)
	}
	return nodes
}

// The present node starts on data directories of the build before and finds all
// that they hold; a token and a revision stay what they were.
func TestDataOfTheBuildBefore(t *testing.T) {
	t.Parallel()
	nodes := oldNodes(t)
	for _, n := range nodes {
		n.start()
	}
	leader(t, nodes)
	for _, n := range nodes {
		eventually(t, "the old log is applied", func() bool {
			return !n.Consensus().View().AutoFailover(time.Now())
		})
		get := func(path, answer string) {
			t.Helper()
			want(t, plain, "GET", "http://"+n.cfg.HTTPAddr+path, "", http.StatusOK, answer)
		}
		get("/status", `"cluster_id":"8134a6a413e457dd2029cce042502c27","generation":2,`+
			`"recovery_id":"462b3d2fe99da11487543037d838b9b8"`)
		get("/v1/kv/old/before-recovery", "1")
		get("/v1/kv/old/key-7", "value 7")
		get("/v1/kv/old/last", "the last value")
		get("/v1/kv/old/ephemeral", "here")
		get("/v1/kv?prefix=old/last", `"revision":1099511627816`)
		get("/v1/roles/scheduler", `"holder":"worker-1","session_id":"00010000000022i4t324uz2sicbqvm",`+
			`"token":1099511627812,"value":"10.0.0.1:9000"`)
		get("/v1/nodes", `"id":"app-1"`)
		get("/v1/cluster", `"id":"n2","raft_address":"127.0.0.1:27702","http_address":"127.0.0.1:27802",`+
			`"suffrage":"voter","priority":50,"eligible":true,"zone":"east"`)
		get("/admin/audit?limit=100", `"reason":"two of four are lost"`)
		get("/admin/audit?limit=100", `"what":"POST /admin/auto-failover"`)
		want(t, plain, "GET", "http://"+n.cfg.HTTPAddr+"/v1/kv/old/key-30", "", http.StatusNotFound, `"status":404`)
	}
	url := "http://" + nodes[0].cfg.HTTPAddr
	want(t, plain, "POST", url+"/v1/sessions/00010000000022i4t324uz2sicbqvm/renew", "", http.StatusOK, "3600000")
	want(t, plain, "PUT", url+"/v1/kv/new", "1", http.StatusOK, `"revision":10995116278`)
	if _, err := os.Stat(filepath.Join(nodes[1].cfg.DataDir, "set-aside", "generation-1-d415e421",
		"log.db")); err != nil {
		t.Error(err)
	}
}

// restore has a node restore a backup.
func restore(t *testing.T, url string, backup io.Reader) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/admin/snapshot/restore", backup)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := plain.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// The present node restores a backup of the build before: keys and settings
// come with it, sessions and roles do not.
func TestBackupOfTheBuildBefore(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil)[0]
	startAll(t, []*testNode{n})
	url := "http://" + n.httpAddr
	backup := unzip(t, "backup.snapshot.gz")
	if status, body := restore(t, url, backup); status != http.StatusOK {
		t.Fatalf("restore: %d %s", status, body)
	}
	eventually(t, "the settings are there", func() bool {
		return !n.Consensus().View().AutoFailover(time.Now())
	})
	want(t, plain, "GET", url+"/v1/kv/old/key-7", "", http.StatusOK, "value 7")
	want(t, plain, "GET", url+"/v1/kv/old/last", "", http.StatusOK, "the last value")
	want(t, plain, "GET", url+"/v1/kv/old/key-30", "", http.StatusNotFound, `"status":404`)
	want(t, plain, "GET", url+"/v1/roles/scheduler", "", http.StatusNotFound, "")
}
