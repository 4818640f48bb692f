package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// ErrDamaged is wrapped by every error about bytes that no build writes: truncated, altered or garbage.
var ErrDamaged = errors.New("damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

// A record on the wire is a list of fields. A field is a tag (number × 2, plus 1 for bytes) and a uvarint, or a
// uvarint length and that many bytes. Fields may come in any order. A reader skips unknown numbers, so older and
// newer nodes can read each other's records.

// record is a value that lists its fields.
type record interface {
	// fields calls one of the functions number, text, boolean, blob, … for each field of the record, in the order of
	// writing. The same list encodes and decodes. While decoding, fields is called until every field is read.
	fields(c *codec)
}

// codec encodes records to buf, or decodes one record from it.
type codec struct {
	buf      []byte // written so far; while decoding: what follows the present field
	decoding bool

	// The present field, while decoding.
	num     int // noField at the end of the record, and after an error
	isBytes bool
	value   uint64
	raw     []byte // aliases the input; nil for a number
	depth   int    // of nested records
	err     error  // the first damage

	// While encoding: the nested records that are begun, or whose lengths take more than the byte that is kept for it.
	// These get room when the outermost record is complete, so that each byte is moved once.
	wide  []wideSize // in order of at
	added int        // bytes that the lengths of wide need besides
}

// wideSize is the length of a nested record that begins at a position of the buffer.
type wideSize struct{ at, size int }

const noField = -1

// decode reads all fields of a record.
func (c *codec) decode(raw []byte, r record) error {
	c.buf = raw
	c.next()
	for c.num != noField {
		left := len(c.buf)
		r.fields(c)
		if c.num != noField && len(c.buf) == left { // unknown field
			c.next()
		}
	}
	return c.err
}

// decodeRecord decodes a single record.
func decodeRecord(raw []byte, r record) error {
	c := codec{decoding: true}
	return c.decode(raw, r)
}

// encodeRecord encodes a single record.
func encodeRecord(r record) []byte {
	var c codec
	r.fields(&c)
	return c.buf
}

// next moves to the next field.
func (c *codec) next() {
	c.num = noField
	if c.err != nil || len(c.buf) == 0 {
		return
	}
	tag, ok := c.uvarint()
	v, ok2 := c.uvarint()
	if !ok || !ok2 || tag>>1 > 1<<20 {
		c.err = damaged("bad field")
		return
	}
	c.isBytes, c.value, c.raw = tag&1 == 1, v, nil
	if c.isBytes {
		if v > uint64(len(c.buf)) {
			c.err = damaged("field %d says %d bytes, %d are left", tag>>1, v, len(c.buf))
			return
		}
		c.raw, c.buf = c.buf[:v], c.buf[v:]
	}
	c.num = int(tag >> 1)
}

func (c *codec) uvarint() (uint64, bool) {
	if len(c.buf) > 0 && c.buf[0] < 0x80 {
		v := uint64(c.buf[0])
		c.buf = c.buf[1:]
		return v, true
	}
	v, n := binary.Uvarint(c.buf)
	if n <= 0 {
		return 0, false
	}
	c.buf = c.buf[n:]
	return v, true
}

// take returns the present field, which must have the given type, and moves to the next one.
func (c *codec) take(isBytes bool) (value uint64, raw []byte) {
	if c.isBytes != isBytes {
		c.err = damaged("field %d: a number where bytes belong, or bytes where a number belongs", c.num)
	}
	value, raw = c.value, c.raw
	c.next()
	return value, raw
}

func (c *codec) putNumber(num int, v uint64) {
	c.putUvarint(uint64(num) << 1)
	c.putUvarint(v)
}

func (c *codec) putUvarint(v uint64) {
	if v < 0x80 {
		c.buf = append(c.buf, byte(v))
	} else {
		c.buf = binary.AppendUvarint(c.buf, v)
	}
}

// putBytesHead writes tag and length of a bytes field.
func (c *codec) putBytesHead(num, size int) {
	c.putUvarint(uint64(num)<<1 | 1)
	c.putUvarint(uint64(size))
}

// putSized writes a record after its length (4 bytes, little endian). It is not for a part of a nested record.
func (c *codec) putSized(r record) {
	at := len(c.buf)
	c.buf = append(c.buf, 0, 0, 0, 0)
	r.fields(c)
	binary.LittleEndian.PutUint32(c.buf[at:], uint32(len(c.buf)-at-4))
}

// Functions that declare a field. Those with Always also write a zero value, which the others omit.

func numberAlways[T ~uint32 | ~uint64 | ~int | ~int64](c *codec, num int, v *T) {
	if !c.decoding {
		c.putNumber(num, uint64(*v))
	} else if c.num == num {
		value, _ := c.take(false)
		*v = T(value)
	}
}

func number[T ~uint32 | ~uint64 | ~int | ~int64](c *codec, num int, v *T) {
	if c.decoding || *v != 0 {
		numberAlways(c, num, v)
	}
}

func booleanAlways(c *codec, num int, v *bool) {
	var n uint64
	if *v {
		n = 1
	}
	numberAlways(c, num, &n)
	if c.decoding { // Encoding must not write, because readers share the record.
		*v = n != 0
	}
}

func boolean(c *codec, num int, v *bool) {
	if c.decoding || *v {
		booleanAlways(c, num, v)
	}
}

func textAlways[T ~string](c *codec, num int, v *T) {
	if !c.decoding {
		c.putBytesHead(num, len(*v))
		c.buf = append(c.buf, *v...)
	} else if c.num == num {
		_, raw := c.take(true)
		*v = T(raw)
	}
}

func text[T ~string](c *codec, num int, v *T) {
	if c.decoding || *v != "" {
		textAlways(c, num, v)
	}
}

// texts declares a list of texts. Each element is a field.
func texts[T ~string](c *codec, num int, list *[]T) {
	if !c.decoding {
		for i := range *list {
			textAlways(c, num, &(*list)[i])
		}
		return
	}
	for c.num == num {
		_, raw := c.take(true)
		*list = append(*list, T(raw))
	}
}

// blob declares bytes. Decoding copies them. Empty bytes decode to nil.
func blob(c *codec, num int, v *[]byte) {
	if !c.decoding && len(*v) > 0 {
		c.putBytesHead(num, len(*v))
		c.buf = append(c.buf, *v...)
	} else if c.decoding && c.num == num {
		_, raw := c.take(true)
		*v = nil
		if len(raw) > 0 {
			*v = append(make([]byte, 0, len(raw)), raw...)
		}
	}
}

// optional declares a field whose presence matters: nil is absent, and zero is written.
func optional[T any](c *codec, num int, v **T, always func(*codec, int, *T)) {
	if c.decoding && c.num == num {
		*v = new(T)
	} else if c.decoding || *v == nil {
		return
	}
	always(c, num, *v)
}

// nested declares a record as one field.
func nested(c *codec, num int, r record) {
	switch {
	case !c.decoding:
		c.encodeNested(num, r)
	case c.num == num:
		rest := c.buf
		if c.depth++; c.depth > maxDepth {
			c.err = damaged("records are nested more than %d deep", maxDepth)
		}
		_ = c.decode(c.raw, r) // its error is in c.err
		c.depth--
		c.buf = rest
		c.next()
	}
}

func (c *codec) encodeNested(num int, r record) {
	c.putBytesHead(num, 0)
	at, i, added := len(c.buf), len(c.wide), c.added
	c.wide = append(c.wide, wideSize{at: at})
	r.fields(c)
	size := len(c.buf) - at + c.added - added
	if size < 0x80 {
		c.buf[at-1] = byte(size)
		c.wide = c.wide[:i] // those in it are not longer
	} else {
		c.wide[i].size = size
		c.added += uvarintLen(size) - 1
	}
	if i == 0 {
		c.widen()
	}
}

// widen makes room for the lengths of c.wide, and writes them.
func (c *codec) widen() {
	from := len(c.buf) // what is before is not moved yet
	c.buf = slices.Grow(c.buf, c.added)[:from+c.added]
	to := len(c.buf)
	for _, w := range slices.Backward(c.wide) {
		to -= copy(c.buf[to-(from-w.at):to], c.buf[w.at:from])
		to -= uvarintLen(w.size)
		binary.PutUvarint(c.buf[to:], uint64(w.size))
		from = w.at - 1
	}
	c.wide, c.added = c.wide[:0], 0
}

func uvarintLen(n int) int { return (bits.Len(uint(n)|1) + 6) / 7 }

// maxDepth bounds nested records. A level of a transaction takes two, and has at most MaxTxnOps levels.
const maxDepth = 2*MaxTxnOps + 16

// recordPointer is a pointer to T that is a record.
type recordPointer[T any] interface {
	*T
	record
}

// list declares a list of records. Each element is a field.
func list[T any, P recordPointer[T]](c *codec, num int, all *[]T) {
	listAs(c, num, all, func(v *T) record { return P(v) })
}

// listAs declares a list of values that as converts to records.
func listAs[T any](c *codec, num int, all *[]T, as func(*T) record) {
	if !c.decoding {
		for i := range *all {
			nested(c, num, as(&(*all)[i]))
		}
		return
	}
	for c.num == num {
		var zero T
		*all = append(*all, zero)
		nested(c, num, as(&(*all)[len(*all)-1]))
	}
}

// textMap declares a map in order of names. An entry is a record of name and value, fields first and first+1.
func textMap[K ~string](c *codec, num, first int, m *map[K]string) {
	if !c.decoding {
		for _, name := range sortedKeys(*m) {
			nested(c, num, &entry{first: first, name: string(name), value: (*m)[name]})
		}
		return
	}
	for c.num == num {
		e := entry{first: first}
		nested(c, num, &e)
		if *m == nil {
			*m = make(map[K]string)
		}
		(*m)[K(e.name)] = e.value
	}
}

type entry struct {
	first       int
	name, value string
}

func (e *entry) fields(c *codec) {
	textAlways(c, e.first, &e.name)
	textAlways(c, e.first+1, &e.value)
}
