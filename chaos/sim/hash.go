package sim

import (
	"encoding/binary"
	"hash/fnv"
)

// hash mixes a seed with what a drawn number is for, so that a draw does not
// depend on which goroutine comes first.
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

// mix is the finalizer of splitmix64: every bit of x counts for every bit of
// the result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}
