//go:build linux

package transport

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setTCPOptions makes the kernel detect a dead peer: by keep-alives on an idle connection, by TCP_USER_TIMEOUT on one
// with unacknowledged data. It ignores connections that are not TCP.
func setTCPOptions(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	_ = tcp.SetKeepAliveConfig(keepAlive)
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(maxStall/time.Millisecond))
	})
}
