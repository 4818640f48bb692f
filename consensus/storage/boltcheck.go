package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// bbolt trusts its file. It follows page numbers through a memory map, and panics on content that it does not
// understand, sometimes on goroutines of its own. If its newest meta page does not verify, it falls back to
// the previous one, which undoes an acknowledged write.
//
// So this code checks the file by plain reads before bbolt opens it. Every page that bbolt can reach must
// look exactly as bbolt writes it. One defect remains: a page number that leads to an older version of the
// same page. The tail record (tailrecord.go) detects that.

// The layout of a bbolt file, format version 2. Its byte order is that of the machine, which is assumed to be
// little-endian.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltNoFreelist = math.MaxUint64

	pageHeadSize = 16
	elementSize  = 16
	bucketSize   = 16
	metaSize     = 64

	flagBranch = 1
	flagLeaf   = 2
	flagMeta   = 4

	elementBucket = 1 // flag of a leaf element that is a bucket

	maxTreeDepth = 16
	minPageSize  = 1 << 10
	maxPageSize  = 1 << 16
)

type boltSummary struct {
	txid  uint64
	spans indexRanges // the entries' indexes
	tail  []byte      // the value of the tail record
}

// visitor checks one entry's value, as bbolt stores it. value reads it.
type visitor func(index uint64, value func() ([]byte, error)) error

type boltChecker struct {
	r       io.ReaderAt
	meta    boltMeta
	visit   visitor
	lastKey uint64
	visited bool // lastKey is set
	content boltSummary
}

// checkBolt checks a raft-boltdb file of size bytes, and calls visit for each of its entries, in order.
func checkBolt(r io.ReaderAt, size int64, visit visitor) (boltSummary, error) {
	meta, err := newestMeta(r)
	if err != nil {
		return boltSummary{}, err
	}
	if need := int64(meta.pages) * meta.pageSize; meta.pages > math.MaxInt64/maxPageSize || size < need {
		return boltSummary{}, fmt.Errorf("it is truncated: %d bytes of at least %d", size, need)
	}
	if meta.freelist != boltNoFreelist {
		return boltSummary{}, errors.New("it was written by other means: it holds a list of free pages")
	}
	c := &boltChecker{r: r, meta: meta, visit: visit, content: boltSummary{txid: meta.txid}}
	if err := c.root(); err != nil {
		return boltSummary{}, err
	}
	if c.content.tail == nil {
		return boltSummary{}, errors.New("its last record is missing")
	}
	return c.content, nil
}

// page is a page, or the inline page of a small bucket, with its elements.
type page struct {
	header
	base     int64 // position in the file
	limit    int64 // largest allowed size in bytes
	elements []element
	used     int64 // size in bytes
}

type element struct {
	bucket bool
	child  uint64
	key    []byte
	value  int64 // position in the file
	vsize  int64
	data   []byte // the value, if it was read with the page
}

// root checks the root page, which holds the two buckets of raft-boltdb.
func (c *boltChecker) root() error {
	p, err := c.page(c.meta.root)
	if err != nil {
		return err
	}
	e := p.elements
	if p.flags != flagLeaf || len(e) != 2 || !e[0].bucket || string(e[0].key) != "conf" || !e[1].bucket ||
		string(e[1].key) != "logs" {
		return errors.New("its root page does not hold the buckets conf and logs")
	}
	if err := c.emptyBucket(e[0]); err != nil {
		return err
	}
	return c.logs(e[1])
}

// emptyBucket checks the bucket conf, in which nothing is ever stored.
func (c *boltChecker) emptyBucket(e element) error {
	var b [bucketSize + pageHeadSize]byte
	if e.vsize != int64(len(b)) {
		return errors.New("its bucket conf is not empty")
	}
	if err := c.read(b[:], e.value); err != nil {
		return err
	}
	b[bucketSize+8] ^= flagLeaf
	if b != [len(b)]byte{} {
		return errors.New("its bucket conf is not empty")
	}
	return nil
}

func (c *boltChecker) logs(e element) error {
	var b [bucketSize]byte
	if e.vsize < bucketSize {
		return errors.New("its bucket logs has no header")
	}
	if err := c.read(b[:], e.value); err != nil {
		return err
	}
	root, sequence := binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
	switch {
	case sequence != 0:
		return errors.New("its bucket logs has a wrong header")
	case root != 0 && e.vsize == bucketSize:
		return c.tree(root, 0, 0, math.MaxUint64)
	case root != 0:
		return errors.New("its bucket logs has a wrong header")
	}
	p, err := c.elements(0, e.value+bucketSize, e.vsize-bucketSize)
	if err != nil {
		return err
	}
	if p.flags != flagLeaf || p.overflow != 0 || p.used != p.limit {
		return errors.New("its bucket logs has a wrong inline page")
	}
	return c.leaf(p, 0, math.MaxUint64)
}

// tree checks the pages under id, whose keys lie between low and high, both included.
func (c *boltChecker) tree(id uint64, depth int, low, high uint64) error {
	if depth > maxTreeDepth {
		return fmt.Errorf("page %d lies too deep", id)
	}
	p, err := c.page(id)
	if err != nil {
		return err
	}
	if len(p.elements) == 0 {
		return fmt.Errorf("page %d is empty", id)
	}
	if p.flags == flagLeaf {
		return c.leaf(p, low, high)
	}
	for i, e := range p.elements {
		key, err := entryKey(p, e)
		if err != nil {
			return err
		}
		if key < low || key > high {
			return fmt.Errorf("page %d has a key out of order", id)
		}
		next := high
		if i+1 < len(p.elements) {
			after, err := entryKey(p, p.elements[i+1])
			if err != nil {
				return err
			}
			if after <= key {
				return fmt.Errorf("page %d has keys out of order", id)
			}
			next = after - 1
		}
		if err := c.tree(e.child, depth+1, key, next); err != nil {
			return err
		}
	}
	return nil
}

func (c *boltChecker) leaf(p page, low, high uint64) error {
	for _, e := range p.elements {
		key, err := entryKey(p, e)
		if err != nil {
			return err
		}
		if e.bucket || key < low || key > high || c.visited && key <= c.lastKey {
			return fmt.Errorf("page %d has a key out of order", p.id)
		}
		c.lastKey, c.visited = key, true
		value := func() ([]byte, error) { return c.value(e) }
		if key != tailKey {
			c.content.spans.add(key)
			err = c.visit(key, value)
		} else {
			c.content.tail, err = value()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// value reads an element's value, which lies within the file.
func (c *boltChecker) value(e element) ([]byte, error) {
	if e.data != nil {
		return e.data, nil
	}
	b := make([]byte, e.vsize)
	return b, c.read(b, e.value)
}

func entryKey(p page, e element) (uint64, error) {
	if len(e.key) != 8 {
		return 0, fmt.Errorf("page %d has a key of %d bytes", p.id, len(e.key))
	}
	return binary.BigEndian.Uint64(e.key), nil
}

// page reads the page id and checks that it looks as bbolt writes one.
func (c *boltChecker) page(id uint64) (page, error) {
	if id < 2 || id >= c.meta.pages {
		return page{}, fmt.Errorf("it refers to page %d of %d", id, c.meta.pages)
	}
	p, err := c.elements(id, int64(id)*c.meta.pageSize, int64(c.meta.pages-id)*c.meta.pageSize)
	if err != nil {
		return page{}, err
	}
	if p.id != id || int64(p.overflow) != (p.used-1)/c.meta.pageSize || uint64(p.overflow) >= c.meta.pages-id {
		return page{}, fmt.Errorf("page %d has a wrong header", id)
	}
	return p, nil
}

// elements reads the elements of a page at base. Their keys and values follow them without a gap.
func (c *boltChecker) elements(id uint64, base, limit int64) (page, error) {
	buf := make([]byte, min(limit, c.meta.pageSize))
	if limit < pageHeadSize {
		return page{}, fmt.Errorf("page %d is cut short", id)
	}
	if err := c.read(buf, base); err != nil {
		return page{}, err
	}
	p := page{header: pageHead(buf), base: base, limit: limit}
	if p.flags != flagLeaf && p.flags != flagBranch {
		return page{}, fmt.Errorf("page %d has an unknown kind", id)
	}
	p.used = pageHeadSize + elementSize*int64(p.count)
	if p.used > limit {
		return page{}, fmt.Errorf("page %d is cut short", id)
	}
	if p.used > int64(len(buf)) {
		buf = make([]byte, p.used)
		if err := c.read(buf, base); err != nil {
			return page{}, err
		}
	}
	p.elements = make([]element, p.count)
	for i := range p.elements {
		if err := c.element(&p, i, buf); err != nil {
			return page{}, err
		}
	}
	return p, nil
}

// element decodes one element into p. buf holds at least the elements.
func (c *boltChecker) element(p *page, i int, buf []byte) error {
	at := pageHeadSize + elementSize*int64(i)
	b := buf[at:]
	u32 := binary.LittleEndian.Uint32
	var pos, ksize, vsize int64
	e := &p.elements[i]
	if p.flags == flagLeaf {
		flags := u32(b)
		pos, ksize, vsize = int64(u32(b[4:])), int64(u32(b[8:])), int64(u32(b[12:]))
		e.bucket = flags == elementBucket
		if flags != 0 && !e.bucket {
			return fmt.Errorf("page %d has an element of an unknown kind", p.id)
		}
	} else {
		pos, ksize, e.child = int64(u32(b)), int64(u32(b[4:])), binary.LittleEndian.Uint64(b[8:])
	}
	if at+pos != p.used || ksize == 0 || ksize > 8 || p.used+ksize+vsize > p.limit {
		return fmt.Errorf("page %d has a misplaced element", p.id)
	}
	if end := p.used + ksize; end <= int64(len(buf)) {
		e.key = buf[p.used:end]
	} else {
		e.key = make([]byte, ksize)
		if err := c.read(e.key, p.base+p.used); err != nil {
			return err
		}
	}
	e.value, e.vsize = p.base+p.used+ksize, vsize
	p.used += ksize + vsize
	if p.used <= int64(len(buf)) {
		e.data = buf[p.used-vsize : p.used]
	}
	return nil
}

func (c *boltChecker) read(b []byte, off int64) error {
	if _, err := c.r.ReadAt(b, off); err != nil {
		return fmt.Errorf("it cannot be read at %d: %w", off, err)
	}
	return nil
}
