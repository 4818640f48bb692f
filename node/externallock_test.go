package node

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"

	"northstar/chaos/pg"
)

// lockServer returns a PostgreSQL server for this test alone.
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

func connect(t *testing.T, s *pg.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// A leader serves writes only while it holds the lock. It serves none while another session holds the lock, or while it
// cannot know, and restores no backup. Reads continue. The leader tries again, even after a refusal. A new leader takes
// over the lock.
func TestExternalLock(t *testing.T) {
	t.Parallel()
	s := lockServer(t)
	server := func(sql string) {
		t.Helper()
		conn := connect(t, s)
		defer conn.Close(context.Background())
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	server(`CREATE ROLE locker SUPERUSER LOGIN`)
	dsn := strings.Replace(s.DSN(), "postgres@", "locker@", 1)
	nodes := newCluster(t, 3, func(_ int, c *Config) { c.Failover.ExternalLock = dsn })
	first := startAll(t, nodes)
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
		eventually(t, "writes are served", func() bool { status, _ := put(n); return status == http.StatusOK })
	}
	refuses := func(n *testNode) {
		t.Helper()
		var status int
		var text string
		eventually(t, "writes are refused, and the answer names the lock", func() bool {
			status, text = put(n)
			return status != http.StatusOK && strings.Contains(text, keyExternalLock)
		})
		if status != http.StatusServiceUnavailable || !strings.Contains(text, `"code":4002`) ||
			!strings.Contains(text, `"retryable":true`) {
			t.Errorf("%d %s", status, text)
		}
		want(t, plain, http.MethodGet, url(n), "", http.StatusOK, "v")
	}
	serves(first)
	backup := ""
	eventually(t, "a backup is written", func() bool { // of the leader, which may change on a busy machine
		status, text, err := request(plain, http.MethodGet, "http://"+first.httpAddr+"/admin/snapshot", "")
		backup = text
		return err == nil && status == http.StatusOK
	})
	other, err := newExternalElector(&first.cfg, "another")
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := other.Campaign(soon); err != nil {
		t.Errorf("another cluster has a lock of its own: %v", err)
	}
	if err := other.Close(t.Context()); err != nil {
		t.Error(err)
	}
	server(`ALTER ROLE locker NOLOGIN`)
	if err := s.Down(); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		refuses(n) // each node reports what the leader lacks
	}
	eventually(t, "a restore is refused, and the answer names the lock", func() bool {
		status, text := restore(t, "http://"+first.httpAddr, strings.NewReader(backup))
		if status == http.StatusOK {
			t.Fatal("a backup is restored without the lock")
		}
		return status == http.StatusServiceUnavailable && strings.Contains(text, keyExternalLock) &&
			strings.Contains(text, `"code":4002`)
	})
	eventually(t, "the leader's status says why", func() bool {
		_, text, err := request(plain, http.MethodGet, "http://"+leader(t, nodes).httpAddr+"/status", "")
		return err == nil && strings.Contains(text, "does not hold the external lock")
	})
	if err := s.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leader is refused", func() bool { // which may be another one on a busy machine
		return slices.ContainsFunc(nodes, func(n *testNode) bool {
			return strings.Contains(n.log.String(), "not permitted to log in")
		})
	})
	server(`ALTER ROLE locker LOGIN`)
	serves(first)
	old := leader(t, nodes)
	want(t, plain, http.MethodPost, "http://"+old.httpAddr+"/admin/transfer", `{"reason":"test"}`, http.StatusOK,
		`"success":true`)
	serves(leader(t, nodes))
}

// After a refusal the node waits before it asks again, and the wait does not delay the end of its leadership.
func TestExternalLockRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged lockedBuffer
		log := hclog.New(&hclog.LoggerOptions{Output: &logged})
		ctx, cancel := context.WithTimeout(t.Context(), 3*lockRetryDelay/2)
		defer cancel()
		for _, want := range []time.Duration{lockRetryDelay, lockRetryDelay / 2, 0} {
			began := time.Now()
			awaitLockRetry(ctx, log, errors.New("refused"))
			if took := time.Since(began); took != want {
				t.Errorf("it waits %v, want %v", took, want)
			}
		}
		if strings.Count(logged.String(), "retrying") != 2 {
			t.Errorf("want a log line for each of the two refusals: %s", logged.String())
		}
	})
}

// The lock outlasts an election, however short those are.
func TestExternalLockTTL(t *testing.T) {
	t.Parallel()
	s := lockServer(t)
	conn := connect(t, s)
	defer conn.Close(context.Background())
	cfg := prepare(t, "n1", nil).cfg
	cfg.Failover.ExternalLock = s.DSN()
	for timeout, want := range map[time.Duration]int{time.Second: 4000, 100 * time.Millisecond: 2000} {
		cfg.Election.TimeoutMax = timeout
		e, err := newExternalElector(&cfg, timeout.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Campaign(t.Context()); err != nil {
			t.Fatal(err)
		}
		var ttl int
		var holder string
		err = conn.QueryRow(t.Context(), `SELECT ttl_ms, holder FROM northstar_roles WHERE role = 'northstar.leader.' || $1`,
			timeout.String()).Scan(&ttl, &holder)
		if err != nil || ttl != want || holder != "n1" {
			t.Errorf("%v: %d ms, of %s, %v, want %d ms", timeout, ttl, holder, err, want)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestExternalLockIsChecked(t *testing.T) {
	cfg := prepare(t, "n1", nil).cfg
	for url, problem := range map[string]string{
		"postgres://host/db": "", "postgresql://host/db": "",
		"mysql://x": "begins with postgres://", "host=db": "begins with postgres://",
		"postgres://user:hunter2@host:port/db": "DSN",
	} {
		cfg.Failover.ExternalLock = url
		err := cfg.Validate(time.Now())
		said := err != nil && strings.Contains(err.Error(), keyExternalLock)
		if said != (problem != "") || said && (!strings.Contains(err.Error(), problem) ||
			strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
