//go:build !linux

package transport

import "net"

// setTCPOptions makes the kernel find out about a dead peer by keep-alives. It does
// nothing to connections that are not TCP.
func setTCPOptions(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive)
	}
}
