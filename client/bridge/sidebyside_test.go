package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/chaos/pg"
	"northstar/chaos/proc"
	"northstar/client"
	"northstar/client/bridge"
	"northstar/client/postgres"
)

const (
	ttl       = 2 * time.Second
	stopEarly = 500 * time.Millisecond
	// The time from the end of a holder's session until a program of today acts, or has noticed.
	today = 500 * time.Millisecond
	limit = time.Minute // of any step, also on a busy machine
)

// asHolder makes this program a process of a fleet. Its value is a candidacy in JSON.
const asHolder = "NORTHSTAR_BRIDGE_HOLDER"

var programDir string

// nodeProgram returns the path of the program of a node.
var nodeProgram = sync.OnceValues(func() (string, error) { return proc.Program(programDir, "northstar-node") })

func TestMain(m *testing.M) {
	if text := os.Getenv(asHolder); text != "" {
		if err := child(text); err != nil {
			fmt.Println(err)
		}
		return
	}
	var err error
	if programDir, err = os.MkdirTemp("", "northstar-bridge-"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(programDir)
	os.Exit(code)
}

// systems are a cluster and a database server, and the role and the lock for which a fleet competes there.
type systems struct {
	cluster *proc.Cluster
	server  *pg.Server
	role    string
	key     int64
}

func start(t *testing.T) systems {
	t.Helper()
	server, err := pg.Start(t.Context())
	if errors.Is(err, pg.ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	node, err := nodeProgram()
	if err != nil {
		t.Fatal(err)
	}
	c, err := proc.NorthStar(node, 3, "--disk-reserve", "1MiB")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		c.Close()
	})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	s := systems{c, server, "scheduler", 0x464F52470001}
	s.leader(t)
	return s
}

func (s systems) leader(t *testing.T) *proc.Node {
	t.Helper()
	n, err := s.cluster.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s systems) endpoints() (all []string) {
	for _, n := range s.cluster.Nodes {
		all = append(all, n.HTTP)
	}
	return all
}

// candidacy is what a process needs to compete for a role and a lock.
type candidacy struct {
	Phase     bridge.Phase
	DSN       string
	Key       int64
	Endpoints []string
	Role      string
	Halt      step // of the child process
}

func (s systems) candidacy(phase bridge.Phase) candidacy {
	return candidacy{Phase: phase, DSN: s.server.DSN(), Key: s.key, Endpoints: s.endpoints(), Role: s.role}
}

// elector returns the elector of a candidacy, and a function that closes what it uses.
func (c candidacy) elector() (client.Elector, func(), error) {
	cl, err := client.New(client.Config{Endpoints: c.Endpoints})
	if err != nil {
		return nil, nil, err
	}
	candidate, err := cl.NewCandidate(client.CandidateConfig{Role: c.Role, Session: client.SessionConfig{TTL: ttl}})
	if err != nil {
		return nil, nil, err
	}
	lock, err := postgres.NewAdvisoryLock(postgres.AdvisoryLockConfig{
		DSN: c.DSN, Key: c.Key, TTL: ttl, BackoffMin: 20 * time.Millisecond, BackoffMax: 100 * time.Millisecond,
	})
	if err != nil {
		return nil, nil, err
	}
	e, err := bridge.New(bridge.Config{
		Phase: c.Phase, Role: c.Role, Elector: c.Halt.elector(candidate), Lock: c.Halt.lock(lock), TakeoverDelay: today,
	})
	return e, cl.Close, err
}

// recorder detects two processes that act at the same time.
type recorder struct {
	t      *testing.T
	mu     sync.Mutex
	acting map[string]bool
	turns  map[string]int
	began  chan string // capacity 1: the latest process that began to act
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, acting: map[string]bool{}, turns: map[string]int{}, began: make(chan string, 1)}
}

func (r *recorder) act(ctx context.Context, name string) {
	r.mu.Lock()
	for other := range r.acting {
		r.t.Errorf("%s acts beside %s", name, other)
	}
	r.acting[name] = true
	r.turns[name]++
	select {
	case <-r.began:
	default:
	}
	r.began <- name
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.acting, name)
}

// next waits for the next process that begins to act, and returns its name.
func (r *recorder) next(what string) string {
	r.t.Helper()
	select {
	case name := <-r.began:
		return name
	case <-time.After(limit):
		r.t.Fatalf("no process acts after %v: %s", limit, what)
		return ""
	}
}

// actor returns the name of the process that acts, as soon as there is one.
func (r *recorder) actor() string {
	r.t.Helper()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		r.mu.Lock()
		for name := range r.acting {
			r.mu.Unlock()
			return name
		}
		r.mu.Unlock()
		<-time.After(5 * time.Millisecond)
	}
	r.t.Fatal("no process acts")
	return ""
}

// member is a process of the fleet.
type member struct {
	stop  context.CancelFunc
	ended chan struct{}
}

func (m member) end() {
	m.stop()
	<-m.ended
}

func launch(t *testing.T, run func(ctx context.Context) error) member {
	ctx, cancel := context.WithCancel(context.Background())
	m := member{cancel, make(chan struct{})}
	go func() {
		defer close(m.ended)
		if err := run(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}()
	t.Cleanup(m.end)
	return m
}

// legacy is a process of today, without this package: it polls for the lock, and acts while its session lives.
func (s systems) legacy(t *testing.T, rec *recorder, name string) member {
	return launch(t, func(ctx context.Context) error {
		for ctx.Err() == nil {
			_ = s.legacyTenure(ctx, rec, name) // it tries again
			<-time.After(50 * time.Millisecond)
		}
		return nil
	})
}

func (s systems) legacyTenure(ctx context.Context, rec *recorder, name string) error {
	conn, err := pgx.Connect(ctx, s.server.DSN())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for locked := false; !locked; {
		if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, s.key).Scan(&locked); err != nil {
			return err
		}
		<-time.After(50 * time.Millisecond)
	}
	<-time.After(today) // its work starts
	if _, err := conn.Exec(ctx, `SELECT`); err != nil {
		return err
	}
	acting, stop := context.WithCancel(ctx)
	var check sync.WaitGroup
	check.Go(func() {
		defer stop()
		for acting.Err() == nil { // much more often than another may take over
			if _, err := conn.Exec(acting, `SELECT`); err != nil {
				return
			}
			<-time.After(today / 10)
		}
	})
	rec.act(acting, name)
	check.Wait()
	return nil
}

// moved is a process with this package.
func (s systems) moved(t *testing.T, rec *recorder, name string, phase bridge.Phase) member {
	t.Helper()
	e, closeElector, err := s.candidacy(phase).elector()
	if err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf("%s (%v)", name, phase)
	return launch(t, func(ctx context.Context) error {
		defer closeElector()
		return client.RunAsLeader(ctx, e, stopEarly, func(ctx context.Context, _ *client.Leadership) error {
			rec.act(ctx, name)
			return ctx.Err()
		})
	})
}

const killSession = `SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32 | objid::bigint) = $1`

// killHolder ends the session that holds the lock.
func (s systems) killHolder(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), killSession, s.key); err != nil {
		t.Fatal(err)
	}
}
