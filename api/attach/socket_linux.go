package attach

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitSilence makes the kernel give up a connection whose client's machine has
// not acknowledged what it was sent for d.
func limitSilence(conn net.Conn, d time.Duration) {
	control(conn, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// unacknowledged says whether the client's machine has yet to acknowledge
// something that it was sent.
func unacknowledged(conn net.Conn) bool {
	waiting := 0
	control(conn, func(fd int) { waiting, _ = unix.IoctlGetInt(fd, unix.SIOCOUTQ) })
	return waiting > 0
}

// control calls f with the connection's socket, if it is one.
func control(conn net.Conn, f func(fd int)) {
	own, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := own.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) }) // it is closed: nothing to ask it
	}
}
