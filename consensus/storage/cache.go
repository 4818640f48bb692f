package storage

import (
	"sync"

	"github.com/hashicorp/raft"
)

// cache holds the newest log entries: consecutive indexes, all of them durable. Only writes fill it, and the check of
// the log before there are any. If reads filled it too, a read that overlaps a truncation could bring back deleted
// entries.
type cache struct {
	maxBytes, maxEntries int

	mu sync.RWMutex
	// entries[head:] are the entries first, first+1, and so on; add drops the evicted ones before when it must grow.
	entries []raft.Log
	head    int
	first   uint64
	bytes   int
}

func newCache(maxBytes, maxEntries int) *cache {
	return &cache{maxBytes: maxBytes, maxEntries: maxEntries}
}

// get copies an entry into the caller's, sharing its bytes.
func (c *cache) get(index uint64, out *raft.Log) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if index < c.first || index-c.first >= uint64(len(c.entries)-c.head) {
		return false
	}
	*out = c.entries[c.head+int(index-c.first)]
	return true
}

// add adds entries that have just become durable. They replace those of the same indexes and all that follow.
func (c *cache) add(entries []*raft.Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		c.cutFrom(e.Index)
		if n := len(c.entries) - c.head; n == 0 || e.Index != c.first+uint64(n) {
			c.reset()
			c.first = e.Index
		}
		c.push(e)
		c.bytes += entrySize(e)
		for len(c.entries) > c.head && (c.bytes > c.maxBytes || len(c.entries)-c.head > c.maxEntries) {
			c.drop()
		}
	}
}

// deleteRange removes the entries min to max. It removes more if they lie in the middle.
func (c *cache) deleteRange(min, max uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := uint64(len(c.entries) - c.head)
	if n == 0 || max < min || max < c.first || min >= c.first+n {
		return
	}
	if min > c.first {
		c.cutFrom(min)
		return
	}
	for len(c.entries) > c.head && c.first <= max {
		c.drop()
	}
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reset()
}

func (c *cache) push(e *raft.Log) {
	if len(c.entries) == cap(c.entries) && c.head > len(c.entries)/2 {
		n := copy(c.entries, c.entries[c.head:])
		clear(c.entries[n:])
		c.entries, c.head = c.entries[:n], 0
	}
	c.entries = append(c.entries, *e)
}

func (c *cache) drop() {
	c.bytes -= entrySize(&c.entries[c.head])
	c.entries[c.head] = raft.Log{}
	c.head++
	c.first++
}

// cutFrom removes the entries from index on.
func (c *cache) cutFrom(index uint64) {
	for n := len(c.entries); n > c.head && c.first+uint64(n-c.head) > index; n-- {
		c.bytes -= entrySize(&c.entries[n-1])
		c.entries[n-1] = raft.Log{}
		c.entries = c.entries[:n-1]
	}
}

func (c *cache) reset() {
	clear(c.entries)
	c.entries, c.head, c.first, c.bytes = c.entries[:0], 0, 0, 0
}
