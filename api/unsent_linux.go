package api

import (
	"net"

	"golang.org/x/sys/unix"
)

// limitUnsent limits what the kernel holds of the bytes that were written to a connection and not sent yet. It would
// keep some megabytes for each client that does not read, and all connections of a machine share that memory. It
// ignores connections that are not TCP.
func limitUnsent(socket net.Conn) {
	tcp, ok := socket.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
	})
}
