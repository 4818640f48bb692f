// Package pg runs PostgreSQL servers of its own, for tests: in a temporary directory,
// on a port of loopback that is free, as a user without rights.
package pg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/chaos/ports"
)

// ErrNone: this machine has no PostgreSQL, or no user that may run it.
var ErrNone = errors.New("no PostgreSQL server here (Debian: apt-get install postgresql)")

const startLimit = 60 * time.Second

// dynamicMemory keeps the server's shared memory in its data directory: elsewhere it would outlive a killed server.
const dynamicMemory = "dynamic_shared_memory_type=mmap"

// Server is one server over one data directory.
type Server struct {
	dir, bin string
	port     string
	as       *syscall.Credential // nil: this process's user
	cmd      *exec.Cmd
	ended    chan struct{} // closed when the process of cmd has ended
}

// Start makes a database and starts its server. Stop ends both. Where the system
// can do that (Linux), the server also ends with this process, however that ends.
func Start(ctx context.Context) (s *Server, err error) {
	if s, err = prepare(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(s.dir)
		}
	}()
	initdb := s.command(ctx, "initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "-E",
		"UTF8")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	return s, s.Up(ctx)
}

// prepare finds the programs, a user and a port for a server, and makes its directory.
func prepare() (*Server, error) {
	s := &Server{}
	var err error
	if s.bin, err = binaries(); err != nil {
		return nil, err
	}
	if s.as, err = unprivileged(); err != nil {
		return nil, err
	}
	addrs, err := ports.Reserve(1)
	if err != nil {
		return nil, err
	}
	_, s.port, _ = net.SplitHostPort(addrs[0])
	if s.dir, err = os.MkdirTemp("", "northstar-pg-"); err != nil {
		return nil, err
	}
	if s.as != nil {
		if err := os.Chown(s.dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return nil, errors.Join(err, os.RemoveAll(s.dir))
		}
	}
	return s, nil
}

// binaries finds the newest server's programs.
func binaries() (string, error) {
	if path, err := exec.LookPath("postgres"); err == nil {
		path, err = filepath.EvalSymlinks(path) // all programs are beside the real one
		return filepath.Dir(path), err
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is good
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	if len(found) == 0 {
		return "", ErrNone
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
}

// unprivileged is who runs the server, which refuses root.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("%w: it refuses root, and there is no user postgres, and none for no privileges", ErrNone)
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }
func (s *Server) log() string  { return filepath.Join(s.dir, "log") }

func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"LC_ALL=C", "HOME=" + s.dir, "TMPDIR=" + s.dir, "PATH=" + s.bin + ":/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as, Setpgid: true}
	return cmd
}

// Up starts the server and returns when it serves.
func (s *Server) Up(ctx context.Context) error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own copy
	s.cmd = s.command(context.WithoutCancel(ctx), "postgres", "-D", s.data(), "-p", s.port,
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off", "-c",
		"shared_buffers=16MB", "-c", "max_connections=60", "-c", dynamicMemory)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	endWithParent(s.cmd.SysProcAttr, syscall.SIGQUIT)
	s.ended = make(chan struct{})
	started := make(chan error, 1)
	go keep(s.cmd, started, s.ended)
	if err := <-started; err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.DSN())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			said, _ := os.ReadFile(s.log())
			return errors.Join(fmt.Errorf("the server does not serve: %w: %s", err, bytes.TrimSpace(said)), s.Down())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// BecomeStandby makes the server a standby, without a primary, from the next Up on.
func (s *Server) BecomeStandby() error {
	return os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o644)
}

// keep starts a command and waits for it, on a thread that lives on until then:
// what ends with its parent ends with the thread that started it.
func keep(cmd *exec.Cmd, started chan<- error, ended chan<- struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(ended)
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait() // its exit status does not matter
	}
}

// Down ends the server as a crash would, but for its files.
func (s *Server) Down() error {
	if err := s.cmd.Process.Signal(syscall.SIGQUIT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	late := time.AfterFunc(startLimit, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	<-s.ended
	return nil
}

// Stop ends the server and removes the database. Processes of a killed server end only when they next look for their
// parent, and one that waits for a lock of another killed process does not look for minutes.
func (s *Server) Stop() error {
	return errors.Join(s.Down(), s.endProcesses(), s.remove())
}

// endProcesses kills the server's processes that are left. It needs Linux.
func (s *Server) endProcesses() error {
	for deadline := time.Now().Add(startLimit); ; time.Sleep(time.Millisecond) {
		left := s.processes()
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server's processes %v do not end", left)
		}
		for _, pid := range left {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
}

// processes returns the server's processes: those that run in its directory. Each is in a session of its own.
func (s *Server) processes() (pids []int) {
	data, err := filepath.EvalSymlinks(s.data())
	if err != nil {
		return nil // no server was started
	}
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is good
	for _, link := range links {
		if dir, err := os.Readlink(link); err == nil && dir == data {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			if err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// remove removes what the server has left.
func (s *Server) remove() error {
	err := freeMemory(filepath.Join(s.data(), "postmaster.pid"))
	if e := os.RemoveAll(s.dir); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}

// Address is where the server listens.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", s.port) }

// DSN is how the superuser connects.
func (s *Server) DSN() string { return DSN(s.Address()) }

// DSN is how the superuser connects through an address, such as that of a proxy.
func DSN(address string) string {
	return "postgres://postgres@" + address + "/postgres?sslmode=disable"
}
