package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
)

// The vote file has two slots of one block each. A record holds the whole content. Each new record goes into
// slot seq%2 with one sync, so the other slot always holds the previous record.
//
// Within its block a record is written twice, half a block apart. A write that was cut short leaves one valid
// copy, the new or the old one. Damage to either copy leaves the other. So a block without a valid copy is
// never a torn write, and must not be treated as one: a fallback to the previous record would forget a vote.
const (
	voteName    = "vote"
	slotSize    = 4096
	copyOffset  = slotSize / 2
	voteMagic   = 0x4e53564f // "NSVO"
	voteVersion = 1
	voteHead    = 32
	// maxCandidate keeps a copy within one 512-byte sector.
	maxCandidate = 512 - voteHead - 4
)

// Keys that the Raft library uses.
const (
	keyCurrentTerm  = "CurrentTerm"
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
)

type voteRecord struct {
	seq         uint64
	hasTerm     bool
	currentTerm uint64
	hasVote     bool
	voteTerm    uint64
	candidate   []byte
}

// same reports whether two records have the same content apart from their sequence.
func (r voteRecord) same(o voteRecord) bool {
	return r.hasTerm == o.hasTerm && r.currentTerm == o.currentTerm &&
		r.hasVote == o.hasVote && r.voteTerm == o.voteTerm && bytes.Equal(r.candidate, o.candidate)
}

// slot returns the block with both copies of the record.
func (r voteRecord) slot() []byte {
	block := make([]byte, slotSize)
	b := block[:voteHead]
	binary.BigEndian.PutUint32(b[0:], voteMagic)
	b[4] = voteVersion
	if r.hasTerm {
		b[5] |= 1
	}
	if r.hasVote {
		b[5] |= 2
	}
	binary.BigEndian.PutUint16(b[6:], uint16(len(r.candidate)))
	binary.BigEndian.PutUint64(b[8:], r.seq)
	binary.BigEndian.PutUint64(b[16:], r.currentTerm)
	binary.BigEndian.PutUint64(b[24:], r.voteTerm)
	n := voteHead + copy(block[voteHead:], r.candidate)
	binary.BigEndian.PutUint32(block[n:], crc32.Checksum(block[:n], castagnoli))
	copy(block[copyOffset:], block[:n+4])
	return block
}

func readCopy(b []byte) (voteRecord, bool) {
	n := voteHead + int(binary.BigEndian.Uint16(b[6:]))
	if binary.BigEndian.Uint32(b) != voteMagic || n > voteHead+maxCandidate {
		return voteRecord{}, false
	}
	if crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) || b[4] != voteVersion {
		return voteRecord{}, false
	}
	r := voteRecord{
		seq:         binary.BigEndian.Uint64(b[8:]),
		hasTerm:     b[5]&1 != 0,
		currentTerm: binary.BigEndian.Uint64(b[16:]),
		hasVote:     b[5]&2 != 0,
		voteTerm:    binary.BigEndian.Uint64(b[24:]),
	}
	if r.hasVote {
		r.candidate = bytes.Clone(b[voteHead:n])
	}
	return r, true
}

// readSlot decodes the newer valid copy in a block.
func readSlot(block []byte) (voteRecord, bool) {
	a, okA := readCopy(block[:copyOffset])
	b, okB := readCopy(block[copyOffset:])
	if okB && (!okA || b.seq > a.seq) {
		return b, true
	}
	return a, okA
}

func readVote(file []byte) (voteRecord, error) {
	if len(file) != 2*slotSize {
		return voteRecord{}, fmt.Errorf("it has %d bytes, not %d", len(file), 2*slotSize)
	}
	var slots [2]voteRecord
	for i := range slots {
		r, ok := readSlot(file[i*slotSize : (i+1)*slotSize])
		if !ok || r.seq%2 != uint64(i) {
			return voteRecord{}, fmt.Errorf("slot %d holds no valid record", i)
		}
		slots[i] = r
	}
	switch a, b := slots[0], slots[1]; {
	case a.seq == b.seq+1:
		return a, nil
	case b.seq == a.seq+1:
		return b, nil
	default:
		return voteRecord{}, fmt.Errorf("its slots hold the records %d and %d", a.seq, b.seq)
	}
}

// newVoteFile returns the content of a vote file in which nothing is recorded.
func newVoteFile() []byte {
	return append(voteRecord{seq: 0}.slot(), voteRecord{seq: 1}.slot()...)
}

// voteFile is a raft.StableStore for the three keys of the Raft library. That records a vote as LastVoteTerm and then
// LastVoteCand. A crash between the two would combine the new term with the old candidate: so voteFile keeps the term
// in memory, and both become durable in one record.
type voteFile struct {
	mu              sync.Mutex
	file            *os.File
	durable         voteRecord
	pendingVoteTerm uint64
	hasHeld         bool
	writeErr        error
}

func openVote(path string) (*voteFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	r, err := loadVote(f, path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &voteFile{file: f, durable: r}, nil
}

func loadVote(f *os.File, path string) (voteRecord, error) {
	// Data that was written but not synced when the process died is in the page cache only. It must be
	// durable before anything depends on it.
	if err := f.Sync(); err != nil {
		return voteRecord{}, fmt.Errorf("sync %s: %w", path, err)
	}
	content, err := io.ReadAll(io.LimitReader(f, 2*slotSize+1))
	if err != nil {
		return voteRecord{}, fmt.Errorf("read %s: %w", path, err)
	}
	r, err := readVote(content)
	if err != nil {
		return voteRecord{}, &DamagedError{Path: path, What: err.Error()}
	}
	return r, nil
}

// Get reads LastVoteCand.
func (v *voteFile) Get(key []byte) ([]byte, error) {
	if string(key) != keyLastVoteCand {
		return nil, unknownKey(key)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.durable.hasVote {
		return nil, errNotFound
	}
	return bytes.Clone(v.durable.candidate), nil
}

// GetUint64 reads CurrentTerm or LastVoteTerm as last recorded.
func (v *voteFile) GetUint64(key []byte) (uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch string(key) {
	case keyCurrentTerm:
		if v.durable.hasTerm {
			return v.durable.currentTerm, nil
		}
	case keyLastVoteTerm:
		if v.durable.hasVote {
			return v.durable.voteTerm, nil
		}
	default:
		return 0, unknownKey(key)
	}
	return 0, errNotFound
}

// SetUint64 records CurrentTerm. It keeps LastVoteTerm in memory until the Set of LastVoteCand that follows.
func (v *voteFile) SetUint64(key []byte, val uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch string(key) {
	case keyCurrentTerm:
		next := v.durable
		next.hasTerm, next.currentTerm = true, val
		return v.record(next)
	case keyLastVoteTerm:
		v.pendingVoteTerm, v.hasHeld = val, true
		return v.writeErr
	default:
		return unknownKey(key)
	}
}

// Set records LastVoteCand together with the LastVoteTerm set before it.
func (v *voteFile) Set(key, val []byte) error {
	if string(key) != keyLastVoteCand {
		return unknownKey(key)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.hasHeld {
		return errors.New("LastVoteCand set without LastVoteTerm before it")
	}
	return v.recordVote(v.durable, v.pendingVoteTerm, val)
}

// RecordVote records the current term and a vote together.
func (v *voteFile) RecordVote(term, voteTerm uint64, candidate []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := v.durable
	next.hasTerm, next.currentTerm = true, term
	return v.recordVote(next, voteTerm, candidate)
}

// recordVote makes next durable with that vote in it. The lock must be held.
func (v *voteFile) recordVote(next voteRecord, voteTerm uint64, candidate []byte) error {
	if len(candidate) > maxCandidate {
		return fmt.Errorf("candidate of %d bytes: at most %d fit", len(candidate), maxCandidate)
	}
	next.hasVote, next.voteTerm, next.candidate = true, voteTerm, bytes.Clone(candidate)
	if err := v.record(next); err != nil {
		return err
	}
	v.hasHeld = false
	return nil
}

// record makes next durable, unless its content is v.durable, which record or loadVote has synced.
func (v *voteFile) record(next voteRecord) error {
	if v.writeErr != nil {
		return v.writeErr
	}
	if next.same(v.durable) {
		return nil
	}
	next.seq = v.durable.seq + 1
	_, err := v.file.WriteAt(next.slot(), int64(next.seq%2)*slotSize)
	if err == nil {
		err = fdatasync(v.file)
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", v.file.Name(), err)
		if !isNoSpace(err) {
			v.writeErr = err // a sync that failed once may succeed without effect
		}
		return err
	}
	v.durable = next
	return nil
}

func (v *voteFile) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.writeErr == nil {
		v.writeErr = ErrClosed
	}
	return v.file.Close()
}

func unknownKey(key []byte) error { return fmt.Errorf("the vote file holds no key %q", key) }
