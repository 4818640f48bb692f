package pg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asOwner makes this program start a server, report that, and wait.
const asOwner = "NORTHSTAR_PG_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(asOwner) == "" {
		os.Exit(m.Run())
	}
	s, err := Start(context.Background())
	if err != nil {
		fmt.Println("failed", 0, err)
		os.Exit(1)
	}
	fmt.Println(s.Address(), s.cmd.Process.Pid)
	_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed, or its parent ends
}

// TestServerEndsWithItsOwner: a test that is killed leaves no server.
func TestServerEndsWithItsOwner(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a process that its parent has ended")
	}
	if _, err := binaries(); errors.Is(err, ErrNone) {
		t.Skip(err)
	}
	if _, err := unprivileged(); errors.Is(err, ErrNone) {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "northstar-owner-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the server is another user
		t.Fatal(err)
	}
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), asOwner+"=1", "TMPDIR="+dir)
	if _, err := owner.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	var address string
	var pid int
	if n, err := fmt.Sscan(line, &address, &pid); n != 2 || pid == 0 {
		_ = owner.Process.Kill()
		t.Fatalf("no server: %s (%v, %v)", strings.TrimSpace(line), err, owner.Wait())
	}
	_ = owner.Process.Kill()
	_ = owner.Wait() // it was killed
	for deadline := time.Now().Add(30 * time.Second); listens(t, address); {
		if time.Now().After(deadline) {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			t.Fatalf("the server at %s, process %d, lives on", address, pid)
		}
	}
}

// listens reports, after a short delay, whether address accepts connections.
func listens(t *testing.T, address string) bool {
	t.Helper()
	<-time.After(10 * time.Millisecond)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
