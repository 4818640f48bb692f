//go:build linux

package transport

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// TeardownThreads holds this process's memory until its connections have ended, when it is
// killed: threads that have none of its descriptors and that the kernel runs after
// the others. A nil Anchor is none.
type TeardownThreads struct {
	once sync.Once
	stop int // writing end of a pipe: closing it ends the threads
	all  sync.WaitGroup
}

// NewAnchor starts an anchor, or gives an error where the system does not let a thread
// have its own descriptors. Close it.
func NewAnchor() (*TeardownThreads, error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("anchor: %w", err)
	}
	defer unix.Close(pipe[0]) // the threads have copies
	a := &TeardownThreads{stop: pipe[1]}
	cpus, err := teardownCPUs()
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("anchor: %w", err)
	}
	for _, cpu := range cpus {
		a.all.Add(1)
		err := runWithPrivateFDs(func() {
			defer a.all.Done()
			setIdlePolicy(cpu)
			waitPipeClosed(pipe[0])
		}, pipe[0])
		if err != nil {
			a.all.Done()
			a.Close()
			return nil, fmt.Errorf("anchor: %w", err)
		}
	}
	return a, nil
}

// Close ends it. It may be called again.
func (a *TeardownThreads) Close() {
	if a == nil {
		return
	}
	a.once.Do(func() { _ = unix.Close(a.stop) })
	a.all.Wait()
}

// maxAnchors bounds the threads of an Anchor.
const maxAnchors = 16

// teardownCPUs lists those that this process may run on: on each the thread that
// is last there may be the last of all.
func teardownCPUs() (cpus []int, err error) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return nil, err
	}
	for cpu := 0; len(cpus) < min(may.Count(), maxAnchors); cpu++ {
		if may.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// setIdlePolicy puts this thread behind all others of a processor. A nice value would not do: a
// processor that tears memory down at nice 19 still counts as busy to the kernel that
// looks for a place for a thread that wakes, and keeps it waiting for a slice. Where
// that is not allowed it is last by chance only.
func setIdlePolicy(cpu int) {
	const nicest = 19
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nicest) // where the next is refused
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
	var only unix.CPUSet
	only.Set(cpu)
	_ = unix.SchedSetaffinity(0, &only)
}

// waitPipeClosed waits until stop is closed.
func waitPipeClosed(stop int) {
	for fds := []unix.PollFd{{Fd: int32(stop), Events: unix.POLLIN}}; fds[0].Revents == 0; {
		if _, err := unix.Poll(fds, -1); err != nil { // a signal, or no memory
			preciseSleep(minFailureDelay)
		}
	}
}
