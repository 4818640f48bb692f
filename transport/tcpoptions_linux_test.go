//go:build linux

package transport

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTune(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	setTCPOptions(conn)
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	get := func(option int) (v int) {
		_ = raw.Control(func(fd uintptr) { v, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) })
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := get(unix.TCP_USER_TIMEOUT); v != int(maxStall/time.Millisecond) {
		t.Errorf("user timeout %d ms", v)
	}
	if idle, every, n := get(unix.TCP_KEEPIDLE), get(unix.TCP_KEEPINTVL), get(unix.TCP_KEEPCNT); idle != 3 ||
		every != 1 || n != 3 {
		t.Errorf("keep-alive %d %d %d", idle, every, n)
	}
	setTCPOptions(nil) // and leaves alone what is not TCP
}
