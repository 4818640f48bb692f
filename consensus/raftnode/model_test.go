package raftnode

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// modelDisk is what is durable in a model run. Each write waits until the test lets it succeed or fail.
type modelDisk struct {
	*raft.InmemStore
	t        *testing.T
	phase    func() phase
	begun    chan chan error // receives a write that has begun; the answer is its result
	held     uint64          // the vote's term, which is written with its candidate
	term     uint64
	voteTerm uint64
	vote     string
}

// write has the test decide on a write, and applies it when it succeeds.
func (d *modelDisk) write(apply func() error) error {
	if p := d.phase(); !p.busy() {
		d.t.Errorf("a write in phase %v", p)
	}
	result := make(chan error)
	d.begun <- result
	if err := <-result; err != nil {
		return err
	}
	return apply()
}

func (d *modelDisk) SetUint64(key []byte, v uint64) error {
	if string(key) == keyLastVoteTerm {
		d.held = v
		return nil
	}
	return d.write(func() error { d.term = v; return nil })
}

func (d *modelDisk) Set(_, v []byte) error {
	return d.write(func() error { return d.cast(d.term, d.held, string(v)) })
}

func (d *modelDisk) RecordVote(term, voteTerm uint64, candidate []byte) error {
	return d.write(func() error { return d.cast(term, voteTerm, string(candidate)) })
}

func (d *modelDisk) cast(term, voteTerm uint64, candidate string) error {
	if voteTerm == d.voteTerm && candidate != d.vote {
		d.t.Errorf("two votes in term %d: for %s and %s", voteTerm, d.vote, candidate)
	}
	if voteTerm > term {
		d.t.Errorf("a vote in term %d and the current term is %d", voteTerm, term)
	}
	d.term, d.voteTerm, d.vote = term, voteTerm, candidate
	return nil
}

func (d *modelDisk) StoreLogs(entries []*raft.Log) error {
	return d.write(func() error { return d.InmemStore.StoreLogs(entries) })
}

func (d *modelDisk) DeleteRange(from, to uint64) error {
	return d.write(func() error { return d.InmemStore.DeleteRange(from, to) })
}

// model is raft.Raft and the transport as the store sees them: a main loop that calls the store, and responses that
// other goroutines let out of the node.
type model struct {
	t     *testing.T
	rng   *rand.Rand
	disk  *modelDisk
	store *raftStore

	state       raft.RaftState
	voters      int
	term        uint64 // as the main loop has recorded it
	voteTerm    uint64
	vote        string
	last        uint64
	truncations atomic.Int64
	elected     atomic.Uint64 // the term in which another voter's vote was handed on
	loop        chan struct{} // closed when the main loop's call has ended
	waiting     []chan struct{}
	failed      bool // a write failed: raft.Raft makes no call after that
}

// TestStoreModel makes random calls to the store, on a disk whose writes take random times and sometimes fail.
// Everything that a message depends on must be durable before the message leaves the node.
func TestStoreModel(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			m := newModel(t, seed)
			for range 120 {
				m.step()
				synctest.Wait()
				checkInvariants(t, m.store)
				m.checkReads()
				if t.Failed() {
					break
				}
			}
			m.end()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), state: raft.Follower, voters: 3, term: 1,
		loop: make(chan struct{}),
	}
	close(m.loop)
	if m.rng.IntN(8) == 0 {
		m.voters = 1
	}
	m.disk = &modelDisk{InmemStore: raft.NewInmemStore(), t: t, begun: make(chan chan error), term: 1}
	m.store = newRaftStore(m.disk, m.disk, []byte("me"))
	m.disk.phase = func() phase {
		m.store.mu.Lock()
		defer m.store.mu.Unlock()
		return m.store.phase
	}
	m.store.electionBlocked = func() bool { return false }
	m.store.state, m.store.voters = func() raft.RaftState { return m.state }, func() int { return m.voters }
	return m
}

// step ends a write, lets time pass, hands on a response, or has the main loop make a call.
func (m *model) step() {
	switch n := m.rng.IntN(100); {
	case n < 40:
		m.endWrite(n == 0 && m.rng.IntN(3) == 0)
	case n < 45:
		time.Sleep(noopMaxDelay)
	case n < 60:
		m.handOn()
	case !isClosed(m.loop) || m.failed: // the main loop is inside a call, or has ended
	default:
		m.nextCall()
	}
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (m *model) endWrite(fails bool) {
	select {
	case result := <-m.disk.begun:
		var err error
		if fails {
			err, m.failed = errors.New("input/output error"), true
		}
		result <- err
	default:
	}
}

// apart runs f beside the test, which waits for it at the end.
func (m *model) apart(f func()) chan struct{} {
	done := make(chan struct{})
	m.waiting = append(m.waiting, done)
	go func() {
		defer close(done)
		f()
	}()
	return done
}

// call runs one call of the main loop. raft.Raft ends or panics when it fails.
func (m *model) call(f func() error) {
	m.loop = m.apart(func() {
		if f() != nil {
			m.failed = true
		}
	})
}

func (m *model) nextCall() {
	switch n := m.rng.IntN(10); {
	case m.state == raft.Candidate && m.voteTerm == m.term && (m.voters == 1 || m.elected.Load() == m.term):
		m.state = raft.Leader
		m.durableVote(m.term, "me")
		m.append(raft.LogNoop, 1)
	case m.state == raft.Leader && n < 7:
		m.append([]raft.LogType{
			raft.LogCommand, raft.LogCommand, raft.LogBarrier,
			raft.LogConfiguration,
		}[m.rng.IntN(4)], 1+m.rng.IntN(3))
	case n < 3:
		m.startElection()
	case n < 6:
		m.answerVote()
	default:
		m.follow()
	}
}

func (m *model) setTerm(term uint64) error {
	if err := m.store.SetUint64([]byte(keyCurrentTerm), term); err != nil {
		return err
	}
	m.term = term
	return nil
}

func (m *model) castVote(candidate string) error {
	err := errors.Join(m.store.SetUint64([]byte(keyLastVoteTerm), m.term),
		m.store.Set([]byte(keyLastVoteCand), []byte(candidate)))
	if err == nil {
		m.voteTerm, m.vote = m.term, candidate
	}
	return err
}

// startElection makes the model a candidate, which votes for itself.
func (m *model) startElection() {
	m.state = raft.Candidate
	m.call(func() error {
		if err := m.setTerm(m.term + 1); err != nil {
			return err
		}
		return m.castVote("me")
	})
}

// answerVote handles a RequestVote of another node in a newer term.
func (m *model) answerVote() {
	m.store.trackVote(true)
	m.state = raft.Follower
	term, grants := m.term+1, m.rng.IntN(3) > 0
	m.call(func() error {
		if err := m.setTerm(term); err != nil || !grants {
			return err
		}
		return m.castVote("n2")
	})
	handled := m.loop
	m.apart(func() {
		defer m.store.trackVote(false)
		<-handled
		granted := grants && m.voteTerm == term
		if m.term < term || m.store.flushBeforeReply() != nil {
			return
		}
		if m.disk.term < term {
			m.t.Errorf("a response of term %d leaves, and term %d is durable", term, m.disk.term)
		}
		if granted {
			m.durableVote(term, "n2")
		}
	})
}

func (m *model) durableVote(term uint64, candidate string) {
	if m.disk.voteTerm < term || m.disk.voteTerm == term && m.disk.vote != candidate {
		m.t.Errorf("the vote for %s in term %d counts, and %s in term %d is durable", candidate, term, m.disk.vote,
			m.disk.voteTerm)
	}
}

// follow stores entries of another leader, sometimes after a truncation, and answers.
func (m *model) follow() {
	m.state = raft.Follower
	term, truncates, n := m.term+uint64(m.rng.IntN(2)), m.rng.IntN(3) == 0 && m.last > 0, 1+m.rng.IntN(3)
	m.call(func() error {
		if term > m.term {
			if err := m.setTerm(term); err != nil {
				return err
			}
		}
		if truncates {
			m.truncations.Add(1)
			if err := m.store.DeleteRange(m.last, m.last); err != nil {
				return err
			}
			m.last--
		}
		return m.storeEntries(raft.LogCommand, n)
	})
	handled, before := m.loop, m.truncations.Load()
	m.apart(func() {
		<-handled
		last, now := m.last, m.truncations.Load()
		if !m.failed && m.store.flushBeforeReply() == nil && now-before <= 1 {
			m.durableLog(last, now)
		}
	})
}

// durableLog fails the test if the log on the disk ends before index.
func (m *model) durableLog(index uint64, truncations int64) {
	last, err := m.disk.LastIndex()
	if (err != nil || last < index) && m.truncations.Load() == truncations {
		m.t.Errorf("an acknowledgement of entry %d leaves, and the log on the disk ends at %d (%v)", index, last, err)
	}
}

// append stores a leader's entries. A single voter commits them immediately.
func (m *model) append(kind raft.LogType, n int) {
	m.call(func() error {
		err := m.storeEntries(kind, n)
		if err == nil && (m.voters == 1 || kind == raft.LogConfiguration) {
			m.durableLog(m.last, m.truncations.Load())
		}
		return err
	})
}

func (m *model) storeEntries(kind raft.LogType, n int) error {
	var entries []*raft.Log
	for i := range uint64(n) {
		entries = append(entries, &raft.Log{Index: m.last + 1 + i, Term: m.term, Type: kind})
	}
	err := m.store.StoreLogs(entries)
	if err == nil {
		m.last += uint64(n)
	}
	return err
}

// handOn hands raft.Raft the response of a peer: a vote for a candidate, or an acknowledgement of an entry that a
// leader could read, and so send.
func (m *model) handOn() {
	var e raft.Log
	switch {
	case m.state == raft.Candidate:
		term := m.term
		m.apart(func() {
			if m.store.flushBeforeReply() == nil {
				m.elected.Store(term)
			}
		})
	case m.state == raft.Leader && m.last > 0:
		index := 1 + m.rng.Uint64N(m.last)
		if m.store.GetLog(index, &e) == nil {
			now := m.truncations.Load()
			m.apart(func() {
				if m.store.waitAppended(index) == nil {
					m.durableLog(index, now)
				}
			})
		}
	}
}

// checkReads compares what raft.Raft reads between two calls with what it has stored.
func (m *model) checkReads() {
	if !isClosed(m.loop) || m.failed {
		return
	}
	if last, err := m.store.LastIndex(); last != m.last || err != nil {
		m.t.Errorf("last index %d, %v: want %d", last, err, m.last)
	}
	var e raft.Log
	if err := m.store.GetLog(m.last, &e); m.last > 0 && err != nil && !errors.Is(err, ErrNoopPending) {
		m.t.Errorf("entry %d: %v", m.last, err)
	}
	term, err := m.store.GetUint64([]byte(keyLastVoteTerm))
	who, err2 := m.store.Get([]byte(keyLastVoteCand))
	if m.voteTerm > 0 && (term != m.voteTerm || string(who) != m.vote || err != nil || err2 != nil) {
		m.t.Errorf("the vote reads as %s in term %d, want %s in term %d", who, term, m.vote, m.voteTerm)
	}
}

func (d *modelDisk) GetUint64([]byte) (uint64, error) { return d.voteTerm, nil }
func (d *modelDisk) Get([]byte) ([]byte, error)       { return []byte(d.vote), nil }

// end closes the store: every goroutine of it ends, once the disk ends its write.
func (m *model) end() {
	m.store.close()
	stopped := m.apart(m.store.stopWrites)
	for synctest.Wait(); !isClosed(stopped); synctest.Wait() {
		m.endWrite(false)
	}
	for _, done := range m.waiting {
		if !isClosed(done) {
			m.t.Error("a caller waits after the end")
		}
	}
	checkInvariants(m.t, m.store)
}
