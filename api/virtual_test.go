package api

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"northstar/chaos/testenv"
)

// A test of virtual runs in virtual time: its waits cost nothing, and a busy machine
// changes nothing. Its servers are connected in memory, as real connections would stop
// the clock.

// virtualTests holds the *testing.T of each such test.
var virtualTests sync.Map

// resolve looks a name up outside virtual time. Package net reads its settings at the first look-up, with a channel
// that no other test of virtual may use if one of them has made it.
var resolve = sync.OnceFunc(func() { _, _ = net.LookupHost("localhost") })

// virtual runs a test in virtual time.
func virtual(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	resolve()
	synctest.Test(t, func(t *testing.T) {
		virtualTests.Store(t, true)
		defer virtualTests.Delete(t)
		test(t)
	})
}

// virtually runs a subtest in virtual time.
func virtually(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { virtual(t, test) })
}

// memoryListeners are the listeners of virtual tests, by address.
var (
	memoryListeners sync.Map
	memoryAddresses atomic.Int64
)

// listen returns a listener on an address of its own.
func listen(t *testing.T) net.Listener {
	t.Helper()
	if _, ok := virtualTests.Load(t); ok {
		l := &memoryListener{addr: unusedAddress(t), conns: make(chan net.Conn), closed: make(chan struct{})}
		memoryListeners.Store(l.addr, l)
		return l
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// unusedAddress returns an address at which no server listens.
func unusedAddress(*testing.T) string {
	n := memoryAddresses.Add(1)
	return fmt.Sprintf("127.0.%d.%d:7701", n/250+1, n%250+1)
}

// dialMemory connects to a listener of the same test, and others by TCP.
func dialMemory(ctx context.Context, addr string) (net.Conn, error) {
	l, ok := memoryListeners.Load(addr)
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return l.(*memoryListener).dial(ctx)
}

type memoryListener struct {
	addr   string
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.closed); memoryListeners.Delete(l.addr) })
	return nil
}

func (l *memoryListener) Addr() net.Addr { return memoryAddr(l.addr) }

func (l *memoryListener) dial(ctx context.Context) (net.Conn, error) {
	server, client := net.Pipe()
	select {
	case l.conns <- memoryConn{server, "127.0.0.1:5", l.addr}:
		return memoryConn{client, l.addr, "127.0.0.1:5"}, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memoryConn struct {
	net.Conn
	remote, local string
}

func (c memoryConn) RemoteAddr() net.Addr { return memoryAddr(c.remote) }
func (c memoryConn) LocalAddr() net.Addr  { return memoryAddr(c.local) }

type memoryAddr string

func (memoryAddr) Network() string  { return "tcp" }
func (a memoryAddr) String() string { return string(a) }

// eventually waits for a condition.
func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Slowdown() * 30 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			t.Fatal("condition did not come true")
		}
		time.Sleep(time.Millisecond)
	}
}
