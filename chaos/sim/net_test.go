package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

// twoHosts boots a and b, with a connection from a to b.
func twoHosts(t *testing.T, opt NetOptions) (n *Net, a, b *Proc, ca, cb net.Conn) {
	t.Helper()
	n = NewNet(1, opt)
	a, b = n.Host("a").Boot(), n.Host("b").Boot()
	l, err := b.Listen("b:1")
	if err != nil {
		t.Fatal(err)
	}
	ca, err = a.Dial(context.Background(), "b:1")
	if err != nil {
		t.Fatal(err)
	}
	cb, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return n, a, b, ca, cb
}

// bubble runs f in virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t) })
}

func mustWrite(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatalf("write %q: %v", s, err)
	}
}

func mustRead(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("read: %v, want %q", err, want)
	}
	if string(got) != want {
		t.Fatalf("read %q, want %q", got, want)
	}
}

// closeAll closes both ends and lets what is in flight arrive.
func closeAll(conns ...net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
	time.Sleep(time.Second)
}

// The conformance suite for net.Conn, in real time.
func TestConnConformance(t *testing.T) {
	opt := NetOptions{
		Latency: 10 * time.Microsecond, Jitter: 10 * time.Microsecond, Window: 64 << 10,
		DeadAfter: time.Minute,
	}
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		n := NewNet(1, opt)
		a, b := n.Host("a").Boot(), n.Host("b").Boot()
		l, err := b.Listen("b:1")
		if err != nil {
			return nil, nil, nil, err
		}
		c1, err = a.Dial(context.Background(), "b:1")
		if err != nil {
			return nil, nil, nil, err
		}
		c2, err = l.Accept()
		return c1, c2, func() { _ = c1.Close(); _ = c2.Close(); _ = l.Close() }, err
	})
}

func TestConnOrderAndLatency(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opt := NetOptions{
			Latency: 5 * time.Millisecond, Jitter: 4 * time.Millisecond, Window: 1 << 20,
			DeadAfter: time.Second,
		}
		_, _, _, ca, cb := twoHosts(t, opt)
		start := time.Now()
		var want bytes.Buffer
		for i := range 200 {
			chunk := bytes.Repeat([]byte{byte(i)}, i+1)
			want.Write(chunk)
			if _, err := ca.Write(chunk); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, want.Len())
		if _, err := io.ReadFull(cb, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want.Bytes()) {
			t.Error("bytes came out of order")
		}
		if d := time.Since(start); d < 5*time.Millisecond || d > 9*time.Millisecond {
			t.Errorf("took %v, want 5 to 9 ms", d)
		}
		closeAll(ca, cb)
	})
}

func TestWriteBlocksWhenWindowIsFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opt := DefaultNetOptions()
		opt.Window = 1000
		_, _, _, ca, cb := twoHosts(t, opt)
		_ = ca.SetWriteDeadline(time.Now().Add(time.Second))
		k, err := ca.Write(make([]byte, 1500))
		if k != 1000 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Write = %d, %v; want 1000 bytes and the deadline", k, err)
		}
		_ = ca.SetWriteDeadline(time.Time{})
		done := make(chan error, 1)
		go func() {
			_, err := ca.Write(make([]byte, 500))
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Write returned %v with a full window", err)
		default:
		}
		if _, err := io.ReadFull(cb, make([]byte, 1500)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		closeAll(ca, cb)
	})
}

func TestDeadlineWakesBlockedCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, _, ca, cb := twoHosts(t, DefaultNetOptions())
		start := time.Now()
		done := make(chan error, 1)
		go func() {
			_, err := ca.Read(make([]byte, 1))
			done <- err
		}()
		synctest.Wait()
		_ = ca.SetReadDeadline(start.Add(70 * time.Millisecond))
		err := <-done
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read = %v, want the deadline", err)
		}
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("%v is no timeout", err)
		}
		if d := time.Since(start); d != 70*time.Millisecond {
			t.Errorf("woke after %v", d)
		}
		_ = ca.SetReadDeadline(time.Time{}) // the connection is still good
		mustWrite(t, cb, "x")
		mustRead(t, ca, "x")
		closeAll(ca, cb)
	})
}

func TestCloseGivesEOFAfterData(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, _, ca, cb := twoHosts(t, DefaultNetOptions())
		mustWrite(t, ca, "last words")
		_ = ca.Close()
		mustRead(t, cb, "last words")
		if _, err := cb.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read = %v, want EOF", err)
		}
		mustWrite(t, cb, "to nobody") // is answered with a reset
		time.Sleep(10 * time.Millisecond)
		if _, err := cb.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Write after the reset = %v", err)
		}
		if _, err := ca.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read of a closed connection = %v", err)
		}
		closeAll(cb)
	})
}

func TestKillResetsPeers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n, _, b, ca, cb := twoHosts(t, DefaultNetOptions())
		b.Kill(false)
		if _, err := cb.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dead end: Read = %v", err)
		}
		start := time.Now()
		if _, err := ca.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("peer: Read = %v", err)
		}
		if d := time.Since(start); d > time.Millisecond {
			t.Errorf("the peer heard after %v", d)
		}
		if _, err := ca.(*conn).proc.Dial(context.Background(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial to a machine without the process = %v", err)
		}
		start = time.Now()
		if _, err := b.Dial(context.Background(), "a:1"); err == nil || time.Since(start) == 0 {
			t.Errorf("a dead process's Dial = %v after %v: the caller would spin", err, time.Since(start))
		}
		if _, err := n.Host("b").Boot().Listen("b:1"); err != nil {
			t.Errorf("the next process cannot listen: %v", err)
		}
	})
}

func TestPowerLossIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opt := DefaultNetOptions()
		n, a, b, ca, _ := twoHosts(t, opt)
		b.Kill(true)
		start := time.Now()
		mustWrite(t, ca, "into the void")
		_, err := ca.Read(make([]byte, 1))
		if d := time.Since(start); !errors.Is(err, syscall.ETIMEDOUT) || d < opt.DeadAfter || d > opt.DeadAfter*5/4 {
			t.Errorf("Read = %v after %v", err, d)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := a.Dial(ctx, "b:1"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Dial to a machine without power = %v", err)
		}
		_ = n
	})
}

func TestPowerBackResetsOnSend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n, _, b, ca, _ := twoHosts(t, DefaultNetOptions())
		b.Kill(true)
		time.Sleep(50 * time.Millisecond)
		n.Host("b").Boot()
		mustWrite(t, ca, "are you there")
		if _, err := ca.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Read = %v, want a reset", err)
		}
	})
}

func TestCutHoldsBytesUntilHeal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n, _, _, ca, cb := twoHosts(t, DefaultNetOptions())
		n.Cut("a", "b")
		mustWrite(t, ca, "delayed") // into the kernel's buffer
		mustWrite(t, cb, "through") // the other way is open
		mustRead(t, ca, "through")
		_ = cb.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := cb.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Read across a cut = %v", err)
		}
		_ = cb.SetReadDeadline(time.Time{})
		n.Heal("a", "b")
		mustWrite(t, ca, " and after")
		mustRead(t, cb, "delayed and after")
		time.Sleep(5 * time.Second) // the armed death was disarmed
		mustWrite(t, ca, "alive")
		mustRead(t, cb, "alive")
		closeAll(ca, cb)
	})
}

func TestCutKillsConnectionsInTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n, _, _, ca, cb := twoHosts(t, DefaultNetOptions())
		n.Cut("b", "a")
		for _, c := range []net.Conn{ca, cb} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("Read = %v, want ETIMEDOUT", err)
			}
		}
		n.HealAll()
	})
}

func TestDialWaitsOutACut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := NewNet(1, DefaultNetOptions())
		a, b := n.Host("a").Boot(), n.Host("b").Boot()
		if _, err := a.Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial without a listener = %v", err)
		}
		l, _ := b.Listen("b:1")
		n.Cut("b", "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := a.Dial(ctx, "b:1"); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Dial across a cut = %v after %v", err, time.Since(start))
		}
		time.AfterFunc(time.Second, n.HealAll)
		c, err := a.Dial(t.Context(), "b:1")
		if err != nil {
			t.Fatalf("Dial after the heal = %v", err)
		}
		_ = l.Close() // resets the connections that were not accepted
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Read = %v", err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept = %v", err)
		}
	})
}

func TestFreezeStopsTheProcessNotTheKernel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, b, ca, cb := twoHosts(t, DefaultNetOptions())
		b.Freeze()
		mustWrite(t, ca, "buffered")
		c2, err := a.Dial(t.Context(), "b:1") // into the backlog
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan time.Duration, 1)
		start := time.Now()
		go func() {
			_, _ = cb.Read(make([]byte, 8))
			got <- time.Since(start)
		}()
		time.Sleep(time.Second)
		b.Thaw()
		if d := <-got; d != time.Second {
			t.Errorf("Read returned after %v", d)
		}
		closeAll(ca, cb, c2)
	})
}

func TestSameSeedSameDelays(t *testing.T) {
	run := func(seed uint64) (ds []time.Duration) {
		n := NewNet(seed, DefaultNetOptions())
		for range 20 {
			ds = append(ds, n.delay("a", "b"))
		}
		return ds
	}
	a, b, c := run(1), run(1), run(2)
	same := 0
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("seed 1 gave %v and %v", a[i], b[i])
		}
		if a[i] == c[i] {
			same++
		}
	}
	if same > 2 {
		t.Errorf("seeds 1 and 2 gave %d equal delays of %d", same, len(a))
	}
}

// A firewall's reset looks like a dead process, in one direction.
func TestReject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1, DefaultNetOptions())
		a, b := n.Host("a").Boot(), n.Host("b").Boot()
		for _, p := range []*Proc{a, b} {
			if _, err := p.Listen(p.host.name + ":1"); err != nil {
				t.Fatal(err)
			}
		}
		c, err := a.Dial(t.Context(), "b:1")
		if err != nil {
			t.Fatal(err)
		}
		n.Reject("a", "b")
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("of an open connection: %v", err)
		}
		if _, err := a.Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialling: %v", err)
		}
		if c, err := b.Dial(t.Context(), "a:1"); err != nil {
			t.Errorf("dialling back: %v", err)
		} else {
			_ = c.Close()
		}
		n.HealAll()
		if c, err := a.Dial(t.Context(), "b:1"); err != nil {
			t.Errorf("after the end: %v", err)
		} else {
			_ = c.Close()
		}
	})
}
