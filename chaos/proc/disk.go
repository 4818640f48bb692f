package proc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Disk delays or stalls the syncs of one node, as a slow disk does. The node's program is not changed: it starts under
// a seccomp filter that hands each fsync and fdatasync to this process, which lets it go on when its time has come.
// Each sync waits for itself, as on a device with deep queues. Reads and writes of the page cache go on.
// It must be closed. Safe for concurrent use.
type Disk struct {
	listener *net.UnixListener
	watching sync.WaitGroup

	mu      sync.Mutex
	delay   time.Duration
	stalled chan struct{} // closed when the stall ends; nil: none
}

// AttachDisk puts a node that has not been started on a Disk. wrapper is a command of this program that calls
// ExecOnDisk with the arguments that follow it.
func (c *Cluster) AttachDisk(n *Node, wrapper ...string) (*Disk, error) {
	socket := filepath.Join(c.Dir, n.ID+".disk")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	d := &Disk{listener: l}
	d.watching.Go(d.serve)
	n.Wrapper = append(append(wrapper, socket), n.Wrapper...)
	return d, nil
}

// Delay makes each sync that begins from now on take longer.
func (d *Disk) Delay(delay time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delay = delay
}

// Stall makes all syncs wait for Resume.
func (d *Disk) Stall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stalled == nil {
		d.stalled = make(chan struct{})
	}
}

// Resume ends a stall.
func (d *Disk) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stalled != nil {
		close(d.stalled)
		d.stalled = nil
	}
}

// Close releases what waits. Call it when the node has ended.
func (d *Disk) Close() error {
	d.Delay(0)
	d.Resume()
	err := d.listener.Close()
	d.watching.Wait()
	return err
}

// serve takes the filter of each process that starts.
func (d *Disk) serve() {
	for {
		conn, err := d.listener.AcceptUnix()
		if err != nil {
			return // closed
		}
		filter, err := receiveFile(conn)
		if err == nil {
			d.watching.Go(func() { d.watch(filter) })
			_, _ = conn.Write([]byte{1}) // the process may go on
		}
		_ = conn.Close()
	}
}

// notification is struct seccomp_notif of seccomp_unotify(2), response is struct seccomp_notif_resp.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		data       [8]uint64
	}
	response struct {
		id         uint64
		value      int64
		err, flags int32
	}
)

// watch holds the syncs of one process until it has ended.
func (d *Disk) watch(filter int) {
	defer unix.Close(filter)
	var held sync.WaitGroup
	defer held.Wait()
	for {
		events := []unix.PollFd{{Fd: int32(filter), Events: unix.POLLIN}}
		if _, err := unix.Poll(events, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if events[0].Revents&unix.POLLHUP != 0 {
			return // no process is left
		}
		if events[0].Revents&unix.POLLIN == 0 {
			continue
		}
		var n notification
		switch err := control(filter, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR):
			continue // its process was killed meanwhile
		case err != nil:
			return
		}
		held.Go(func() {
			d.hold()
			r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			_ = control(filter, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)) // unless it was killed
		})
	}
}

// hold returns when a sync that begins now may go on.
func (d *Disk) hold() {
	d.mu.Lock()
	delay, stalled := d.delay, d.stalled
	d.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
	time.Sleep(delay)
}

func control(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// ExecOnDisk becomes the program argv, on the Disk that listens at a socket. It returns only an error.
func ExecOnDisk(socket string, argv []string) error {
	bin, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the filter is this thread's, and then the program's
	filter, err := filterSyncs()
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	if _, _, err := conn.WriteMsgUnix([]byte{1}, unix.UnixRights(filter), nil); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("the disk took no filter: %w", err)
	}
	return syscall.Exec(bin, argv, os.Environ()) // both files are closed then
}

// filterSyncs has the kernel ask before each sync of this thread, and of what it starts.
func filterSyncs() (listener int, err error) {
	const equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: equal, K: unix.SYS_FSYNC, Jt: 1},
		{Code: equal, K: unix.SYS_FDATASYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// A sync that waits ends for a signal that kills only: the runtime of Go sends others.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&f)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

// receiveFile receives one open file.
func receiveFile(conn *net.UnixConn) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return 0, errors.Join(errors.New("want one message"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, errors.Join(errors.New("want one file"), err)
	}
	return fds[0], nil
}
