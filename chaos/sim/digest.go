package sim

import (
	"hash/crc32"
	"sync"
	"time"
)

// digest is a hash over what happened in a run, in its order: every arrival
// of bytes, every write to a disk, every event, with its time. Runs of equal
// digests went the same way. A nil one takes no note. It may be added to from
// any goroutine.
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
