//go:build !linux

package transport

import (
	"net"
	"time"
)

// setTCPOptions makes the kernel find out about a dead peer by keep-alives. It does
// nothing to connections that are not TCP.
func setTCPOptions(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive)
	}
}

// preciseSleep sleeps for d, or as long as the timer takes.
func preciseSleep(d time.Duration) { time.Sleep(d) }
