package dashboard_test

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ownNetwork is the variable that says that this process is in a network namespace of its own.
const ownNetwork = "NORTHSTAR_DASHBOARD_NETWORK"

// TestMain runs the tests of root in a network namespace that has only the loopback interface. Chromium ends
// requests that are about to connect when an interface of its network comes or goes. Other packages' tests of root make
// interfaces.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 && os.Getenv(ownNetwork) == "" {
		// Without the privilege, as in some containers, the tests of other packages make no interfaces either.
		runtime.LockOSThread() // exec goes on in the namespaces of the thread that calls it
		if err := unix.Unshare(unix.CLONE_NEWNET); err == nil {
			err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), ownNetwork+"=own"))
			fmt.Fprintln(os.Stderr, "cannot run the tests in a network of their own:", err)
			os.Exit(1)
		}
		runtime.UnlockOSThread()
	}
	if os.Getenv(ownNetwork) != "" {
		if err := raiseLoopback(); err != nil {
			fmt.Fprintln(os.Stderr, "cannot set the loopback interface up:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// raiseLoopback sets the loopback interface up, which is down in a new network namespace.
func raiseLoopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}

func TestOwnNetwork(t *testing.T) {
	t.Parallel()
	if os.Getenv(ownNetwork) == "" {
		t.Skip("needs root")
	}
	all, err := net.Interfaces()
	if err != nil || len(all) != 1 || all[0].Flags&net.FlagLoopback == 0 || all[0].Flags&net.FlagUp == 0 {
		t.Errorf("interfaces %+v, %v; want the loopback interface alone, up", all, err)
	}
}
