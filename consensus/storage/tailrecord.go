package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

// The tail record is an extra entry behind the last one. It names the bbolt transaction that wrote it and the
// last entry of the log. Every transaction on the log rewrites it. So a file whose newest pages were lost or
// replaced by older ones cannot pass for a shorter log.
const (
	tailKey   = math.MaxUint64
	tailMagic = 0x4e535431 // "NST1"
	// "NST2": journal is set. A build that knows no journal refuses such a log, in place of losing its last entries.
	journalMagic = 0x4e535432
	tailSize     = 4 + 5*8 + 4
)

// tail is the content of the tail record. Two transactions cannot write it themselves: the one in which
// raft-boltdb deletes entries, and the one of its opening. The tail written before them announces this
// (untaggedTx). It also names the range to be deleted, because a crash may have left the deletion half done.
type tail struct {
	txid       uint64 // the transaction that wrote this
	last       uint64 // last index of the log when all is done, 0 for none
	untaggedTx uint64 // 1 if one transaction without a tail may have followed
	from, to   uint64 // range being deleted; to is 0 for none
	journal    bool   // entries of the epoch txid may be in the journal
}

func (t tail) encode() []byte {
	magic := uint32(tailMagic)
	if t.journal {
		magic = journalMagic
	}
	b := binary.BigEndian.AppendUint32(nil, magic)
	for _, v := range []uint64{t.txid, t.last, t.untaggedTx, t.from, t.to} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func (t tail) entry() *raft.Log { return &raft.Log{Index: tailKey, Data: t.encode()} }

// decodeTail decodes the tail record from bbolt's value: a raft.Log in raft-boltdb's encoding.
func decodeTail(value []byte) (tail, error) {
	e, err := decodeEntry(value)
	b := e.Data
	if err != nil || e.Index != tailKey || len(b) != tailSize ||
		binary.BigEndian.Uint32(b[tailSize-4:]) != crc32.Checksum(b[:tailSize-4], castagnoli) {
		return tail{}, errors.New("its last record does not verify")
	}
	magic := binary.BigEndian.Uint32(b)
	if magic != tailMagic && magic != journalMagic {
		return tail{}, errors.New("its last record is of a newer version")
	}
	u := func(i int) uint64 { return binary.BigEndian.Uint64(b[4+8*i:]) }
	return tail{txid: u(0), last: u(1), untaggedTx: u(2), from: u(3), to: u(4), journal: magic == journalMagic}, nil
}

// The handle is safe for concurrent use; a new one for each call would be slow.
var msgpack codec.MsgpackHandle

// decodeEntry decodes a raft.Log in raft-boltdb's encoding.
func decodeEntry(value []byte) (raft.Log, error) {
	var e raft.Log
	err := codec.NewDecoderBytes(value, &msgpack).Decode(&e)
	return e, err
}

// checkTail compares the tail with its file. It returns the log's indexes without those of an unfinished deletion.
func checkTail(c boltSummary) (tail, indexRanges, error) {
	t, err := decodeTail(c.tail)
	if err != nil {
		return tail{}, nil, err
	}
	if t.txid != c.txid && (t.untaggedTx == 0 || t.txid+1 != c.txid) {
		return tail{}, nil, fmt.Errorf("its last record is of transaction %d, its pages are of %d", t.txid, c.txid)
	}
	left := c.spans
	if t.to > 0 {
		left = left.without(t.from, t.to)
	}
	if left.last() != t.last {
		return tail{}, nil, fmt.Errorf("its last entry is %d, but %d was the last one written", left.last(), t.last)
	}
	return t, left, nil
}

// boltOptions are the options of every opening. bbolt rebuilds the list of free pages when it opens the file,
// and does not write it with each transaction.
func boltOptions() *bbolt.Options {
	return &bbolt.Options{Timeout: 5 * time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}
}

// writeOpeningTail writes a tail record, directly in bbolt, that lets raft-boltdb's opening transaction follow the one
// that wrote t, and returns its transaction. It also finishes the deletion that t names, adds the entries of the
// journal, and creates the buckets of a new file.
func writeOpeningTail(path string, t tail, journaled []raft.Log) (txid uint64, err error) {
	db, err := bbolt.Open(path, 0o600, boltOptions())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return txid, db.Update(func(tx *bbolt.Tx) error {
		txid = uint64(tx.ID())
		if _, err := tx.CreateBucketIfNotExists([]byte("conf")); err != nil {
			return err
		}
		logs, err := tx.CreateBucketIfNotExists([]byte("logs"))
		if err != nil {
			return err
		}
		if err := deleteKeys(logs, t.from, t.to); err != nil {
			return err
		}
		last := t.last
		for i := range journaled {
			last = max(last, journaled[i].Index)
			if err := putEntry(logs, &journaled[i]); err != nil {
				return err
			}
		}
		return putEntry(logs, tail{txid: txid, last: last, untaggedTx: 1, journal: t.journal}.entry())
	})
}

// putEntry stores an entry as raft-boltdb does.
func putEntry(logs *bbolt.Bucket, e *raft.Log) error {
	var value []byte
	if err := codec.NewEncoderBytes(&value, &msgpack).Encode(e); err != nil {
		return err
	}
	return logs.Put(indexKey(e.Index), value)
}

// deleteKeys deletes the entries from to to; none if to is 0.
func deleteKeys(logs *bbolt.Bucket, from, to uint64) error {
	for to > 0 {
		key, _ := logs.Cursor().Seek(indexKey(from))
		if key == nil || binary.BigEndian.Uint64(key) > to {
			return nil
		}
		if err := logs.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

func indexKey(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }
