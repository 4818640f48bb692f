package proc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A process outlives the thread of the goroutine that had it started.
func TestStartTied(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var thread int
	started := make(chan error)
	go onEndingThread(func() {
		thread = unix.Gettid()
		started <- startTied(cmd)
	})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	eventually(t, soon, func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread)); !os.IsNotExist(err) {
			return fmt.Errorf("thread %d has not ended", thread)
		}
		return nil
	})
	if _, err := io.WriteString(in, "here\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "here\n" {
		t.Errorf("%q, %v: the process was killed", line, err)
	}
}

// onEndingThread calls do on a thread that ends afterwards. The first thread of a process cannot.
func onEndingThread(do func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		do()
		return
	}
	defer runtime.UnlockOSThread()
	other := make(chan struct{})
	go func() {
		defer close(other)
		onEndingThread(do)
	}()
	<-other
}
