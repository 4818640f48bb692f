// Package crashdetect finds out that a process has died, before its connections end.
//
// The kernel closes the connections of a killed process only after it has torn down its memory: 2 ms at 25 MB, 30 ms
// at 400 MB. A CrashSocket is a listening socket that the kernel closes first. Each peer keeps one silent connection
// to it (Hold). The end of that connection is the first sign of the process's death, and a refused dial confirms it
// (DeathCheck).
//
// The socket belongs to one thread with a private descriptor table. The kernel closes that table when the thread
// exits, before it frees the shared memory.
package crashdetect

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// maxHeld bounds the connections that a CrashSocket holds; a new one replaces the oldest.
const maxHeld = 128

// Dial opens a connection.
type Dial func(ctx context.Context, addr string) (net.Conn, error)

// listenBeside opens another port at a listener's address. ok is false if it is not a TCP listener.
func listenBeside(beside net.Listener) (l *net.TCPListener, ok bool, err error) {
	addr, ok := beside.Addr().(*net.TCPAddr)
	if _, isTCP := beside.(*net.TCPListener); !ok || !isTCP {
		return nil, false, nil
	}
	l, err = net.ListenTCP("tcp", &net.TCPAddr{IP: addr.IP, Zone: addr.Zone})
	return l, true, err
}

// Hold connects to a crash socket within timeout, and returns when the connection or ctx has ended. connected reports
// whether there was a connection; cause is why it ended, or why there was none.
func Hold(ctx context.Context, dial Dial, addr string, timeout time.Duration) (connected bool, cause error) {
	limit, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := dial(limit, addr)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_, err = conn.Read(make([]byte, 1))
	return true, err
}

// ProcessEnded reports whether a connection ended the way the kernel ends the connections of a dead process.
func ProcessEnded(cause error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(cause, e) {
			return true
		}
	}
	return false
}
