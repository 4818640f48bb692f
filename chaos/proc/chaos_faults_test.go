package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"northstar/chaos/check"
	timeline "northstar/chaos/report"
)

// fault is one fault, from start to end.
type fault struct {
	timeline.Fault
	kind string
	run  func() // starts the fault, waits, and ends it
}

// draw draws the next fault.
func (s *suite) draw() fault {
	n := s.cluster.Nodes[s.rand.IntN(len(s.cluster.Nodes))]
	if l := s.leading(); l != nil && s.rand.IntN(2) == 0 {
		n = l
	}
	d := time.Duration(50+s.rand.IntN(1200)) * time.Millisecond
	kinds := []struct {
		name   string
		weight int
		run    func()
	}{
		{"process-kill", 6, func() { n.Kill(); pause(d); s.begin(n) }},
		{"process-pause", 5, func() { s.freeze(n, d) }},
		{"process-terminate", 4, func() { s.terminate(n); pause(d / 4); s.begin(n) }},
		{"process-kill-all", 1, func() { s.killAll(d) }},
		{
			"partition-node", s.where(s.network != nil, 5),
			func() { s.cut(d, func() error { return s.network.Isolate(n) }) },
		},
		{
			"partition-one-way", s.where(s.network != nil, 3),
			func() { s.cut(d, func() error { return s.network.Cut(n, s.others(n)[:1]...) }) },
		},
		{
			"partition-outbound", s.where(s.network != nil, 3),
			func() { s.cut(d, func() error { return s.network.Cut(n, s.others(n)...) }) },
		},
		{"disk-full", s.where(s.disks, 2), func() { s.fill(n, d) }},
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	pick := s.rand.IntN(total)
	for _, k := range kinds {
		if pick -= k.weight; pick < 0 {
			node := n.ID
			if k.name == "process-kill-all" {
				node = ""
			}
			return fault{
				kind: k.name, run: k.run,
				Fault: timeline.Fault{Node: node, What: fmt.Sprintf("%s %s for %v", k.name, node, d)},
			}
		}
	}
	panic("unreachable: the weights are those that were added up")
}

func (s *suite) where(possible bool, weight int) int {
	if possible {
		return weight
	}
	return 0
}

// leading returns the last known leader; nil if there was none.
func (s *suite) leading() *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.leaderships) == 0 {
		return nil
	}
	for _, n := range s.cluster.Nodes {
		if n.ID == s.leaderships[len(s.leaderships)-1].Node {
			return n
		}
	}
	return nil
}

func (s *suite) others(n *Node) (all []*Node) {
	for _, o := range s.cluster.Nodes {
		if o != n {
			all = append(all, o)
		}
	}
	return all
}

func (s *suite) begin(n *Node) {
	if err := s.cluster.StartNode(n); err != nil {
		s.t.Errorf("start %s: %v", n.ID, err)
		return
	}
	s.waits.follow(n.ID, n.Cmd.Process.Pid)
}

func (s *suite) freeze(n *Node, d time.Duration) {
	if err := n.Pause(); err != nil {
		s.t.Errorf("stop %s: %v", n.ID, err)
	}
	pause(d)
	if err := n.Signal(syscall.SIGCONT); err != nil {
		s.t.Errorf("wake %s: %v", n.ID, err)
	}
}

// terminate stops a node as a service manager does. The node must exit with status 0.
func (s *suite) terminate(n *Node) {
	if err := n.Signal(syscall.SIGTERM); err != nil {
		s.t.Errorf("terminate %s: %v", n.ID, err)
	}
	process := n.Cmd.Process // Wait forgets it
	hung := time.AfterFunc(soon, func() { _ = process.Kill() })
	code := n.Wait()
	if !hung.Stop() || code != 0 {
		s.violated(check.Violationf(check.NoUnexpectedExit, "%s exited with %d after SIGTERM\n%s", n.ID, code,
			s.cluster.Logs()))
	}
}

func (s *suite) killAll(d time.Duration) {
	s.cluster.KillAll()
	pause(d / 4)
	for _, n := range s.cluster.Nodes {
		s.begin(n)
	}
	// Wait until a majority can elect: a node that answers may still be reading its log, and has no term before that.
	for up := 0; up <= len(s.cluster.Nodes)/2 && !s.t.Failed(); pause(5 * time.Millisecond) {
		up = 0
		for _, n := range s.cluster.Nodes {
			if st, err := statusAt(s.t.Context(), "http://"+n.HTTP); err == nil && st.Term > 0 {
				up++
			}
		}
	}
}

func (s *suite) cut(d time.Duration, begin func() error) {
	if err := begin(); err != nil {
		s.t.Error(err)
	}
	pause(d)
	if err := s.network.Heal(); err != nil {
		s.t.Error(err)
	}
}

// diskSize has room for the reserve of 64 MiB and a log.
const diskSize = "256m"

// smallDisks puts each data directory onto a file system of its own. It returns false if that is not possible.
func (s *suite) smallDisks() bool {
	for _, n := range s.cluster.Nodes {
		dir := s.cluster.DataDir(n)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			s.t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+diskSize); err != nil {
			s.t.Logf("no full disks: cannot mount a small file system: %v", err)
			return false
		}
		s.t.Cleanup(func() {
			s.cluster.KillAll()
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				s.t.Error(err)
			}
		})
	}
	return true
}

// fill takes the free space of a node's disk for a while, but not the space that the node frees by releasing its
// reserve. Most of the space is taken immediately.
func (s *suite) fill(n *Node, d time.Duration) {
	path := filepath.Join(s.cluster.DataDir(n), "ballast")
	f, err := os.Create(path)
	if err != nil {
		s.t.Error(err)
		return
	}
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &disk); err != nil {
		s.t.Error(err)
	}
	const piece = 4 << 20
	taken, free := int64(0), int64(disk.Bavail)*disk.Bsize
	for free-taken > piece && unix.Fallocate(int(f.Fd()), 0, taken, piece) == nil {
		taken += piece
	}
	_, err = io.Copy(io.NewOffsetWriter(f, taken), io.LimitReader(zeros{}, free-taken))
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		s.t.Errorf("fill the disk of %s: %v", n.ID, err)
	}
	pause(d)
	_ = f.Close()
	if err := os.Remove(path); err != nil {
		s.t.Error(err)
	}
}

// zeros is an endless stream of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
