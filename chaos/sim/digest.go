package sim

import (
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"sync"
	"time"
)

// digest is a hash over what happened in a run, in its order: every arrival of bytes, every write to a disk, every
// event, with its time. Runs of equal digests went the same way. A nil one takes no note. It may be added to from any
// goroutine.
type digest struct {
	mu  sync.Mutex
	sum uint64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// add records what happens now: what it is, and to whom.
func (d *digest) add(what, whom uint64, data []byte) {
	if d == nil {
		return
	}
	x := uint64(crc32.Checksum(data, castagnoli))
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range [...]uint64{what, whom, x, uint64(time.Now().UnixNano())} {
		d.sum = mix(d.sum ^ n)
	}
}

func (d *digest) value() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sum
}

// hash mixes a seed with what a drawn number is for, so that a draw does not depend on which goroutine comes first.
func hash(seed uint64, from, to string, seq uint64) uint64 {
	h := fnv.New64a()
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], seed)
	binary.LittleEndian.PutUint64(b[8:], seq)
	_, _ = h.Write(b[:])
	_, _ = h.Write([]byte(from))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(to))
	return mix(h.Sum64())
}

// mix is the finalizer of splitmix64: every bit of x counts for every bit of the result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}
