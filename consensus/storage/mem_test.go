package storage

import (
	"errors"
	"io/fs"
	"maps"
	"sync"

	"github.com/hashicorp/raft"
)

// memStorage is a Storage in memory whose operations can be delayed or made to fail.
type memStorage struct {
	log       *hookedLog
	stable    *hookedStable
	snapshots *raft.InmemSnapshotStore

	mu    sync.Mutex
	files map[string][]byte
	free  uint64
	size  uint64
	held  bool
	hook  func(op string) error
}

func newMemStorage() *memStorage {
	m := &memStorage{snapshots: raft.NewInmemSnapshotStore(), files: map[string][]byte{}}
	inner := raft.NewInmemStore()
	m.log = &hookedLog{inner, m}
	m.stable = &hookedStable{inner, m}
	return m
}

// before runs the hook set for an operation.
func (m *memStorage) before(op string) error {
	m.mu.Lock()
	hook := m.hook
	m.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(op)
}

func (m *memStorage) setHook(hook func(op string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = hook
}

func (m *memStorage) setFree(free uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free = free
}

func (m *memStorage) Log() raft.LogStore            { return m.log }
func (m *memStorage) Stable() VoteStore             { return m.stable }
func (m *memStorage) Snapshots() raft.SnapshotStore { return m.snapshots }

func (m *memStorage) Load(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, ok := m.files[name]; ok {
		return b, nil
	}
	return nil, fs.ErrNotExist
}

func (m *memStorage) Save(name string, data []byte) error {
	if err := m.before("Save"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(m.files, map[string][]byte{name: data})
	return nil
}

func (m *memStorage) SetAside(_, file string, data []byte) error {
	if err := m.before("Save"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = map[string][]byte{file: data}
	return nil
}

func (m *memStorage) Free() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.free, nil
}

func (m *memStorage) Reserve() (uint64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.size, m.held
}

func (m *memStorage) Space() Space { return m }

func (m *memStorage) HoldReserve() error {
	if err := m.before("HoldReserve"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = true
	m.free -= m.size
	return nil
}

func (m *memStorage) ReleaseReserve() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = false
	m.free += m.size
	return nil
}

func (m *memStorage) Close() error { return m.before("Close") }

type hookedLog struct {
	*raft.InmemStore
	m *memStorage
}

func (l *hookedLog) GetLog(index uint64, out *raft.Log) error {
	if err := l.m.before("GetLog"); err != nil {
		return err
	}
	return l.InmemStore.GetLog(index, out)
}

func (l *hookedLog) StoreLogs(e []*raft.Log) error {
	if err := l.m.before("StoreLogs"); err != nil {
		return err
	}
	return l.InmemStore.StoreLogs(e)
}

func (l *hookedLog) DeleteRange(min, max uint64) error {
	if err := l.m.before("DeleteRange"); err != nil {
		return err
	}
	return l.InmemStore.DeleteRange(min, max)
}

type hookedStable struct {
	*raft.InmemStore
	m *memStorage
}

func (s *hookedStable) SetUint64(key []byte, val uint64) error {
	if err := s.m.before("SetUint64"); err != nil {
		return err
	}
	return s.InmemStore.SetUint64(key, val)
}

func (s *hookedStable) RecordVote(term, voteTerm uint64, candidate []byte) error {
	return errors.Join(s.SetUint64([]byte(keyCurrentTerm), term), s.SetUint64([]byte(keyLastVoteTerm), voteTerm),
		s.Set([]byte(keyLastVoteCand), candidate))
}
