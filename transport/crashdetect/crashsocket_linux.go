//go:build linux

package crashdetect

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// CrashSocket is a listening socket that the kernel closes first when this process dies. nil is valid and does nothing.
type CrashSocket struct {
	port int
	once sync.Once
	stop int           // write end of a pipe; closing it ends the thread
	done chan struct{} // closed when the socket is closed
}

// NewCrashSocket opens a crash socket at the address of a listener, on a port that the kernel chooses. It returns nil
// if the listener is not TCP, and an error where the system allows no private descriptor table.
func NewCrashSocket(beside net.Listener) (*CrashSocket, error) {
	if _, isTCP := beside.(*net.TCPListener); !isTCP {
		return nil, nil
	}
	addr := beside.Addr().(*net.TCPAddr)
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: addr.IP, Zone: addr.Zone})
	if err != nil {
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

// runWithPrivateFDs starts do on a thread with a private descriptor table, which holds only keep, its copies by then.
// The thread ends with do: no other goroutine could run on it. An error means that do was not started.
func runWithPrivateFDs(do func(), keep ...int) error {
	ready := make(chan error)
	go privateFDThread(do, keep, ready)
	return <-ready
}

func privateFDThread(do func(), keep []int, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The first thread cannot end, and /proc shows its descriptors as the process's. While this goroutine is
		// locked to it, a new goroutine runs on another thread.
		defer runtime.UnlockOSThread()
		ready <- runWithPrivateFDs(do, keep...)
		return
	}
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		runtime.UnlockOSThread() // nothing has changed
		ready <- err
		return
	}
	err := closeOthers(keep...)
	ready <- err
	if err == nil {
		do()
	}
}

// closeOthers closes this thread's copies of all other descriptors, which would keep files and connections open. Those
// of Go's poller stay, because the scheduler may wake the poller from this thread.
func closeOthers(keep ...int) error {
	const dir = "/proc/thread-self/fd"
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
next:
	for _, n := range names {
		fd, err := strconv.Atoi(n.Name())
		if err != nil {
			return err
		}
		for _, k := range keep {
			if fd == k {
				continue next
			}
		}
		if what, err := os.Readlink(dir + "/" + n.Name()); err != nil || strings.HasPrefix(what, "anon_inode:[event") {
			continue // the directory's own descriptor, or the poller's
		}
		_ = unix.Close(fd)
	}
	return nil
}

// PreciseSleep sleeps for less than a millisecond. time.Sleep would take a millisecond or more in an idle process.
func PreciseSleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal may cut it short
}
