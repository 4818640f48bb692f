package etcd

import (
	"encoding/binary"
	"time"
)

// Memory of what gRPC holds.
const (
	frameCost   = 256     // of a frame of data, besides its bytes
	smallFrame  = 1 << 10 // frames from this size on are in buffers of one of two sizes
	pooledFrame = 4 << 10
	largeFrame  = 16 << 10
	takenStep   = 32 << 10 // gRPC merges smaller frames, and frees them together
)

// received is what has come of the messages of a stream: of the present one, and of those that its call has not taken.
type received struct {
	prefix [5]byte   // of gRPC: a flag and the length
	have   int       // bytes of the prefix
	left   int       // bytes of the message that have not come
	since  time.Time // when the present message began, or was the next to be taken; zero: there is none

	held    int // memory of all
	present int // of the present message
	last    int // of the last frame
	waiting []waiting
}

// waiting is messages that are complete and whose memory is freed together.
type waiting struct{ messages, held int32 }

// frame notes that a frame of data begins, and returns its memory.
func (m *received) frame(size int, now time.Time) int {
	switch m.last = frameCost + size; {
	case size > pooledFrame:
		m.last = frameCost + max(size, largeFrame)
	case size >= smallFrame:
		m.last = frameCost + pooledFrame
	}
	if m.since.IsZero() {
		m.since = now
	}
	m.held += m.last
	m.present += m.last
	return m.last
}

// follow follows a part of the last frame, of which more bytes have not come.
func (m *received) follow(part []byte, more int, now time.Time) {
	for len(part) > 0 {
		if m.have < len(m.prefix) {
			n := copy(m.prefix[m.have:], part)
			m.have += n
			part = part[n:]
			m.left = int(binary.BigEndian.Uint32(m.prefix[1:]))
		} else {
			n := min(m.left, len(part))
			m.left -= n
			part = part[n:]
		}
		if m.have == len(m.prefix) && m.left == 0 {
			m.complete(len(part)+more > 0, now)
		}
	}
}

// complete notes that the present message is complete. If more follows in its last frame, that stays in memory with the
// next message.
func (m *received) complete(more bool, now time.Time) {
	held := m.present
	m.have, m.present, m.since = 0, 0, time.Time{}
	if more {
		held -= m.last
		m.present, m.since = m.last, now
	}
	if n := len(m.waiting); n == 0 || m.waiting[n-1].held >= takenStep {
		m.waiting = append(m.waiting, waiting{})
	}
	at := &m.waiting[len(m.waiting)-1]
	at.messages++
	at.held += int32(held)
}

// take removes the oldest complete message, and returns the memory that is freed.
func (m *received) take(now time.Time) (freed int) {
	if len(m.waiting) == 0 {
		return 0
	}
	at := &m.waiting[0]
	if at.messages--; at.messages > 0 {
		return 0
	}
	freed = int(at.held)
	m.held -= freed
	if m.waiting = m.waiting[1:]; len(m.waiting) == 0 {
		m.waiting = nil
		if !m.since.IsZero() {
			m.since = now
		}
	}
	return freed
}
