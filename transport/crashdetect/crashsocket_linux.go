//go:build linux

package crashdetect

import (
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// CrashSocket is a listening socket that the kernel closes before all others when this process dies. A nil
// *CrashSocket is valid and does nothing.
type CrashSocket struct {
	port int
	once sync.Once
	stop int           // write end of a pipe; closing it ends the thread
	done chan struct{} // closed when the socket is closed
}

// NewCrashSocket opens a crash socket at the address of a listener, on a port that the kernel chooses. It returns nil
// if the listener is not TCP, and an error where the system allows no private descriptor table.
func NewCrashSocket(beside net.Listener) (*CrashSocket, error) {
	l, ok, err := listenBeside(beside)
	if !ok || err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	file, err := l.File() // another descriptor of the same socket, in blocking mode
	_ = l.Close()
	if err != nil {
		return nil, fmt.Errorf("crash socket: %w", err)
	}
	defer file.Close() // the thread has a copy by then
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("crash socket: %w", err)
	}
	c := &CrashSocket{port: port, stop: pipe[1], done: make(chan struct{})}
	listener, stop := int(file.Fd()), pipe[0]
	err = runWithPrivateFDs(func() {
		defer close(c.done)
		serve(listener, stop)
		_ = unix.Close(listener) // before done is closed
	}, listener, stop)
	_ = unix.Close(pipe[0])
	if err != nil {
		_ = unix.Close(c.stop)
		return nil, fmt.Errorf("crash socket: %w", err)
	}
	return c, nil
}

// Port returns the port of the socket; 0 if there is none.
func (c *CrashSocket) Port() int {
	if c == nil {
		return 0
	}
	return c.port
}

// Close closes the socket. It may be called again.
func (c *CrashSocket) Close() {
	if c == nil {
		return
	}
	c.once.Do(func() { _ = unix.Close(c.stop) })
	<-c.done
}

// retryPause is the delay after a failed system call, so that the thread never spins.
const retryPause = time.Millisecond

// serve accepts connections and keeps them until they end, or stop is closed.
func serve(listener, stop int) {
	fds := []unix.PollFd{{Fd: int32(stop), Events: unix.POLLIN}, {Fd: int32(listener), Events: unix.POLLIN}}
	const first = 2 // of the connections
	defer func() {
		for _, f := range fds[first:] {
			_ = unix.Close(int(f.Fd))
		}
	}()
	for {
		if _, err := unix.Poll(fds, -1); err != nil { // a signal, or no memory
			PreciseSleep(retryPause)
			continue
		}
		if fds[0].Revents != 0 {
			return
		}
		accept := fds[1].Revents != 0
		live := fds[:first]
		for _, f := range fds[first:] {
			if f.Revents != 0 { // the connection has ended, or has sent data, which no peer does
				_ = unix.Close(int(f.Fd))
				continue
			}
			live = append(live, f)
		}
		fds = live
		if !accept {
			continue
		}
		conn, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			PreciseSleep(retryPause) // such as too many open files
			continue
		}
		if len(fds) == first+maxHeld {
			_ = unix.Close(int(fds[first].Fd))
			fds = append(fds[:first], fds[first+1:]...)
		}
		fds = append(fds, unix.PollFd{Fd: int32(conn), Events: unix.POLLIN | unix.POLLRDHUP})
	}
}
