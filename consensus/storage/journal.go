package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

const (
	journalName = "log.journal"
	journalSize = 1 << 20
	// maxJournaled is the largest append that goes through the journal. It is not worth writing more than that twice.
	maxJournaled = 128 << 10

	// A sector is what a disk writes completely or not at all. Both its ends have its record's tag, so that a sector
	// that was not written differs from one that was damaged.
	sectorSize  = 512
	tagSize     = 8
	sectorBytes = sectorSize - 2*tagSize

	recordHead = 12            // length of the entries, its complement, and their checksum
	entryHead  = 8*3 + 4*3 + 1 // of one entry
	maxRecords = 1<<16 - 1     // in an epoch; each has a sector at least
	_          = uint(maxRecords - journalSize/sectorSize)
)

// journal is a file of fixed size in which appends become durable with one sync. bbolt needs two for a transaction.
// The records of an epoch follow each other, each from a sector of its own. An epoch is the bbolt transaction that
// begins it: from then on bbolt has all entries of earlier epochs, and the first sector is overwritten.
type journal struct {
	file  *os.File
	epoch uint64
	seq   uint64 // of the last record
	off   int64  // where the next one begins
	data  []byte // buffers
	disk  []byte
	err   error // a sync that failed once may succeed later without effect
}

// openJournal opens the journal beside a log. If the log does not use it, it becomes one of zeros: what an earlier log
// has left there must not be taken for records.
func openJournal(logPath string, used bool) (*journal, error) {
	path, zeros := journalPath(logPath), make([]byte, journalSize)
	if st, err := os.Stat(path); !used && (err != nil || st.Size() != journalSize) {
		// The zeros are written, not only reserved: a first write into a reserved block costs a change of metadata.
		if err := saveFile(path, zeros); err != nil {
			return nil, fmt.Errorf("create %s: %w", path, err)
		}
		used = true
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil || used {
		return &journal{file: f}, err
	}
	// In place: a full disk has no room for another file.
	if _, err = f.WriteAt(zeros, 0); err == nil {
		err = fdatasync(f)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("clear %s: %w", path, err), f.Close())
	}
	return &journal{file: f}, nil
}

func journalPath(logPath string) string { return filepath.Join(filepath.Dir(logPath), journalName) }

// begin forgets all records: the bbolt transaction epoch has their entries.
func (j *journal) begin(epoch uint64) { j.epoch, j.seq, j.off = epoch, 0, 0 }

// append makes entries durable. It returns false without an error, and does nothing, if they have no room.
func (j *journal) append(entries []*raft.Log) (bool, error) {
	size := recordHead
	for _, e := range entries {
		size += entryHead + len(e.Data) + len(e.Extensions)
	}
	sectors := int64(size+sectorBytes-1) / sectorBytes
	if j.err != nil || size > maxJournaled || j.off+sectors*sectorSize > journalSize {
		return false, j.err
	}
	j.encode(entries)
	tag := sectorTag(j.epoch, j.seq+1)
	j.disk = j.disk[:0]
	for left := j.data; len(left) > 0; {
		n := min(len(left), sectorBytes)
		j.disk = append(binary.BigEndian.AppendUint64(j.disk, tag), left[:n]...)
		j.disk = append(j.disk, make([]byte, sectorBytes-n)...)
		j.disk = binary.BigEndian.AppendUint64(j.disk, tag)
		left = left[n:]
	}
	_, err := j.file.WriteAt(j.disk, j.off)
	if err == nil {
		err = fdatasync(j.file)
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", j.file.Name(), err)
		if !isNoSpace(err) {
			j.err = err
		}
		return false, err
	}
	j.seq++
	j.off += sectors * sectorSize
	return true, nil
}

func sectorTag(epoch, seq uint64) uint64 { return epoch<<16 | seq }

// encode writes the content of a record into data.
func (j *journal) encode(entries []*raft.Log) {
	b := append(j.data[:0], make([]byte, recordHead)...)
	for _, e := range entries {
		b = binary.BigEndian.AppendUint64(b, e.Index)
		b = binary.BigEndian.AppendUint64(b, e.Term)
		b = binary.BigEndian.AppendUint64(b, uint64(e.AppendedAt.Unix()))
		b = binary.BigEndian.AppendUint32(b, uint32(e.AppendedAt.Nanosecond()))
		b = binary.BigEndian.AppendUint32(b, sizeOrNil(e.Data))
		b = binary.BigEndian.AppendUint32(b, sizeOrNil(e.Extensions))
		b = append(append(append(b, byte(e.Type)), e.Data...), e.Extensions...)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-recordHead))
	binary.BigEndian.PutUint32(b[4:], ^uint32(len(b)-recordHead))
	binary.BigEndian.PutUint32(b[8:], crc32.Checksum(b[recordHead:], castagnoli))
	j.data = b
}

// sizeOrNil returns the length of bytes plus one, 0 for nil: both are read as they were.
func sizeOrNil(b []byte) uint32 {
	if b == nil {
		return 0
	}
	return uint32(len(b)) + 1
}

func (j *journal) close() error { return j.file.Close() }

// readJournal reads the entries of an epoch from a log's journal. Entries of the last record may be missing: when it
// was not written completely, it was not acknowledged.
func readJournal(logPath string, epoch uint64) ([]raft.Log, error) {
	path := journalPath(logPath)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &DamagedError{Path: path, What: "it is missing"}
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if err := f.Sync(); err != nil { // as in checkLog
		return nil, fmt.Errorf("sync %s: %w", path, err)
	}
	content, err := io.ReadAll(io.LimitReader(f, journalSize+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	entries, err := decodeJournal(content, epoch)
	if err != nil {
		return nil, &DamagedError{Path: path, What: err.Error()}
	}
	return entries, nil
}

func decodeJournal(content []byte, epoch uint64) (all []raft.Log, err error) {
	if len(content) != journalSize {
		return nil, fmt.Errorf("it has %d bytes, not %d", len(content), journalSize)
	}
	for seq, rest := uint64(1), content; ; seq++ {
		record, after, err := takeRecord(rest, sectorTag(epoch, seq))
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", seq, err)
		}
		if record == nil {
			return all, checkJournalEnd(rest, epoch, seq)
		}
		if all, err = decodeEntries(record, all); err != nil {
			return nil, fmt.Errorf("record %d: %w", seq, err)
		}
		rest = after
	}
}

// takeRecord returns the content of the record at the beginning of rest, and what follows it; nil if there is none, or
// if a sector of it was never written.
func takeRecord(rest []byte, tag uint64) (record, after []byte, err error) {
	for size := recordHead; len(record) < size; {
		if len(rest) < sectorSize {
			return nil, nil, nil
		}
		head, tail := binary.BigEndian.Uint64(rest), binary.BigEndian.Uint64(rest[sectorSize-tagSize:])
		if head != tail {
			return nil, nil, errors.New("the ends of a sector differ")
		}
		if head != tag {
			return nil, nil, nil
		}
		record = append(record, rest[tagSize:sectorSize-tagSize]...)
		if rest = rest[sectorSize:]; size == recordHead {
			// A wrong length would make a record look as if it had not been written completely.
			if binary.BigEndian.Uint32(record) != ^binary.BigEndian.Uint32(record[4:]) {
				return nil, nil, errors.New("its length does not verify")
			}
			size = recordHead + int(binary.BigEndian.Uint32(record))
		}
		if len(record) >= size {
			record = record[:size]
		}
	}
	if sum := crc32.Checksum(record[recordHead:], castagnoli); sum != binary.BigEndian.Uint32(record[8:]) {
		return nil, nil, errors.New("its checksum does not match")
	}
	return record[recordHead:], rest, nil
}

// checkJournalEnd checks that nothing newer follows record seq, which is missing or was not written completely. A newer
// epoch would show that the log lacks a transaction.
func checkJournalEnd(rest []byte, epoch, seq uint64) error {
	for ; len(rest) > 0; rest = rest[sectorSize:] {
		if tag := binary.BigEndian.Uint64(rest); tag > sectorTag(epoch, seq) {
			return fmt.Errorf("record %d is missing, and a later one is there", seq)
		}
	}
	return nil
}

// decodeEntries appends the entries of a record.
func decodeEntries(b []byte, all []raft.Log) ([]raft.Log, error) {
	for len(b) > 0 {
		if len(b) < entryHead {
			return nil, errors.New("half an entry")
		}
		e := raft.Log{
			Index: binary.BigEndian.Uint64(b), Term: binary.BigEndian.Uint64(b[8:]), Type: raft.LogType(b[36]),
			AppendedAt: time.Unix(int64(binary.BigEndian.Uint64(b[16:])), int64(binary.BigEndian.Uint32(b[24:]))).UTC(),
		}
		sizes := [2]uint32{binary.BigEndian.Uint32(b[28:]), binary.BigEndian.Uint32(b[32:])}
		b = b[entryHead:]
		for i, to := range []*[]byte{&e.Data, &e.Extensions} {
			if sizes[i] == 0 {
				continue
			}
			n := int(sizes[i] - 1)
			if n > len(b) {
				return nil, errors.New("half an entry")
			}
			*to, b = b[:n:n], b[n:]
		}
		all = append(all, e)
	}
	return all, nil
}
