package proc

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/chaos/pg"
	"northstar/chaos/ports"
)

// TestPatroni runs PostgreSQL twice under the distribution's Patroni, which keeps its state in NorthStar by the etcd
// API. Crashes and a pause of the leader change nothing for the primary. When the primary is lost, the replica is
// promoted as early as Patroni's own timing allows.
func TestPatroni(t *testing.T) {
	t.Parallel()
	const kills, pauseFor = 4, 10 * time.Second
	c, etcd := patroniCluster(t)
	primary := startPatroni(t, "a", etcd)
	eventually(t, 2*soon, func() error { return notYet(primary.Primary(t.Context()), "a is the primary") })
	replica := startPatroni(t, "b", etcd)
	eventually(t, 2*soon, func() error { return notYet(replica.Replica(t.Context()), "b is a replica") })

	w := startWriter(t, primary.DSN())
	for range kills {
		n := leader(t, c)
		n.Kill()
		awaitLoops(t, primary, replica)
		if err := c.StartNode(n); err != nil {
			t.Fatal(err)
		}
	}
	n := leader(t, c)
	if err := n.Pause(); err != nil {
		t.Fatal(err)
	}
	pause(pauseFor)
	if err := n.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitLoops(t, primary, replica)
	rows := w.stop(t)
	if !primary.Primary(t.Context()) {
		t.Error("a is not the primary any more")
	}
	for _, p := range []*pg.Patroni{primary, replica} {
		reportFailures(t, p)
	}

	eventually(t, soon, func() error { return hasRows(t.Context(), replica, rows) })
	promotion(t, c, primary, replica)
	if err := hasRows(t.Context(), replica, rows); err != nil {
		t.Error(err)
	}
}

// promotion ends the primary, and waits until the replica has taken its place.
func promotion(t *testing.T, c *Cluster, primary, replica *pg.Patroni) {
	t.Helper()
	leader(t, c)
	term, began := mustStatus(t, c.Nodes[0]).Term, time.Now()
	if err := primary.Crash(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 6*soon, func() error { return notYet(replica.Primary(t.Context()), "b is the primary") })
	took := time.Since(began).Round(time.Millisecond)
	elections := mustStatus(t, c.Nodes[0]).Term - term
	t.Logf("promoted after %v, with %d terms of elections meanwhile", took, elections)
	// The lease lives for its TTL and the default of etcd.lease-grace, which a new leader starts afresh. The rest is
	// for the promotion itself.
	if limit := pg.PatroniTTL + 500*time.Millisecond + pg.PatroniLoop + 10*time.Second; elections == 0 && took > limit {
		t.Errorf("promoted after %v, at most %v", took, limit)
	}
}

// patroniCluster starts a cluster and returns the addresses of its etcd API. Each election starts the TTLs of leases
// afresh, so an overloaded machine must not cause many.
func patroniCluster(t *testing.T) (*Cluster, []string) {
	c := newCluster(t, 3, "--election-timeout-min", "1s", "--election-timeout-max", "2s")
	addrs, err := ports.Reserve(len(c.Nodes))
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range c.Nodes {
		c.Extra[n.ID] = []string{"--etcd-addr", addrs[i]}
	}
	start(t, c)
	return c, addrs
}

func startPatroni(t *testing.T, name string, etcd []string) *pg.Patroni {
	t.Helper()
	p, err := pg.StartPatroni(t.Context(), name, etcd)
	if errors.Is(err, pg.ErrNoPatroni) || errors.Is(err, pg.ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, p.Log())
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func notYet(ok bool, what string) error {
	if ok {
		return nil
	}
	return fmt.Errorf("not yet: %s", what)
}

// awaitLoops waits until each Patroni has completed two more loops.
func awaitLoops(t *testing.T, all ...*pg.Patroni) {
	t.Helper()
	for _, p := range all {
		before := loops(p)
		eventually(t, soon, func() error { return notYet(loops(p) >= before+2, "two loops of Patroni") })
	}
}

func loops(p *pg.Patroni) int { return strings.Count(p.Log(), " INFO: no action. I am ") }

// failure is what Patroni logs when a loop fails or a role changes. Failed requests that it sends again to another
// node are none.
var failure = regexp.MustCompile(`(?i)demot|promot|failed to update leader|communicating with DCS|could not take out|` +
	`lost leader|waiting on etcd|refresh_lease|get_cluster|disappeared|not owner of the lease`)

// reportFailures reports failed loops of a Patroni whose server has had its role all the time.
func reportFailures(t *testing.T, p *pg.Patroni) {
	t.Helper()
	_, log, _ := strings.Cut(p.Log(), " INFO: no action. I am ") // before that the cluster was made
	for line := range strings.Lines(log) {
		if failure.MatchString(line) {
			t.Errorf("Patroni: %s", line)
		} else if strings.Contains(line, " ERROR: ") || strings.Contains(line, " WARNING: ") {
			t.Logf("Patroni: %s", strings.TrimSpace(line))
		}
	}
}

// writer inserts rows by one connection, which ends when the server stops to be a primary.
type writer struct {
	cancel context.CancelFunc
	done   chan error
	rows   int
}

func startWriter(t *testing.T, dsn string) *writer {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE written (n int PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &writer{cancel: cancel, done: make(chan error, 1)}
	go func() {
		defer conn.Close(context.WithoutCancel(ctx))
		for ctx.Err() == nil {
			if _, err := conn.Exec(context.WithoutCancel(ctx), "INSERT INTO written VALUES ($1)", w.rows); err != nil {
				w.done <- err
				return
			}
			w.rows++
			pause(20 * time.Millisecond)
		}
		w.done <- nil
	}()
	return w
}

// stop ends the writer and returns how many rows it has written.
func (w *writer) stop(t *testing.T) int {
	t.Helper()
	w.cancel()
	if err := <-w.done; err != nil {
		t.Errorf("a write at the primary: %v", err)
	}
	return w.rows
}

// hasRows returns an error unless a server has that many rows.
func hasRows(ctx context.Context, p *pg.Patroni, want int) error {
	conn, err := pgx.Connect(ctx, p.DSN())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var got int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM written").Scan(&got); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%d of %d rows", got, want)
	}
	return nil
}
