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

// runWithPrivateFDs starts do on a thread with a private descriptor table, which holds only keep. The thread ends with
// do, because no other goroutine could run on it. An error means that do was not started. When runWithPrivateFDs
// returns, the thread has its copies of keep.
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
