package sim

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"northstar/consensus/storage"
)

// DiskOptions are the properties of a simulated disk.
type DiskOptions struct {
	FsyncMin, FsyncMax time.Duration // a write takes a time drawn evenly from between
	Reserve            uint64        // bytes that a process keeps preallocated

	// TornVotes makes a vote two writes, as a plain key-value store does, so that a crash can come between them. For
	// mutation tests only: this is the bug that the two-slot vote file removes.
	TornVotes bool

	// WipeKeepsFiles makes Wipe leave the small files, and so the node's identity. For mutation tests only: the
	// incarnation in it is what reports others that a disk was wiped.
	WipeKeepsFiles bool
}

// DefaultDiskOptions is a disk that syncs within 2 ms.
func DefaultDiskOptions() DiskOptions {
	return DiskOptions{FsyncMin: 50 * time.Microsecond, FsyncMax: 2 * time.Millisecond, Reserve: 64 << 20}
}

// EntriesHook is notified of entries when they have become durable, in order, with
// the term of the entry before the first (0: there is none).
type EntriesHook func(prevTerm uint64, entries []*raft.Log)

// Disk is what survives a crash of its node. At most one Store is attached to it; a crash detaches that and keeps
// what was durable, plus a random part of what was being written.
//
// One lock guards it and its stores. It is never held while an operation takes its time.
type Disk struct {
	mu       sync.Mutex
	name     string
	seed     uint64
	seq      uint64 // of the numbers drawn
	opt      DiskOptions
	data     *contents
	attached *Store
	slow     time.Duration // added to each write
	free     uint64        // bytes left beside the reserve; at 0 writes fail with ENOSPC
	held     bool          // the reserve's space is taken
	fail     error         // what writes fail with; nil: they succeed
	stalled  chan struct{} // not nil while writes hang; closed when they go on
	hook     EntriesHook
	digest   *digest // of what is written; may be nil

	// onVote is called when the writing of a vote begins, or of its second part where votes are torn, until it returns
	// true. It must not wait and not call the disk.
	onVote func(candidate string) bool
	// onStep is called at each step that the disk sees, with the lock held. It may be nil, and must not wait.
	onStep func(step string)
	wipes  int // how often it was emptied
}

// contents is what stands on a medium.
type contents struct {
	logs        map[uint64]*raft.Log
	first, last uint64
	stable      map[string][]byte
	files       map[string][]byte
	snapshots   []*snapshot // newest first
	next        *contents   // what the next process finds; nil: this
}

func newContents() *contents {
	return &contents{logs: map[uint64]*raft.Log{}, stable: map[string][]byte{}, files: map[string][]byte{}}
}

func (c *contents) clone() *contents {
	copied := *c
	copied.logs, copied.stable, copied.files = maps.Clone(c.logs), maps.Clone(c.stable), maps.Clone(c.files)
	copied.snapshots = slices.Clone(c.snapshots)
	return &copied
}

// NewDisk makes an empty disk. hook may be nil; it must not call the disk.
func NewDisk(name string, seed uint64, opt DiskOptions, hook EntriesHook) *Disk {
	return &Disk{name: name, seed: seed, opt: opt, data: newContents(), free: emptyDisk, hook: hook}
}

// Attach returns the store through which the next process uses the disk. The one
// before must be closed, or lost in a Crash.
func (d *Disk) Attach() (*Store, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.attached != nil {
		return nil, errors.New("sim: disk is in use by another process")
	}
	_ = d.reserve()
	archived := d.data.next != nil
	if archived {
		d.data = d.data.next
		d.wipes++
	}
	d.attached = &Store{disk: d, data: d.data, archived: archived, recentVote: map[string][]byte{}}
	return d.attached, nil
}

// Crash detaches the store: of each write in progress a random prefix is kept, a hung disk answers again. The lost
// process's store goes on working, on contents of its own, because errors would make the library panic.
func (d *Disk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.attached == nil {
		return
	}
	d.data = d.data.clone()
	for _, w := range d.attached.pending {
		d.seq++
		keep := int(hash(d.seed, d.name, "crash", d.seq) % uint64(w.parts+1))
		w.apply(d.data, keep)
		if w.entries != nil && keep > 0 {
			d.report(w.entries[:keep])
		}
	}
	d.attached.detached = true
	d.attached = nil
	d.unstall()
}

// Wipe empties the disk. No store may be attached.
func (d *Disk) Wipe() {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := d.data.files
	d.data = newContents()
	d.wipes++
	if d.opt.WipeKeepsFiles {
		d.data.files = files
	}
}

// set changes the disk: its slow, free, fail or onVote. change must not wait.
func (d *Disk) set(change func(*Disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// stall makes every write hang until unstall or a crash. Called with the lock held, like unstall.
func (d *Disk) stall() {
	if d.stalled == nil {
		d.stalled = make(chan struct{})
	}
}

func (d *Disk) unstall() {
	if d.stalled != nil {
		close(d.stalled)
		d.stalled = nil
	}
}

// report reports the hook of entries that became durable. Called with the lock held.
func (d *Disk) report(entries []*raft.Log) {
	var prevTerm uint64
	before := entries[0].Index - 1
	prev := d.data.logs[before]
	if prev != nil {
		prevTerm = prev.Term
	}
	if snaps := d.data.snapshots; len(snaps) > 0 && snaps[0].meta.Index == before {
		// The log may hold an entry of a deposed leader there.
		if prev == nil || prevTerm != snaps[0].meta.Term {
			d.step(stepEntryStored)
		}
		prevTerm = snaps[0].meta.Term
	}
	if d.hook != nil {
		d.hook(prevTerm, entries)
	}
}

// step reports a step. Called with the lock held.
func (d *Disk) step(name string) {
	if d.onStep != nil {
		d.onStep(name)
	}
}

// write is an operation that takes time and changes the contents at its end.
type write struct {
	parts   int                          // how many steps a crash can come between
	apply   func(c *contents, parts int) // makes the first of them
	entries []*raft.Log                  // what it stores, for the hook
}

// Store is a process's handle on its disk: the Storage of consensus.
type Store struct {
	disk       *Disk
	data       *contents
	pending    []*write // in the order that they began in
	recentVote map[string][]byte
	detached   bool
	closed     bool
	archived   bool // what the process before left was set aside
}

// do takes the time of a synced write, then makes it.
func (s *Store) do(w *write) error {
	d := s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.closed {
		return fs.ErrClosed
	}
	s.pending = append(s.pending, w)
	defer func() {
		s.pending = slices.DeleteFunc(s.pending, func(p *write) bool { return p == w })
	}()
	d.pause(s)
	if !s.detached && d.fail != nil {
		return d.fail
	}
	if !s.detached && d.free == 0 {
		return syscall.ENOSPC
	}
	w.apply(s.data, w.parts)
	d.digest.add(uint64(w.parts), 0, []byte(d.name))
	if w.entries != nil && !s.detached {
		d.report(w.entries)
	}
	return nil
}

// atomically makes one synced write; a crash keeps all of it or nothing.
func (s *Store) atomically(change func(*contents)) error {
	return s.do(&write{parts: 1, apply: func(c *contents, parts int) {
		if parts == 1 {
			change(c)
		}
	}})
}

// pause lets the time of one sync pass, and the rest of a stall. The lock is
// held at entry and at return, not between.
func (d *Disk) pause(s *Store) {
	d.seq++
	t := d.opt.FsyncMin + d.slow
	if spread := d.opt.FsyncMax - d.opt.FsyncMin; spread > 0 {
		t += time.Duration(hash(d.seed, d.name, "fsync", d.seq) % uint64(spread))
	}
	d.mu.Unlock()
	time.Sleep(t)
	d.mu.Lock()
	for d.stalled != nil && !s.detached {
		stalled := d.stalled
		d.mu.Unlock()
		<-stalled
		d.mu.Lock()
	}
}

// Load returns the contents of a small file.
func (s *Store) Load(name string) ([]byte, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	data, ok := s.data.files[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return slices.Clone(data), nil
}

// Save replaces a small file, atomically.
func (s *Store) Save(name string, data []byte) error {
	data = slices.Clone(data)
	return s.atomically(func(c *contents) { c.files[name] = data })
}

// SetAside makes the next process begin with one small file.
func (s *Store) SetAside(_, file string, data []byte) error {
	fresh := newContents()
	fresh.files[file] = slices.Clone(data)
	return s.atomically(func(c *contents) { c.next = fresh })
}

// Free is the space left on the disk, without the reserve.
func (s *Store) Free() (uint64, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	return s.disk.free, nil
}

// Reserve is the size of the reserve and whether it is held.
func (s *Store) Reserve() (size uint64, held bool) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	return s.disk.opt.Reserve, s.disk.held
}

// Space is the disk itself.
func (s *Store) Space() storage.Space { return s }

// HoldReserve takes the reserve's space.
func (s *Store) HoldReserve() error {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if s.detached {
		return nil
	}
	return s.disk.reserve()
}

// reserve takes the reserve's space. Called with the lock held.
func (d *Disk) reserve() error {
	switch {
	case d.held:
	case d.free <= d.opt.Reserve:
		return syscall.ENOSPC
	default:
		d.free, d.held = d.free-d.opt.Reserve, true
	}
	return nil
}

// ReleaseReserve returns the reserve's space back.
func (s *Store) ReleaseReserve() error {
	d := s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held && !s.detached {
		d.free, d.held = d.free+d.opt.Reserve, false
	}
	return nil
}

// Close returns the disk back.
func (s *Store) Close() error {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	s.closed = !s.detached
	if s.disk.attached == s {
		s.disk.attached = nil
	}
	return nil
}
