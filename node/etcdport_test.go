package node

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

// TestEtcdOff: a node without etcd-addr has no port of the etcd API, and no goroutine of it or of gRPC. The test is not
// parallel: no other node runs beside it.
func TestEtcdOff(t *testing.T) {
	stacks := func() string {
		all := make([]byte, 8<<20)
		return string(all[:runtime.Stack(all, true)])
	}
	const api, library = "northstar/etcd.", "google.golang.org/grpc"
	off := startAll(t, newCluster(t, 1, nil))
	if got := stacks(); strings.Contains(got, api) || strings.Contains(got, library) {
		t.Errorf("without etcd-addr:\n%s", got)
	}
	if off.etcdListener != nil || off.ownEtcdURL() != "" {
		t.Errorf("without etcd-addr the node serves %v", off.etcdListener.Addr())
	}
	off.stop()
	startAll(t, newCluster(t, 1, withEtcd))
	eventually(t, "there are goroutines of both with etcd-addr", func() bool { // otherwise the first check shows nothing
		got := stacks()
		return strings.Contains(got, api) && strings.Contains(got, library)
	})
}

// TestEtcdPageOfAnotherOrigin: a web page may send JSON to the port without asking, as text. It must not use the trust
// in callers of this machine to change something, and no answer allows it to read.
func TestEtcdPageOfAnotherOrigin(t *testing.T) {
	t.Parallel()
	n := startAll(t, newCluster(t, 1, withEtcd))
	const put = `{"key":"YQ==","value":"YQ=="}`
	for _, c := range []struct {
		method, path, body string
		code               int
	}{
		{http.MethodPost, "/v3/kv/put", put, http.StatusForbidden},
		{http.MethodPost, "/v3/lease/grant", `{"TTL":60,"ID":7}`, http.StatusForbidden},
		{http.MethodPost, "/v3/lease/keepalive", `{"ID":7}`, http.StatusForbidden},
		{http.MethodPost, "/v3/kv/range", `{"key":"YQ=="}`, http.StatusOK},
		{http.MethodOptions, "/v3/kv/put", "", http.StatusNotImplemented},
		{http.MethodGet, "/version", "", http.StatusOK},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+n.etcdAddr+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", "http://elsewhere.example")
		r.Header.Set("Content-Type", "text/plain")
		r.Header.Set("Access-Control-Request-Method", http.MethodPost)
		resp, err := plain.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.code || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: %s %s %v, want %d", c.method, c.path, resp.Status, text, resp.Header, c.code)
		}
	}
	want(t, plain, http.MethodPost, "http://"+n.etcdAddr+"/v3/kv/put", put, http.StatusOK, "revision")
}
