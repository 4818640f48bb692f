package state

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
)

// leafed is a record with a text before and after nested ones.
type leafed struct {
	before, after string
	nested        []leafed
	wrote         func(c *codec) // a nested record
}

func (l *leafed) fields(c *codec) {
	text(c, 1, &l.before)
	for i := range l.nested {
		nested(c, 2, &l.nested[i])
		if l.wrote != nil {
			l.wrote(c)
		}
	}
	text(c, 300, &l.after)
}

// encoded returns the record as the format defines it.
func (l *leafed) encoded() []byte {
	var b []byte
	bytesField := func(num uint64, value []byte) {
		b = binary.AppendUvarint(b, num<<1|1)
		b = append(binary.AppendUvarint(b, uint64(len(value))), value...)
	}
	if l.before != "" {
		bytesField(1, []byte(l.before))
	}
	for i := range l.nested {
		bytesField(2, l.nested[i].encoded())
	}
	if l.after != "" {
		bytesField(300, []byte(l.after))
	}
	return b
}

func randomLeafed(rng *rand.Rand, depth int) (l leafed) {
	sizes := []int{0, 1, 50, 119, 127, 128, 200, 16_370, 16_390}
	l.before, l.after = strings.Repeat("b", sizes[rng.IntN(7)]), strings.Repeat("a", sizes[rng.IntN(7)])
	if rng.IntN(20) == 0 {
		l.after = strings.Repeat("a", sizes[rng.IntN(len(sizes))])
	}
	if depth > 0 {
		for range rng.IntN(4) {
			l.nested = append(l.nested, randomLeafed(rng, rng.IntN(depth)))
		}
	}
	return l
}

// Nested records have the bytes of the format, with lengths of one byte and more.
func TestNestedRecords(t *testing.T) {
	t.Parallel()
	c := codec{buf: []byte("head")} // of two records
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		l := randomLeafed(rng, 6)
		want := l.encoded()
		if got := encodeRecord(&l); !bytes.Equal(got, want) {
			t.Fatalf("seed %d: %d bytes, want %d", seed, len(got), len(want))
		}
		c.buf = c.buf[:4]
		c.putSized(&l)
		l.fields(&c)
		if !bytes.Equal(c.buf[8:], append(want, want...)) || int(binary.LittleEndian.Uint32(c.buf[4:])) != len(want) {
			t.Fatalf("seed %d: differs after another record", seed)
		}
	}
}

// The bytes of nested records are moved once, however deep they are.
func TestNestedRecordsMoveOnce(t *testing.T) {
	t.Parallel()
	const marker = "marker"
	at, moves := -1, 0
	look := func(c *codec) {
		if now := bytes.Index(c.buf, []byte(marker)); now != at {
			at, moves = now, moves+1
		}
	}
	l := leafed{before: marker, after: strings.Repeat("a", 200)}
	for range 100 {
		l = leafed{nested: []leafed{l}, wrote: look}
	}
	if encodeRecord(&l); moves != 2 { // it was written, and moved
		t.Errorf("moved %d times", moves-1)
	}
}
