//go:build !linux

package transport

import "net"

// setTCPOptions makes the kernel detect a dead peer by keep-alives. It ignores connections that are not TCP.
func setTCPOptions(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive)
	}
}
