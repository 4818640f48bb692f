//go:build linux

package transport

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"northstar/cluster"
	"northstar/transport/crashdetect"
)

// The end of a peer's crash socket is the end of its process, confirmed by one dial; that of a connection to it alone
// is not.
func TestCrashSocketIsEvidence(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	socket, err := crashdetect.NewCrashSocket(ln)
	if err != nil {
		t.Skipf("this system gives no thread descriptors of its own: %v", err)
	}
	defer socket.Close()
	a := newEnd(t, "n1")
	b := newEnd(t, "n2", func(cfg *Config, _ *end) { cfg.CrashSocketPort = socket.Port() })
	acquaint(t, a, b)
	eventually(t, "the crash socket is reached",
		func() bool { return a.tr.monitors.CrashSocketOf("n2", "boot-n2") != "" })
	eventually(t, "the connection to it gives way to others, and is lost", func() bool {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(socket.Port())))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return len(a.lost()) > 0
	})
	if l := a.lost()[0]; l.Peer != "n2" || l.BootID != "boot-n2" {
		t.Errorf("lost %+v", l)
	}
	if alive := a.confirm("n2", "boot-n2"); alive != cluster.LivenessAlive {
		t.Errorf("a living process is %s", alive)
	}
	socket.Close()
	// On a busy machine the dial may take longer than one try; then the node answers.
	eventually(t, "a process without its crash socket is dead", func() bool {
		return a.tr.Confirm(t.Context(), "n2", "boot-n2") == cluster.LivenessDead
	})
	if alive := a.confirm("n2", "boot-before"); alive != cluster.LivenessRestarted {
		t.Errorf("an earlier process is %s", alive)
	}
}

// A firewall refuses each dial of a peer's crash socket. A node that was reached through its other port is alive.
func TestCrashSocketBehindAFirewall(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	a := newEnd(t, "n1", func(cfg *Config, _ *end) {
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			if strings.HasSuffix(addr, ":9") {
				dials.Add(1)
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	})
	b := newEnd(t, "n2", func(cfg *Config, _ *end) { cfg.CrashSocketPort = 9 })
	acquaint(t, a, b)
	eventually(t, "the crash socket is dialled", func() bool { return dials.Load() > 0 })
	if alive := a.confirm("n2", "boot-n2"); alive != cluster.LivenessAlive {
		t.Errorf("a living process is %s", alive)
	}
}
