package etcd

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

// failingConn is a connection whose calls fail with one error after the other.
type failingConn struct {
	net.Conn
	errs []error
}

func (c *failingConn) next() (err error) {
	err, c.errs = c.errs[0], c.errs[1:]
	return err
}

func (c *failingConn) Read([]byte) (int, error)  { return 0, c.next() }
func (c *failingConn) Write([]byte) (int, error) { return 0, c.next() }

// TestLiveConn: the end that a client's machine has sent is noted by the call that learns of it. An end of this node,
// and a network that does not answer, are none.
func TestLiveConn(t *testing.T) {
	t.Parallel()
	system := func(call string, number syscall.Errno) error {
		return &net.OpError{Op: call, Err: os.NewSyscallError(call, number)}
	}
	reset, timeout := system("write", syscall.ECONNRESET), system("write", syscall.ETIMEDOUT)
	pipe := system("write", syscall.EPIPE)
	for _, c := range []struct {
		name        string
		write, read []error // the reads come after the writes
		gone        bool
	}{
		{"a reset before the reader wakes", []error{reset}, []error{net.ErrClosed}, true},
		{"a write after the end", []error{pipe}, []error{net.ErrClosed}, true},
		{"the end", nil, []error{io.EOF}, true},
		{"a reset", nil, []error{system("read", syscall.ECONNRESET)}, true},
		{"an end of this node", []error{net.ErrClosed}, []error{net.ErrClosed}, false},
		{"a deadline", []error{os.ErrDeadlineExceeded}, []error{os.ErrDeadlineExceeded, nil}, false},
		{"a reset after a deadline", nil, []error{os.ErrDeadlineExceeded, io.EOF}, true},
		{"no answer", []error{timeout, pipe}, []error{io.EOF}, false},
		{"no answer, and the writer is first", []error{pipe}, []error{system("read", syscall.ETIMEDOUT)}, false},
	} {
		live := &liveConn{Conn: &failingConn{errs: append(c.write, c.read...)}}
		for range c.write {
			_, _ = live.Write(nil)
		}
		for range c.read {
			_, _ = live.Read(nil)
		}
		if live.gone() != c.gone {
			t.Errorf("%s: the client is gone: %v", c.name, !c.gone)
		}
	}
}

// TestLiveConn_ResetNoticedByWrite: nothing reads while the client's machine resets the connection.
func TestLiveConn_ResetNoticedByWrite(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	live := &liveConn{Conn: accepted}
	defer live.Close()
	if err := client.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		_, err = live.Write([]byte("x"))
	}
	if !live.gone() {
		t.Errorf("not noticed: %v", err)
	}
}
