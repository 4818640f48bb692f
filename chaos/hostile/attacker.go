package hostile

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// taskEnv makes a program that calls AsAttacker an attacker. Its value is the task. Attackers are processes of their
// own: they have their own limit of open files, and do not slow down what is measured.
const taskEnv = "NORTHSTAR_HOSTILE_TASK"

// task is what one process does of an attack.
type task struct {
	Attack      string
	First, Size int    // its requests or connections
	HTTP, Raft  string // addresses of the attacked node
	Etcd        string // "": it does not serve the etcd API
	Tokens      []string
}

// tally is the output of an attacker at its end.
type tally struct {
	Open  int64         `json:"open"` // connections at the end
	Tried int64         `json:"tried"`
	Calls int64         `json:"calls"` // that were made as the attack wants them, on connections with several
	Codes map[int]int64 `json:"codes"` // answers by status
}

// lineReady is the first line of an attacker's output: everything is in place, or a flood begins.
const lineReady = "ready"

// attacker does a task.
type attacker struct {
	task
	attack  Attack
	ready   func()
	dialing chan struct{} // bounds the connections that are being made
	open    atomic.Int64
	tried   atomic.Int64
	calls   atomic.Int64

	mu    sync.Mutex
	codes map[int]int64
}

// AsAttacker runs the task of this process if it has one. It returns when the task is done or standard input ends.
func AsAttacker() (code int, is bool) {
	text := os.Getenv(taskEnv)
	if text == "" {
		return 0, false
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := doTask(ctx, text, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func doTask(ctx context.Context, text string, out io.Writer) error {
	a := attacker{dialing: make(chan struct{}, 64), codes: map[int]int64{}}
	if err := json.Unmarshal([]byte(text), &a.task); err != nil {
		return err
	}
	all := Attacks()
	i := slices.IndexFunc(all, func(x Attack) bool { return x.Name == a.Attack })
	if i < 0 {
		return fmt.Errorf("no attack %q", a.Attack)
	}
	a.attack = all[i]
	a.ready = sync.OnceFunc(func() { fmt.Fprintln(out, lineReady) })
	if err := a.attack.run(ctx, &a); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return json.NewEncoder(out).Encode(tally{
		Open: a.open.Load(), Tried: a.tried.Load(), Calls: a.calls.Load(), Codes: a.codes,
	})
}

// address returns the source address of a caller of the attacker.
func address(caller int) net.IP { return net.IPv4(127, 1, byte(caller/250), byte(1+caller%250)) }

// caller returns the number of the identity, and of the address, of the i-th request.
func (a *attacker) caller(i int) int { return i % a.attack.Callers }

// authorization returns the header line of the i-th request.
func (a *attacker) authorization(i int) string {
	return "Authorization: Bearer " + a.Tokens[a.caller(i)] + "\r\n"
}

// dial connects to the node's API from the address of the i-th request.
func (a *attacker) dial(ctx context.Context, i int) (net.Conn, error) {
	conn, err := a.dialTo(ctx, a.HTTP, i)
	if err != nil || !a.attack.TLS {
		return conn, err
	}
	secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = secured.Close()
		return nil, err
	}
	return secured, nil
}

func (a *attacker) dialTo(ctx context.Context, addr string, i int) (net.Conn, error) {
	a.tried.Add(1)
	d := dialer(address(a.caller(i)))
	d.Timeout = 10 * time.Second
	return d.DialContext(ctx, "tcp", addr)
}

// dialer returns a dialer with a source address (Linux). The kernel chooses the port when it knows the destination: it
// would have to find one that is unused for all destinations otherwise, which takes much longer.
func dialer(from net.IP) *net.Dialer {
	return &net.Dialer{
		LocalAddr: &net.TCPAddr{IP: from},
		Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
			})
		},
	}
}

// count counts an answer.
func (a *attacker) count(code int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.codes[code]++
}

// retryAfter is how long an attacker waits before it replaces a connection that the node has closed.
const retryAfter = 5 * time.Second

// holder makes the i-th connection and calls placed when it is in place. It returns when the connection has ended.
type holder func(ctx context.Context, a *attacker, i int, placed func()) error

// held returns an attack that holds connections open, and replaces those that the node closes.
func held(hold holder) func(context.Context, *attacker) error {
	return func(ctx context.Context, a *attacker) error {
		var all, waiting sync.WaitGroup
		for i := a.First; i < a.First+a.Size; i++ {
			waiting.Add(1)
			placed := sync.OnceFunc(waiting.Done)
			all.Go(func() {
				for ctx.Err() == nil {
					a.holdOne(ctx, i, placed, hold)
					placed() // or refused
					wait(ctx, retryAfter)
				}
			})
		}
		waiting.Wait()
		a.ready()
		all.Wait()
		return nil
	}
}

func (a *attacker) holdOne(ctx context.Context, i int, placed func(), hold holder) {
	select {
	case a.dialing <- struct{}{}:
	case <-ctx.Done():
		return
	}
	dialed := sync.OnceFunc(func() { <-a.dialing })
	defer dialed()
	_ = hold(ctx, a, i, func() { dialed(); placed() }) // the node may close any connection
}

// keep counts an open connection until it or ctx ends. It reads nothing.
func (a *attacker) keep(ctx context.Context, conn net.Conn, again func() error) {
	a.open.Add(1)
	defer func() {
		if ctx.Err() == nil {
			a.open.Add(-1) // the rest is open at the end
		}
	}()
	for ctx.Err() == nil {
		wait(ctx, time.Second)
		if again() != nil {
			return
		}
	}
}

// flood returns an attack that calls one for each of its requests, by some workers at a time.
func flood(
	workers int, one func(ctx context.Context, a *attacker, w *worker, i int) error,
) func(context.Context, *attacker) error {
	return func(ctx context.Context, a *attacker) error {
		a.ready()
		var next atomic.Int64
		var all sync.WaitGroup
		for n := range workers {
			all.Go(func() {
				w := &worker{number: n}
				defer w.close()
				for ctx.Err() == nil {
					i := int(next.Add(1)) - 1
					if i >= a.Size {
						return
					}
					if err := one(ctx, a, w, a.First+i); err != nil {
						w.close() // the next request has a new connection
					}
				}
			})
		}
		all.Wait()
		return nil
	}
}

// worker makes one request after the other, on one connection if it can.
type worker struct {
	number int
	conn   net.Conn
	read   *bufio.Reader

	h2    *h2           // on conn
	ended <-chan uint32 // streams of h2 that the node has ended
}

func (w *worker) close() {
	if w.conn != nil {
		_ = w.conn.Close()
		w.conn = nil
	}
}

// errClosing is the result of a request whose connection serves no other one.
var errClosing = errors.New("connection ends")

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
