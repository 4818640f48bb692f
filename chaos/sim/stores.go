package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/storage"
)

// Log returns the disk's log.
func (s *Store) Log() raft.LogStore { return logStore{s} }

// Stable returns the disk's store of term and vote.
func (s *Store) Stable() storage.VoteStore { return stableStore{s} }

// Snapshots returns the disk's snapshots.
func (s *Store) Snapshots() raft.SnapshotStore { return snapshotStore{s} }

// step reports a step of the process that uses the disk.
func (s *Store) step(name string) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if !s.detached {
		s.disk.step(name)
	}
}

type logStore struct{ s *Store }

func (l logStore) FirstIndex() (uint64, error) {
	l.s.disk.mu.Lock()
	defer l.s.disk.mu.Unlock()
	return l.s.data.first, nil
}

func (l logStore) LastIndex() (uint64, error) {
	l.s.disk.mu.Lock()
	defer l.s.disk.mu.Unlock()
	return l.s.data.last, nil
}

func (l logStore) GetLog(index uint64, out *raft.Log) error {
	l.s.disk.mu.Lock()
	defer l.s.disk.mu.Unlock()
	entry := l.s.data.logs[index]
	if entry == nil {
		return raft.ErrLogNotFound
	}
	*out = *entry
	return nil
}

func (l logStore) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs is one synced write; a crash keeps any prefix of it.
func (l logStore) StoreLogs(entries []*raft.Log) error {
	copies := make([]*raft.Log, len(entries))
	for i, e := range entries {
		c := *e
		c.Data, c.Extensions = slices.Clone(e.Data), slices.Clone(e.Extensions)
		copies[i] = &c
	}
	return l.s.do(&write{parts: len(copies), entries: copies, apply: func(c *contents, parts int) {
		for _, e := range copies[:parts] {
			c.logs[e.Index] = e
			c.last = max(c.last, e.Index)
			if c.first == 0 || e.Index < c.first {
				c.first = e.Index
			}
		}
	}})
}

// DeleteRange is one synced write; a crash keeps all of it or nothing.
func (l logStore) DeleteRange(from, to uint64) error {
	return l.s.atomically(func(c *contents) {
		for i := max(from, c.first); i <= min(to, c.last); i++ {
			delete(c.logs, i)
		}
		c.bounds()
	})
}

// bounds finds first and last again, from the ends inwards.
func (c *contents) bounds() {
	if len(c.logs) == 0 {
		c.first, c.last = 0, 0
		return
	}
	for c.logs[c.first] == nil {
		c.first++
	}
	for c.logs[c.last] == nil {
		c.last--
	}
}

const (
	keyTerm     = "CurrentTerm"
	keyVoteTerm = "LastVoteTerm"
	keyVoteCand = "LastVoteCand"
)

// errNotFound bears the one text by which the library knows a missing key.
var errNotFound = errors.New("not found")

// stableStore keeps a vote as one record, like the two-slot file of the real store: the term of a vote is held back
// until its candidate is written, which the library always does next.
type stableStore struct{ s *Store }

func (t stableStore) Set(key, val []byte) error {
	k, v := string(key), slices.Clone(val)
	voteTerm := t.takeVoteTerm(k, v)
	return t.s.atomically(func(c *contents) {
		c.stable[k] = v
		if voteTerm != nil {
			c.stable[keyVoteTerm] = voteTerm
		}
	})
}

// RecordVote is one synced write of a term and a vote.
func (t stableStore) RecordVote(term, voteTerm uint64, candidate []byte) error {
	if t.s.disk.opt.TornVotes {
		return errors.Join(t.SetUint64([]byte(keyTerm), term), t.SetUint64([]byte(keyVoteTerm), voteTerm),
			t.Set([]byte(keyVoteCand), candidate))
	}
	cand := slices.Clone(candidate)
	t.takeVoteTerm(keyVoteCand, cand)
	err := t.s.atomically(func(c *contents) {
		c.stable[keyTerm] = binary.BigEndian.AppendUint64(nil, term)
		c.stable[keyVoteTerm] = binary.BigEndian.AppendUint64(nil, voteTerm)
		c.stable[keyVoteCand] = cand
	})
	if err == nil && string(cand) == raftAddress(cluster.NodeID(t.s.disk.name)) {
		t.s.step(stepVoteStored)
	}
	return err
}

// takeVoteTerm returns the term held back for a candidate.
func (t stableStore) takeVoteTerm(key string, candidate []byte) []byte {
	d := t.s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if key != keyVoteCand {
		return nil
	}
	if !t.s.detached && d.onVote != nil && d.onVote(string(candidate)) {
		d.onVote = nil
	}
	term := t.s.recentVote[keyVoteTerm]
	delete(t.s.recentVote, keyVoteTerm)
	return term
}

func (t stableStore) Get(key []byte) ([]byte, error) {
	t.s.disk.mu.Lock()
	defer t.s.disk.mu.Unlock()
	if v, ok := t.s.recentVote[string(key)]; ok {
		return slices.Clone(v), nil
	}
	v, ok := t.s.data.stable[string(key)]
	if !ok {
		return nil, errNotFound
	}
	return slices.Clone(v), nil
}

func (t stableStore) SetUint64(key []byte, val uint64) error {
	b := binary.BigEndian.AppendUint64(nil, val)
	if string(key) == keyVoteTerm && !t.s.disk.opt.TornVotes {
		t.s.disk.mu.Lock()
		defer t.s.disk.mu.Unlock()
		t.s.recentVote[keyVoteTerm] = b
		return nil
	}
	return t.Set(key, b)
}

func (t stableStore) GetUint64(key []byte) (uint64, error) {
	b, err := t.Get(key)
	return getUint64(b), err
}

func getUint64(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// snapshot is a published snapshot. It is never changed.
type snapshot struct {
	meta raft.SnapshotMeta
	data []byte
}

const snapshotPiece = 1 << 20 // bytes of a snapshot that are written in the time of one sync

type snapshotStore struct{ s *Store }

// Create starts a snapshot, which is there only after its Close.
func (p snapshotStore) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("sim: snapshot version %d", version)
	}
	p.s.disk.mu.Lock()
	defer p.s.disk.mu.Unlock()
	p.s.disk.seq++
	k := &sink{store: p.s, beyond: index > p.s.data.last, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d-%d", term, index, p.s.disk.seq), Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}
	if k.beyond && !p.s.detached {
		p.s.disk.step(stepSnapshotBegun)
	}
	return k, nil
}

// Remove removes a snapshot, atomically. A node removes the newest one only if it is of an abandoned restore.
func (p snapshotStore) Remove(id string) error {
	if list, _ := p.List(); len(list) > 0 && list[0].ID == id {
		p.s.step(stepAbandoned)
	}
	return p.s.atomically(func(c *contents) {
		c.snapshots = slices.DeleteFunc(slices.Clone(c.snapshots), func(s *snapshot) bool { return s.meta.ID == id })
	})
}

func (p snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	p.s.disk.mu.Lock()
	defer p.s.disk.mu.Unlock()
	var metas []*raft.SnapshotMeta
	for _, snap := range p.s.data.snapshots {
		meta := snap.meta
		metas = append(metas, &meta)
	}
	return metas, nil
}

func (p snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	p.s.disk.mu.Lock()
	defer p.s.disk.mu.Unlock()
	for _, snap := range p.s.data.snapshots {
		if snap.meta.ID == id {
			meta := snap.meta
			return &meta, io.NopCloser(bytes.NewReader(snap.data)), nil
		}
	}
	return nil, nil, fmt.Errorf("sim: no snapshot %s", id)
}

// sink is a snapshot being written, by one goroutine.
type sink struct {
	store  *Store
	meta   raft.SnapshotMeta
	buf    bytes.Buffer
	synced int  // bytes of buf that have taken their time
	beyond bool // it ends after the log
	done   bool
}

func (k *sink) ID() string { return k.meta.ID }

func (k *sink) Write(b []byte) (int, error) {
	n, _ := k.buf.Write(b)
	for k.buf.Len()-k.synced >= snapshotPiece {
		k.synced += snapshotPiece
		if err := k.store.do(&write{apply: func(*contents, int) {}}); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Close publishes the snapshot, atomically.
func (k *sink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	k.meta.Size = int64(k.buf.Len())
	snap := &snapshot{meta: k.meta, data: k.buf.Bytes()}
	err := k.store.atomically(func(c *contents) { c.publish(snap) })
	if err == nil && k.beyond {
		k.store.step(stepSnapshotStored)
	}
	return err
}

func (k *sink) Cancel() error {
	k.done = true
	return nil
}

// publish adds a snapshot, newest (by term, then index) first. It keeps as many as the storage of a real node.
func (c *contents) publish(snap *snapshot) {
	at := slices.IndexFunc(c.snapshots, func(s *snapshot) bool {
		return s.meta.Term < snap.meta.Term || s.meta.Term == snap.meta.Term && s.meta.Index <= snap.meta.Index
	})
	if at < 0 {
		at = len(c.snapshots)
	}
	c.snapshots = slices.Insert(c.snapshots, at, snap)
	if keep := storage.RetainSnapshots; len(c.snapshots) > keep {
		c.snapshots = c.snapshots[:keep:keep]
	}
}
