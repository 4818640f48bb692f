//go:build linux

package crashdetect

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// runWithPrivateFDs starts do on a thread with a file descriptor table of its own,
// which holds keep and no other descriptor of this process. The thread ends with
// do, as nothing else could run there. An error means that do was not started.
// Once runWithPrivateFDs returns, the thread has copies of keep.
func runWithPrivateFDs(do func(), keep ...int) error {
	ready := make(chan error)
	go privateFDThread(do, keep, ready)
	return <-ready
}

func privateFDThread(do func(), keep []int, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The first thread cannot end, and its descriptors are what /proc shows as the
		// process's. While it is held here, another goroutine is on another thread.
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

// closeOthers closes this thread's copies of all other descriptors, which would
// keep files and connections open. Those of Go's poller stay: the scheduler may
// wake it from here.
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
			continue // it was the directory's own, or is the poller's
		}
		_ = unix.Close(fd)
	}
	return nil
}

// PreciseSleep sleeps for less than a millisecond, for which time.Sleep takes one
// or more when the process is idle.
func PreciseSleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // cut short by a signal, at the worst
}
