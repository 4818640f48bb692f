package node

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"northstar/chaos/pg"
)

// lockServer gives a PostgreSQL server of the test's own.
func lockServer(t *testing.T) *pg.Server {
	t.Helper()
	s, err := pg.Start(t.Context())
	if errors.Is(err, pg.ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A leader serves writes only while it holds the lock: not when somebody else does,
// nor when it cannot know. Reads go on. Leadership that moves takes the lock along.
func TestExternalLock(t *testing.T) {
	s := lockServer(t)
	nodes := newCluster(t, 3, func(_ int, c *Config) { c.Failover.ExternalLock = s.DSN() })
	for _, n := range nodes {
		n.start()
	}
	first := leader(t, nodes)
	url := func(n *testNode) string { return "http://" + n.httpAddr + "/v1/kv/k" }
	put := func(n *testNode) (int, string) {
		status, text, err := request(plain, http.MethodPut, url(n)+"?timeout_ms=5000", "v")
		if err != nil {
			t.Fatal(err)
		}
		return status, text
	}
	serves := func(n *testNode) {
		t.Helper()
		eventually(t, time.Minute, "writes are served", func() bool { status, _ := put(n); return status == http.StatusOK })
	}
	refuses := func(n *testNode) {
		t.Helper()
		var status int
		var text string
		eventually(t, 15*time.Second, "writes are refused, and the answer names the lock", func() bool {
			status, text = put(n)
			return status != http.StatusOK && strings.Contains(text, keyExternalLock)
		})
		if status != http.StatusServiceUnavailable || !strings.Contains(text, `"code":4002`) || !strings.Contains(text, `"retryable":true`) {
			t.Errorf("%d %s", status, text)
		}
		want(t, plain, http.MethodGet, url(n), "", http.StatusOK, "v")
	}
	serves(first)
	other, err := newExternalElector(&first.cfg, "another")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Campaign(t.Context()); err != nil {
		t.Errorf("another cluster has a lock of its own: %v", err)
	}
	if err := other.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Down(); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		refuses(n) // whoever was asked says what the leader lacks
	}
	eventually(t, 15*time.Second, "the leader's status says why", func() bool {
		_, text, err := request(plain, http.MethodGet, "http://"+leader(t, nodes).httpAddr+"/status", "")
		return err == nil && strings.Contains(text, "does not hold the external lock")
	})
	if err := s.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	serves(first)
	old := leader(t, nodes)
	want(t, plain, http.MethodPost, "http://"+old.httpAddr+"/admin/transfer", `{"reason":"test"}`, http.StatusOK, `"success":true`)
	serves(leader(t, nodes))
}

func TestExternalLockIsChecked(t *testing.T) {
	cfg := prepare(t, "n1", nil).cfg
	for url, problem := range map[string]string{"postgres://host/db": "", "mysql://x": "begins with postgres://", "postgres://user:hunter2@host:port/db": "DSN"} {
		cfg.Failover.ExternalLock = url
		err := cfg.Validate(time.Now())
		said := err != nil && strings.Contains(err.Error(), keyExternalLock)
		if said != (problem != "") || said && (!strings.Contains(err.Error(), problem) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
