package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A stored entry's Extensions end in a seal. Its first byte records whether the entry had Extensions of its
// own. The checksum follows, big endian.
const (
	sealSize      = 5
	extensionsNil = 0x51
	extensionsSet = 0x52
)

var errNoChecksum = errors.New("it carries no checksum")

// entryOverhead is roughly the memory that an entry takes in addition to its bytes.
const entryOverhead = 96

func entrySize(e *raft.Log) int { return len(e.Data) + len(e.Extensions) + entryOverhead }

// addChecksums returns copies of the entries with their checksums. The copies share the entries' data.
func addChecksums(entries []*raft.Log) []*raft.Log {
	size := 0
	for _, e := range entries {
		size += len(e.Extensions) + sealSize
	}
	ext := make([]byte, 0, size)
	copies, sealed := make([]raft.Log, len(entries)), make([]*raft.Log, len(entries))
	for i, e := range entries {
		kind := byte(extensionsSet)
		if e.Extensions == nil {
			kind = extensionsNil
		}
		start := len(ext)
		ext = append(append(ext, e.Extensions...), kind)
		ext = binary.BigEndian.AppendUint32(ext, checksum(e, kind))
		copies[i] = *e
		copies[i].Extensions = ext[start:len(ext):len(ext)]
		sealed[i] = &copies[i]
	}
	return sealed
}

// verifyChecksum checks an entry that was stored under index, and removes its seal.
func verifyChecksum(index uint64, e *raft.Log) error {
	n := len(e.Extensions) - sealSize
	if n < 0 {
		return errNoChecksum
	}
	kind, sum := e.Extensions[n], binary.BigEndian.Uint32(e.Extensions[n+1:])
	e.Extensions = e.Extensions[:n:n]
	switch {
	case kind == extensionsNil && n == 0:
		e.Extensions = nil
	case kind != extensionsSet:
		return errNoChecksum
	}
	if e.Index != index {
		return fmt.Errorf("it is the entry of index %d", e.Index)
	}
	if checksum(e, kind) != sum {
		return errors.New("its checksum does not match")
	}
	return nil
}

func checksum(e *raft.Log, kind byte) uint32 {
	var head [8 + 8 + 1 + 1 + 8 + 8 + 4]byte
	binary.BigEndian.PutUint64(head[0:], e.Index)
	binary.BigEndian.PutUint64(head[8:], e.Term)
	head[16] = byte(e.Type)
	head[17] = kind
	binary.BigEndian.PutUint64(head[18:], uint64(len(e.Data)))
	binary.BigEndian.PutUint64(head[26:], uint64(e.AppendedAt.Unix()))
	binary.BigEndian.PutUint32(head[34:], uint32(e.AppendedAt.Nanosecond()))
	sum := crc32.Update(0, castagnoli, head[:])
	sum = crc32.Update(sum, castagnoli, e.Data)
	return crc32.Update(sum, castagnoli, e.Extensions)
}
