package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"northstar/chaos/pg"
	"northstar/chaos/testenv"
	"northstar/client"
)

const shortTTL = minTTL

// testTimeout is for steps that are fast on an idle machine.
var testTimeout = testenv.Slowdown() * 20 * time.Second

var (
	serverOnce sync.Once
	theServer  *pg.Server
	serverErr  error
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(asHolder); dsn != "" {
		if err := holdRole(dsn); err != nil {
			fmt.Println(err)
		}
		return
	}
	code := m.Run()
	if theServer != nil {
		if err := theServer.Stop(); err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}

// server returns the server that all tests share.
func server(t *testing.T) *pg.Server {
	t.Helper()
	serverOnce.Do(func() { theServer, serverErr = pg.Start(context.Background()) })
	if errors.Is(serverErr, pg.ErrNone) {
		t.Skip(serverErr)
	}
	if serverErr != nil {
		t.Fatal(serverErr)
	}
	return theServer
}

// do runs one statement on its own connection.
func do(t *testing.T, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// candidate returns an elector for the test's own role.
func candidate(t *testing.T, name string, change func(*Config)) *Elector {
	t.Helper()
	cfg := Config{
		DSN: server(
			t,
		).DSN(), Role: role(t), Name: name, TTL: shortTTL, BackoffMin: 5 * time.Millisecond,
		BackoffMax: 50 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		_ = e.Close(ctx) // it may not reach the server
	})
	return e
}

// role returns a role name for the test.
func role(t *testing.T) string {
	var b []byte
	for _, c := range []byte(t.Name()) {
		if c == '/' || c == '#' {
			c = '.'
		}
		b = append(b, c)
	}
	return string(b)
}

// tenureLog checks all tenures of one role: tokens grow, and no two deadlines overlap.
type tenureLog struct {
	t  *testing.T
	mu sync.Mutex
	ls []*client.Leadership
}

// enter records a new tenure. A candidate may enter its own tenure again.
func (b *tenureLog) enter(l *client.Leadership) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, old := range b.ls {
		switch valid := old.ValidFor(); {
		case old.Token == l.Token && old.Session == l.Session:
		case old.Token >= l.Token:
			b.t.Errorf("token %d of %s after %d of %s", l.Token, l.Name, old.Token, old.Name)
		case valid > 0:
			b.t.Errorf("%s is elected while %s may act for %v", l.Name, old.Name, valid)
		}
	}
	b.ls = append(b.ls, l)
}

func (b *tenureLog) campaign(e *Elector) *client.Leadership {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), testTimeout)
	defer cancel()
	l, err := e.Campaign(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	b.enter(l)
	return l
}

// later campaigns in the background. If the campaign fails, it closes the channel and fails the test.
func (b *tenureLog) later(e *Elector) <-chan *client.Leadership {
	elected := make(chan *client.Leadership, 1)
	go func() {
		defer close(elected)
		ctx, cancel := context.WithTimeout(b.t.Context(), testTimeout)
		defer cancel()
		l, err := e.Campaign(ctx)
		if err != nil {
			b.t.Error(err)
			return
		}
		b.enter(l)
		elected <- l
	}()
	return elected
}

// done waits for the end of a tenure.
func done(t *testing.T, l *client.Leadership, cause error) {
	t.Helper()
	select {
	case <-l.Done():
	case <-time.After(testTimeout):
		t.Fatalf("the tenure of %s does not end", l.Name)
	}
	if err := l.Cause(); !errors.Is(err, cause) {
		t.Errorf("it ended: %v, want %v", err, cause)
	}
}

// proxy forwards bytes to the server. After a cut it accepts data but forwards none.
type proxy struct {
	l     net.Listener
	mu    sync.Mutex
	cut   bool
	ended bool
	wait  sync.WaitGroup
	all   []net.Conn
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l}
	to := server(t).Address()
	p.wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			p.mu.Lock()
			p.all = append(p.all, c, s)
			if p.ended { // it was accepted before that
				c.Close()
				s.Close()
			}
			p.mu.Unlock()
			p.wait.Go(func() { p.pass(s, c) })
			p.wait.Go(func() { p.pass(c, s) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.ended = true
		for _, c := range p.all {
			c.Close()
		}
		p.mu.Unlock()
		p.wait.Wait()
	})
	return p
}

func (p *proxy) pass(to, from net.Conn) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if p.silent() {
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if n > 0 {
			_, _ = to.Write(buf[:n]) // the other goroutine handles its errors
		}
		if err != nil {
			to.Close()
			return
		}
	}
}

func (p *proxy) silent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

// reset closes the clients' ends of all connections. The server does not learn of it while the network is cut.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := 0; i < len(p.all); i += 2 {
		p.all[i].Close()
	}
}

// connections returns the number of connections so far.
func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all) / 2
}

// set cuts the network, or allows new connections again.
func (p *proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
}

func (p *proxy) dsn() string { return pg.DSN(p.l.Addr().String()) }
