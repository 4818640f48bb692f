//go:build linux

package crashdetect

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newCrashSocket opens a listener and a crash socket beside it. The test closes both.
func newCrashSocket(t *testing.T) (net.Listener, *CrashSocket) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c, err := NewCrashSocket(l)
	if err != nil {
		t.Skipf("this system gives no thread descriptors of its own: %v", err)
	}
	t.Cleanup(c.Close)
	return l, c
}

func socketAddr(c *CrashSocket) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port())) }

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ends reports whether the other side ends the connection within the time.
func ends(conn net.Conn, within time.Duration) bool {
	_ = conn.SetReadDeadline(time.Now().Add(within))
	_, err := conn.Read(make([]byte, 1))
	return ProcessEnded(err)
}

// A crash socket holds connections until it is closed, and leaves nothing behind.
func TestCrashSocket(t *testing.T) {
	l, c := newCrashSocket(t)
	conn := dial(t, socketAddr(c))
	other := dial(t, socketAddr(c))
	if ends(conn, 20*time.Millisecond) {
		t.Fatal("the connection was not held")
	}
	if _, err := other.Write([]byte("x")); err != nil || !ends(other, 10*time.Second) {
		t.Error("one that says something is kept")
	}
	// The thread keeps no copy of other descriptors, so this closes the listener completely.
	_ = l.Close()
	if late, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = late.Close()
		t.Error("the listener beside it is still open")
	}
	c.Close()
	c.Close()
	if !ends(conn, 10*time.Second) {
		t.Error("the connection outlives the crash socket")
	}
	if late, err := net.Dial("tcp", socketAddr(c)); err == nil {
		_ = late.Close()
		t.Error("it listens after its end")
	}
}

func TestCrashSocketHoldsABoundedNumber(t *testing.T) {
	_, c := newCrashSocket(t)
	first := dial(t, socketAddr(c))
	for range maxHeld {
		dial(t, socketAddr(c))
	}
	if !ends(first, 10*time.Second) {
		t.Error("the oldest was kept")
	}
}

// TestDyingProcess is no test, but the process that startDying starts.
func TestDyingProcess(*testing.T) {
	with := os.Getenv("NORTHSTAR_DYING")
	if with == "" {
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	watch := l.Addr().String()
	if with == "crash socket" {
		var c *CrashSocket
		if c, err = NewCrashSocket(l); err == nil {
			watch = socketAddr(c)
		}
	}
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) // large pages are torn down in no time
	memory := make([]byte, 128<<20)
	for i := 0; with != "a busy loop" && i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	if err != nil {
		fmt.Println("skip", err)
		os.Exit(0)
	}
	fmt.Println("at", l.Addr(), watch)
	for n := 0; with == "a busy loop"; n++ { // it wants the processor until it is killed
		runtime.KeepAlive(n)
	}
	var conns []net.Conn // kept, like the memory
	for {
		conn, err := l.Accept()
		if err != nil {
			panic(err)
		}
		conns = append(conns, conn)
		runtime.KeepAlive(conns)
		runtime.KeepAlive(memory)
	}
}

// startDying starts a process with much memory. It returns the addresses of its listener and of its crash socket;
// without one both are the same.
func startDying(t *testing.T, with string) (cmd *exec.Cmd, listener, crashSocket string) {
	t.Helper()
	cmd = exec.Command(os.Args[0], "-test.run", "^TestDyingProcess$")
	cmd.Env = append(os.Environ(), "NORTHSTAR_DYING="+with)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, scanErr := fmt.Sscanf(line, "at %s %s", &listener, &crashSocket); scanErr != nil {
		t.Skip(line, err)
	}
	return cmd, listener, crashSocket
}

// killProcess kills a process that has a crash socket. It returns how long its connection and the one to its crash
// socket lasted after that.
func killProcess(t *testing.T) (connection, crashSocket time.Duration) {
	t.Helper()
	cmd, main, watch := startDying(t, "crash socket")
	var at [2]time.Time
	var watching sync.WaitGroup
	for i, conn := range []net.Conn{dial(t, main), dial(t, watch)} {
		watching.Go(func() {
			ends(conn, 30*time.Second)
			at[i] = time.Now()
		})
	}
	killed := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	watching.Wait()
	return at[0].Sub(killed), at[1].Sub(killed)
}

// A killed process that has a crash socket is reaped as soon as any other, also on a machine that has no processor
// time to spare. A process with a thread that the kernel runs only after all others is not: tearing its memory down
// takes many times as long.
func TestKilledProcessIsReapedSoon(t *testing.T) {
	for range 2 * runtime.NumCPU() {
		startDying(t, "a busy loop")
	}
	reaped := func(with string) time.Duration {
		cmd, _, _ := startDying(t, with)
		killed := time.Now()
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		return time.Since(killed)
	}
	const tries, margin = 5, 3
	var plain, took time.Duration
	for range tries {
		plain = max(plain, reaped("nothing"))
		if took = reaped("crash socket"); took < margin*plain {
			t.Logf("%v, without a crash socket %v", took, plain)
			return
		}
	}
	t.Errorf("in none of %d tries: the last took %v, without a crash socket %v at most", tries, took, plain)
}

// The crash socket of a process that is killed ends before its other connections: the kernel tears the memory down in
// between. On a busy machine the socket's thread may happen to be the one that does it.
func TestCrashSocketGoesFirst(t *testing.T) {
	const tries = 10
	for range tries {
		if connection, crashSocket := killProcess(t); connection-crashSocket > time.Millisecond {
			t.Logf("%v before", connection-crashSocket)
			return
		}
	}
	t.Errorf("in none of %d processes", tries)
}
