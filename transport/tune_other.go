//go:build !linux

package transport

import (
	"net"
	"time"
)

// tune makes the kernel find out about a dead peer by keep-alives. It does
// nothing to connections that are not TCP.
func tune(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive)
	}
}

// shortPause sleeps for d, or as long as the timer takes.
func shortPause(d time.Duration) { time.Sleep(d) }
