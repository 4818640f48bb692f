package attach

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitSilence makes the kernel close a connection if the peer does not acknowledge sent data for d.
func limitSilence(conn net.Conn, d time.Duration) {
	control(conn, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// unacknowledged reports whether the peer has yet to acknowledge sent data.
func unacknowledged(conn net.Conn) bool {
	waiting := 0
	control(conn, func(fd int) { waiting, _ = unix.IoctlGetInt(fd, unix.SIOCOUTQ) })
	return waiting > 0
}

// control calls f with the connection's socket, if it has one.
func control(conn net.Conn, f func(fd int)) {
	own, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := own.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) }) // an error means that the connection is closed
	}
}
