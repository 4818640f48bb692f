package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/chaos/testenv"
	"northstar/client"
)

const killSession = `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32 | objid::bigint) = $1`

// One candidate at a time holds a role. A release wakes the waiting candidate.
func TestResign_ElectsNextCandidate(t *testing.T) {
	t.Parallel()
	ttl := testenv.Slowdown() * 2 * time.Second // heartbeats may be late on a busy machine
	const backoff = time.Minute                 // no busy machine needs as long
	b := &tenureLog{t: t}
	first := b.campaign(candidate(t, "a", func(c *Config) { c.TTL = ttl }))
	follower := candidate(t, "b", func(c *Config) {
		c.TTL, c.BackoffMin, c.BackoffMax = ttl, backoff, backoff
	})
	began := time.Now()
	elected := b.later(follower)
	do(t, `SELECT`) // has any effect of the follower's attempts
	select {
	case l := <-elected:
		t.Fatalf("%+v is elected beside %s", l, first.Name)
	case <-time.After(3 * ttl / 2): // heartbeats continue
	}
	if first.Cause() != nil || first.ValidFor() == 0 || first.Session == "" || first.Token == 0 {
		t.Fatalf("%+v, %v", first.Holder, first.Cause())
	}
	if err := first.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := <-elected
	if second == nil {
		return
	}
	if took := time.Since(began); took >= backoff {
		t.Errorf("elected %v after its first attempt: nothing woke the follower", took)
	}
	if err := first.Cause(); !errors.Is(err, client.ErrResigned) {
		t.Error(err)
	}
	if again := b.campaign(follower); again != second {
		t.Errorf("the holder campaigns: %+v, then %+v", second, again)
	}
}

// The end of the session ends the tenure immediately; the next candidate waits for its deadline.
func TestConnectionKilled(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	holder, next := candidate(t, "a", nil), candidate(t, "b", nil)
	first := b.campaign(holder)
	elected := b.later(next)
	do(t, killSession, LockKey(defaultTable, role(t)))
	killed := time.Now()
	<-first.Done() // its role is lost, or on a busy machine its lease ends before it hears of that
	<-elected
	if took := time.Since(killed); took < shortTTL/2 {
		t.Errorf("elected %v after the end of a holder that might have acted on", took)
	}
	// The former holder may clear its row: then no candidate waits.
	long := candidate(t, "c", func(c *Config) { c.Role, c.LockKey, c.TTL = role(t)+".c", 0, time.Minute })
	b = &tenureLog{t: t}
	first = b.campaign(long)
	do(t, killSession, LockKey(defaultTable, role(t)+".c"))
	done(t, first, client.ErrRoleLost)
	if again := b.campaign(long); again.Session == first.Session {
		t.Error("it is the same tenure")
	}
}

// If the network between server and holder is cut, the server frees the lock after the holder's own deadline. A holder
// does not pause between attempts, so how long it would is no matter.
func TestNetworkCut(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	p := newProxy(t)
	e := candidate(t, "a", func(c *Config) { c.DSN, c.BackoffMax = p.dsn(), time.Minute })
	first := b.campaign(e)
	p.set(true)
	second := b.campaign(candidate(t, "b", nil))
	if err := first.Cause(); !errors.Is(err, client.ErrLeaseLapsed) {
		t.Error(err)
	}
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	p.set(false)
	if err := second.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.campaign(e)
}

// A late heartbeat closes the gate. When it succeeds, the same tenure opens the gate again.
func TestLateHeartbeat(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	var skip atomic.Int64
	real := client.NewDeadline(nil)
	e := candidate(t, "a", func(c *Config) {
		c.TTL = 3 * time.Second
		c.Clock = func() time.Duration { return real.Now() + time.Duration(skip.Load()) }
	})
	first := b.campaign(e)
	var g client.Gate
	g.Bind(first)
	if err := g.Require(); err != nil {
		t.Fatal(err)
	}
	skip.Add(int64(3 * time.Second))
	if err := g.Require(); !errors.Is(err, client.ErrLeaseLapsed) {
		t.Errorf("the gate of a process that was stopped: %v", err)
	}
	second := b.campaign(e)
	if second.Token != first.Token || second == first {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	g.Bind(second)
	if err := g.Check(first.Token); err != nil {
		t.Error(err)
	}
}

// asHolder in the environment makes the test binary a process that holds a role and reports when it could last act.
const asHolder = "NORTHSTAR_TEST_HOLDER"

func holdRole(dsn string) error {
	e, err := New(Config{DSN: dsn, Role: os.Getenv(asHolder + "_ROLE"), TTL: shortTTL})
	if err != nil {
		return err
	}
	l, err := e.Campaign(context.Background())
	if err != nil {
		return err
	}
	var g client.Gate
	g.Bind(l)
	clock := client.NewDeadline(nil)
	last := clock.Now() // before the token is printed: the parent may stop this process right after that
	fmt.Println(l.Token)
	for {
		now := clock.Now()
		if g.Require() != nil {
			fmt.Println(int64(last))
			return nil
		}
		last = now
	}
}

// A stopped process delays no candidate, and finds its gate closed when it continues.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	e := candidate(t, "b", nil)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asHolder+"="+server(t).DSN(), asHolder+"_ROLE="+role(t))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	number := func() int64 {
		t.Helper()
		if !lines.Scan() {
			t.Fatal("the holder ends")
		}
		n, err := strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	token := number()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	clock := client.NewDeadline(nil)
	l := (&tenureLog{t: t}).campaign(e)
	elected := clock.Now()
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if last := number(); last >= int64(elected) || int64(l.Token) <= token {
		t.Errorf("tokens %d, %d; the stopped holder's gate was open %v after the other's election", token, l.Token,
			time.Duration(last)-elected)
	}
}

// At every heartbeat, the row and the lock must belong to this session, and the lock must be the right one.
func TestHeartbeat_ChecksLockAndRow(t *testing.T) {
	t.Parallel()
	const none = `SELECT pg_advisory_unlock_all(), `
	for name, sql := range map[string]string{
		"lock":        none + `$1::bigint`,
		"key":         none + `pg_advisory_lock($1::bigint + 1)`,
		"form":        none + `pg_advisory_lock(($1::bigint >> 32)::int, ($1::bigint << 32 >> 32)::int)`,
		"transferred": none + `$1::bigint`,
		"row": `UPDATE northstar_roles SET session = 'another' WHERE role = '` + role(
			t,
		) + `.row' AND $1::bigint <> 0`,
	} {
		e := candidate(t, name, func(c *Config) { c.Role, c.LockKey, c.TTL = role(t)+"."+name, 0, time.Hour })
		conn, err := e.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer closeConn(conn)
		l, err := e.waitForLock(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.heartbeat(); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), sql, l.e.cfg.LockKey); err != nil {
			t.Fatal(err)
		}
		if name == "transferred" {
			_, other := connected(t, name, func(c *Config) { c.TTL = time.Hour })
			if _, err := other.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, l.e.cfg.LockKey); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.heartbeat(); !errors.Is(err, client.ErrRoleLost) {
			t.Errorf("%s: %v", name, err)
		}
		l.cancel()
		do(t, `DELETE FROM northstar_roles WHERE role = $1`, l.e.cfg.Role) // for repeated runs of the test
	}
}

// Each role and table has its own lock key, the same in all builds.
func TestLockKey_DiffersByRoleAndTable(t *testing.T) {
	t.Parallel()
	if got := LockKey("northstar_roles", "nightly-report"); got != 1619885106554685738 {
		t.Errorf("lock %d", got)
	}
	b := &tenureLog{t: t}
	first := b.campaign(candidate(t, "a", func(c *Config) { c.TTL = time.Minute }))
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if _, err := candidate(t, "b", func(c *Config) { c.Table = "apart" }).Campaign(ctx); err != nil ||
		first.Cause() != nil {
		t.Errorf("%v, %v", err, first.Cause())
	}
	for i := range 3 {
		(&tenureLog{t: t}).campaign(
			candidate(t, "a", func(c *Config) { c.Role, c.LockKey = fmt.Sprintf("%s.%d", role(t), i), 0 }),
		)
	}
}

// A connection is tried for as long as the DSN says, or for five seconds.
func TestParseDSN_ConnectTimeout(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]time.Duration{
		"postgres://h/d": connectTimeout, "postgres://h/d?connect_timeout=3": 3 * time.Second,
		"host=h connect_timeout=30": 30 * time.Second, "host=h connect_timeout=0": connectTimeout,
	} {
		if c, err := parseDSN(dsn, "a"); err != nil || c.ConnectTimeout != want {
			t.Errorf("%s: %v, %v, want %v", dsn, c.ConnectTimeout, err, want)
		}
	}
}

// The longest name of a table that is accepted has a channel that PostgreSQL accepts.
func TestTable_Longest(t *testing.T) {
	t.Parallel()
	const schema, table = "schema_long", "table_012345678901234567890123456789012345678901234"
	do(t, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`) // for repeated runs of the test
	do(t, `CREATE SCHEMA `+schema)
	(&tenureLog{t: t}).campaign(candidate(t, "a", func(c *Config) { c.Table = schema + "." + table }))
	cfg := candidate(t, "a", nil).cfg
	cfg.Table = schema + "1." + table
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "Table:") {
		t.Errorf("%d bytes: %v", len(cfg.Table), err)
	}
}

// Another process may release the role of one that has exited.
func TestRelease(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	cfg := func(c *Config) { c.TTL = time.Minute }
	e := candidate(t, "a", cfg)
	first := b.campaign(e)
	do(t, killSession, LockKey(defaultTable, role(t)))
	done(t, first, client.ErrRoleLost)
	next := candidate(t, "b", cfg)
	if err := Release(t.Context(), next.cfg, first.Session); err != nil {
		t.Fatal(err)
	}
	second := b.campaign(next)
	if err := Release(t.Context(), next.cfg, first.Session); err != nil {
		t.Fatal(err)
	}
	if again := b.campaign(next); again.Token != second.Token {
		t.Error("a late release ended another's tenure")
	}
}

func TestObserve(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	a := candidate(t, "a", func(c *Config) {
		c.Value, c.TTL = "10.0.0.1", 3*time.Second // no tenure may lapse on a busy machine: it would be seen, too
	})
	first := b.campaign(a)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	type seen struct {
		client.Holder
		err error
	}
	events := make(chan seen)
	var watching sync.WaitGroup
	watching.Go(func() {
		defer close(events)
		for h, err := range candidate(t, "observer", nil).Observe(ctx) {
			events <- seen{h, err}
		}
	})
	defer watching.Wait()
	want := func(token uint64, name, cause string) {
		t.Helper()
		if s := <-events; s.err != nil || s.Token != token || s.Name != name || s.Cause != cause || s.Role != role(t) {
			t.Errorf("%+v, want token %d of %q, cause %q", s, token, name, cause)
		}
	}
	want(first.Token, "a", "")
	if err := first.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(0, "", causeResigned)
	second := b.campaign(a)
	if second.Value != "10.0.0.1" || second.AcquiredAt.IsZero() {
		t.Errorf("%+v", second.Holder)
	}
	want(second.Token, "a", "")
	do(t, killSession, LockKey(defaultTable, role(t)))
	want(0, "", causeExpired)
	cancel()
	if s := <-events; !errors.Is(s.err, context.Canceled) {
		t.Errorf("%+v", s)
	}
}

// A holder that observes its own role keeps it.
func TestObserve_OwnRole(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	e := candidate(t, "a", func(c *Config) { c.TTL = time.Minute })
	l := b.campaign(e)
	for h, err := range e.Observe(t.Context()) {
		if err != nil || h.Session != l.Session {
			t.Errorf("%+v, %v, want session %s", h, err, l.Session)
		}
		break
	}
	if again := b.campaign(e); again.Token != l.Token || l.Cause() != nil {
		t.Errorf("token %d after %d; the first tenure: %v", again.Token, l.Token, l.Cause())
	}
}

// Observe does not declare that the work of a lost tenure has stopped: until its TTL no other candidate is elected.
func TestObserve_LostTenure(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	e := candidate(t, "a", func(c *Config) { c.TTL = time.Minute })
	lost := b.campaign(e)
	do(t, killSession, e.cfg.LockKey)
	done(t, lost, client.ErrRoleLost)
	for h, err := range e.Observe(t.Context()) {
		if err != nil || h.Session != lost.Session {
			t.Errorf("%+v, %v, want session %s", h, err, lost.Session)
		}
		break
	}
}

// A late Resign of a lost tenure does not end the next one of the same candidate.
func TestResign_AfterTheNextElection(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	e := candidate(t, "a", func(c *Config) { c.TTL = time.Minute })
	first := b.campaign(e)
	do(t, killSession, e.cfg.LockKey)
	done(t, first, client.ErrRoleLost)
	second := b.campaign(e)
	if err := first.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	if again := b.campaign(e); again.Token != second.Token || second.Cause() != nil {
		t.Errorf("token %d after %d; the second tenure: %v", again.Token, second.Token, second.Cause())
	}
}

// Permanent errors are returned, not retried.
func TestCampaign_PermanentErrors(t *testing.T) {
	t.Parallel()
	s := server(t)
	do(t, `DROP ROLE IF EXISTS poor`)
	do(t, `CREATE ROLE poor LOGIN`)
	for dsn, want := range map[string]string{
		"postgres://poor@" + s.Address() + "/postgres?sslmode=disable":   "permission denied",
		"postgres://postgres@" + s.Address() + "/none?sslmode=disable":   "does not exist",
		"postgres://nobody@" + s.Address() + "/postgres?sslmode=disable": `role "nobody" does not exist`,
	} {
		e := candidate(t, "a", func(c *Config) { c.DSN, c.Table = dsn, "other_roles" })
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		if _, err := e.Campaign(ctx); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := New(Config{Role: "/", Name: strings.Repeat("x",
		129), Value: "\x00", TTL: time.Millisecond, TakeoverDelay: -1, Table: "A", BackoffMin: 2, BackoffMax: 1})
	for _, field := range []string{"DSN", "Role", "Name", "Value", "TTL", "TakeoverDelay", "Table", "BackoffMin"} {
		if err == nil || !strings.Contains(err.Error(), field+":") && !strings.Contains(err.Error(), field+",") {
			t.Errorf("%s is not complained of: %v", field, err)
		}
	}
}

// Candidates lose sessions, network and time at random.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	ctx, stop := context.WithTimeout(t.Context(), 6*time.Second)
	defer stop()
	key := LockKey(defaultTable, role(t))
	conn, err := pgx.Connect(t.Context(), server(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var candidates sync.WaitGroup
	var proxies []*proxy
	var skips [4]atomic.Int64
	real := client.NewDeadline(nil)
	tenures := make(chan uint64, 1000)
	for i := range skips {
		p := newProxy(t)
		proxies = append(proxies, p)
		e := candidate(t, fmt.Sprint(i), func(c *Config) {
			c.DSN = p.dsn()
			c.Clock = func() time.Duration { return real.Now() + time.Duration(skips[i].Load()) }
		})
		candidates.Go(func() {
			err := client.RunAsLeader(ctx, e, 0, func(ctx context.Context, l *client.Leadership) error {
				b.enter(l)
				tenures <- l.Token
				<-ctx.Done()
				return ctx.Err()
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	for tick := time.NewTicker(150 * time.Millisecond); ctx.Err() == nil; {
		i := rng.IntN(len(skips))
		switch rng.IntN(4) {
		case 0:
			if _, err := conn.Exec(t.Context(), killSession, key); err != nil {
				t.Fatal(err)
			}
		case 1:
			proxies[i].set(true)
		case 2:
			skips[i].Add(rng.Int64N(int64(2 * shortTTL)))
		}
		proxies[rng.IntN(len(proxies))].set(false)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	candidates.Wait()
	if n := len(tenures); n < 3 {
		t.Errorf("%d tenures only", n)
	}
}

// A restart of the server ends every tenure; the next one has a greater token. This test runs alone, since it ends
// all sessions.
func TestServerRestart(t *testing.T) {
	b := &tenureLog{t: t}
	first := b.campaign(candidate(t, "a", nil))
	elected := b.later(candidate(t, "b", nil))
	if err := server(t).Down(); err != nil {
		t.Fatal(err)
	}
	done(t, first, client.ErrRoleLost)
	if err := server(t).Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := <-elected; l == nil || l.Token <= first.Token {
		t.Errorf("%+v after token %d", l, first.Token)
	}
}

// When a candidate with the lock may start its tenure.
func TestLeaseEnd(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, tc := range map[string]struct {
		session           string
		seen, locked      time.Duration
		delay, ttl, start time.Duration
	}{
		"released":         {"", 0, 5, 9, 10, 5},
		"just seen":        {"s", 5, 5, 0, 10, 15},
		"seen for long":    {"s", 0, 50, 0, 10, 50},
		"delay is longer":  {"s", 5, 5, 20, 10, 25},
		"delay is shorter": {"s", 5, 5, 3, 10, 15},
	} {
		s := heartbeatSeen{heartbeatRow{session: tc.session, ttl: tc.ttl}, now.Add(tc.seen)}
		if got := s.leaseEnd(now.Add(tc.locked), tc.delay).Sub(now); got != tc.start {
			t.Errorf("%s: %d, want %d", name, got, tc.start)
		}
	}
	var s heartbeatSeen
	s.observe(heartbeatRow{heartbeatSeq: 1}, now)
	s.observe(heartbeatRow{heartbeatSeq: 1}, now.Add(5))
	if !s.at.Equal(now) {
		t.Error("the same record counts from when it was first seen")
	}
	s.observe(heartbeatRow{heartbeatSeq: 2}, now.Add(6))
	if !s.at.Equal(now.Add(6)) {
		t.Error("another row restarts the count")
	}
}

// The observer receives each change once, in any order of row and notifications.
func TestWatcher(t *testing.T) {
	t.Parallel()
	now, live := time.Now(), heartbeatRow{epoch: 5, heartbeatSeq: 1, session: "s", ttl: time.Second}
	held := func(n int64) change { return change{Epoch: n, Session: "s"} }
	var w watcher
	check := func(what string, want bool, _ client.Holder, ok bool) {
		t.Helper()
		if ok != want {
			t.Errorf("%s: delivered %v", what, ok)
		}
	}
	step := func(what string, want bool, c change) {
		t.Helper()
		h, ok := w.next(c)
		check(what, want, h, ok)
	}
	step("vacant at first", true, change{})
	step("still", false, change{})
	step("elected", true, held(5))
	step("the same", false, held(5))
	step("an older one", false, held(4))
	step("vacated", true, change{Epoch: 5})
	step("elected before it was vacated", false, held(5))
	step("the next", true, held(6))
	step("the next but one", true, held(8))
	live.epoch = 8
	h, ok := w.check(live, held(8), now)
	check("the row, as known", false, h, ok)
	h, ok = w.check(live, held(8), now.Add(time.Second))
	check("expired", true, h, ok)
	h, ok = w.check(live, held(8), now.Add(2*time.Second))
	check("still expired", false, h, ok)
	w.since = heartbeatSeen{} // a new connection
	h, ok = w.check(live, held(8), now.Add(2500*time.Millisecond))
	check("the same heartbeat by a new connection", false, h, ok)
	lost := live
	lost.heartbeatSeq--
	h, ok = w.check(lost, held(8), now.Add(2600*time.Millisecond))
	check("an older heartbeat of another server", false, h, ok)
	live.heartbeatSeq++
	h, ok = w.check(live, held(8), now.Add(3*time.Second))
	check("alive after all", true, h, ok)
	if h.Token != 8 {
		t.Errorf("%+v", h)
	}
}
