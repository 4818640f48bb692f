package transport

import (
	"errors"
	"fmt"
)

// scanner follows the msgpack encoding of a Raft stream and stops it at a message that would take too much memory to
// decode: the library's decoder trusts lengths and counts. It sees the bytes before the decoder does, and keeps a few
// words of state.
//
// A stream of requests repeats a type byte and one msgpack value. After the value of an InstallSnapshot the rest of
// the stream is the snapshot's data. A stream of responses repeats one msgpack value.
type scanner struct {
	requests bool
	limit    int64 // bytes of one message

	kind     byte // type of the message in progress
	inValue  bool
	data     bool // the rest is a snapshot's data
	used     int64
	items    int
	depth    int
	open     [maxDepth]uint64 // missing values of each open container
	skip     uint64           // bytes left of the current string
	lenBytes int              // bytes left of the current length
	length   uint64
	form     lengthForm
}

// The types of Raft messages on the wire, as the library numbers them.
const (
	wireAppendEntries   byte = 0
	wireRequestVote     byte = 1
	wireInstallSnapshot byte = 2
	wireTimeoutNow      byte = 3
	wireRequestPreVote  byte = 4
)

const (
	maxDepth    = 8       // of nested containers; an append of entries has 3
	maxItems    = 1 << 17 // values in one message; an entry has about 13
	maxResponse = 64 << 10
)

// lengthForm is the kind of value that a length belongs to.
type lengthForm byte

const (
	formBytes lengthForm = iota
	formExt              // bytes, and one byte of type
	formArray
	formMap
)

var errMalformed = errors.New("malformed Raft message")

// midMessage reports whether a message has begun and not ended.
func (s *scanner) midMessage() bool { return s.inValue || s.data }

// feed scans the next bytes of the stream. After an error the stream must not be read any further.
func (s *scanner) feed(p []byte) error {
	for len(p) > 0 && !s.data {
		if s.skip > 0 {
			n := min(s.skip, uint64(len(p)))
			s.skip -= n
			p = p[n:]
			if s.skip == 0 {
				s.valueDone()
			}
			continue
		}
		b := p[0]
		p = p[1:]
		if err := s.step(b); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) step(b byte) error {
	if !s.inValue {
		return s.begin(b)
	}
	if s.used++; s.used > s.limit {
		return fmt.Errorf("%w: over %d bytes", errMalformed, s.limit)
	}
	if s.lenBytes > 0 {
		s.length = s.length<<8 | uint64(b)
		if s.lenBytes--; s.lenBytes == 0 {
			return s.sized(s.form, s.length)
		}
		return nil
	}
	return s.token(b)
}

// begin starts a message. A request starts with its type byte.
func (s *scanner) begin(b byte) error {
	s.inValue, s.used, s.items, s.depth = true, 1, 0, 1
	s.open[0] = 1
	if !s.requests {
		return s.token(b)
	}
	if b > wireRequestPreVote {
		return fmt.Errorf("%w: type %d", errMalformed, b)
	}
	s.kind = b
	return nil
}

// token scans the first byte of a value.
func (s *scanner) token(b byte) error {
	switch {
	case b <= 0x7f, b >= 0xe0, b == 0xc0, b == 0xc2, b == 0xc3: // small integer, nil, bool
		s.valueDone()
		return nil
	case b <= 0x8f:
		return s.sized(formMap, uint64(b&0x0f))
	case b <= 0x9f:
		return s.sized(formArray, uint64(b&0x0f))
	case b <= 0xbf:
		return s.sized(formBytes, uint64(b&0x1f))
	case b == 0xc1:
		return fmt.Errorf("%w: byte 0xc1", errMalformed)
	case b >= 0xd4 && b <= 0xd8:
		return s.sized(formExt, 1<<(b-0xd4))
	}
	switch b {
	case 0xc4, 0xc5, 0xc6:
		s.readLength(formBytes, 1<<(b-0xc4))
	case 0xc7, 0xc8, 0xc9:
		s.readLength(formExt, 1<<(b-0xc7))
	case 0xd9, 0xda, 0xdb:
		s.readLength(formBytes, 1<<(b-0xd9))
	case 0xdc, 0xdd:
		s.readLength(formArray, 2<<(b-0xdc))
	case 0xde, 0xdf:
		s.readLength(formMap, 2<<(b-0xde))
	case 0xca, 0xcb: // floats
		return s.sized(formBytes, 4<<(b-0xca))
	case 0xcc, 0xcd, 0xce, 0xcf: // unsigned integers
		return s.sized(formBytes, 1<<(b-0xcc))
	default: // 0xd0 to 0xd3: signed integers
		return s.sized(formBytes, 1<<(b-0xd0))
	}
	return nil
}

func (s *scanner) readLength(f lengthForm, n int) {
	s.form, s.lenBytes, s.length = f, n, 0
}

// sized handles the size of a string or the count of a container.
func (s *scanner) sized(f lengthForm, n uint64) error {
	switch f {
	case formMap, formArray:
		if f == formMap {
			n *= 2
		}
		if uint64(s.items)+n > maxItems {
			return fmt.Errorf("%w: over %d values", errMalformed, maxItems)
		}
		s.items += int(n)
		if n == 0 {
			s.valueDone()
			return nil
		}
		if s.depth == maxDepth {
			return fmt.Errorf("%w: nested over %d deep", errMalformed, maxDepth)
		}
		s.open[s.depth] = n
		s.depth++
		return nil
	}
	if n > MaxField || s.used+int64(n) > s.limit {
		return fmt.Errorf("%w: a string of %d bytes", errMalformed, n)
	}
	if f == formExt {
		n++
	}
	s.used += int64(n)
	s.skip = n
	if n == 0 {
		s.valueDone()
	}
	return nil
}

// valueDone ends a value, and each container that it completes.
func (s *scanner) valueDone() {
	for s.depth > 0 {
		s.open[s.depth-1]--
		if s.open[s.depth-1] > 0 {
			return
		}
		s.depth--
	}
	s.inValue = false
	s.data = s.requests && s.kind == wireInstallSnapshot
}
