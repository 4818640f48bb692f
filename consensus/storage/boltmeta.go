package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// boltMeta is one of the two meta pages.
type boltMeta struct {
	pageSize int64
	root     uint64
	freelist uint64
	pages    uint64 // high-water mark
	txid     uint64
}

// newestMeta reads both meta pages. They must be of consecutive transactions.
func newestMeta(r io.ReaderAt) (boltMeta, error) {
	first, err := readMeta(r, 0, 0)
	if err != nil {
		return boltMeta{}, err
	}
	second, err := readMeta(r, 1, first.pageSize)
	if err != nil {
		return boltMeta{}, err
	}
	switch {
	case first.pageSize != second.pageSize:
	case first.txid == second.txid+1 && first.txid%2 == 0:
		return first, nil
	case second.txid == first.txid+1 && second.txid%2 == 1:
		return second, nil
	}
	return boltMeta{}, errors.New("its meta pages do not belong together")
}

func readMeta(r io.ReaderAt, id uint64, off int64) (boltMeta, error) {
	var b [pageHeadSize + metaSize]byte
	if _, err := r.ReadAt(b[:], off); err != nil {
		return boltMeta{}, fmt.Errorf("meta page %d cannot be read: %w", id, err)
	}
	u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	h := pageHead(b[:])
	m := b[pageHeadSize:]
	sum := fnv.New64a()
	_, _ = sum.Write(m[:metaSize-8])
	if h.id != id || h.flags != flagMeta || h.count != 0 || h.overflow != 0 ||
		u32(m) != boltMagic || u32(m[4:]) != boltVersion || u64(m[56:]) != sum.Sum64() {
		return boltMeta{}, fmt.Errorf("meta page %d does not verify", id)
	}
	meta := boltMeta{
		pageSize: int64(u32(m[8:])), root: u64(m[16:]), freelist: u64(m[32:]), pages: u64(m[40:]),
		txid: u64(m[48:]),
	}
	if meta.pageSize < minPageSize || meta.pageSize > maxPageSize {
		return boltMeta{}, fmt.Errorf("meta page %d names pages of %d bytes", id, meta.pageSize)
	}
	return meta, nil
}

type header struct {
	id           uint64
	flags, count uint16
	overflow     uint32
}

func pageHead(b []byte) header {
	return header{
		id:       binary.LittleEndian.Uint64(b),
		flags:    binary.LittleEndian.Uint16(b[8:]),
		count:    binary.LittleEndian.Uint16(b[10:]),
		overflow: binary.LittleEndian.Uint32(b[12:]),
	}
}
