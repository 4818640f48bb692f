//go:build linux

package transport

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func withAnchor(t *testing.T) *TeardownThreads {
	t.Helper()
	a, err := NewAnchor()
	if err != nil {
		t.Skipf("this system gives no thread descriptors of its own: %v", err)
	}
	t.Cleanup(a.Close)
	return a
}

// idleThreads counts this process's threads that all others go before.
func idleThreads(t *testing.T) (n int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/self/task/*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has just ended
		}
		// After the name, which may have spaces: state is the 3rd field, policy the 41st.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 38 && fields[38] == strconv.Itoa(unix.SCHED_IDLE) {
			n++
		}
	}
	return n
}

// An anchor is a bounded number of threads, holds none of the process's descriptors,
// and is gone when it is closed.
func TestAnchor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if idleThreads(t) > 0 {
		t.Skip("these tests are behind all others themselves")
	}
	a := withAnchor(t)
	cpus, err := teardownCPUs()
	if err != nil || len(cpus) == 0 || len(cpus) > maxAnchors {
		t.Fatalf("%v, %v", cpus, err)
	}
	eventually(t, fmt.Sprintf("%d threads are behind all others", len(cpus)), func() bool { return idleThreads(t) == len(cpus) })
	_ = l.Close()
	if late, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = late.Close()
		t.Error("it keeps a listener open that was closed")
	}
	a.Close()
	a.Close()
	eventually(t, "the threads end", func() bool { return idleThreads(t) == 0 })
	(*TeardownThreads)(nil).Close()
}

// The connections of a process that is killed end before its memory is torn down,
// as a rule: which of its threads is the last is up to the kernel.
func TestAnchorHoldsTheMemory(t *testing.T) {
	const tries = 40
	without, _ := killProcess(t, "nothing")
	for range 2 {
		took, _ := killProcess(t, "nothing")
		without = min(without, took)
	}
	var took time.Duration
	for range tries {
		if took, _ = killProcess(t, "anchor"); took < without/2 {
			t.Logf("%v, without it %v", took, without)
			return
		}
	}
	t.Errorf("in none of %d processes: the last took %v, without it %v", tries, took, without)
}
