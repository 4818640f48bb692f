package etcd

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// frameHeader is the size of the header of an HTTP/2 frame (RFC 9113, section 4.1).
const frameHeader = 9

// frames finds the frames in the bytes of one direction of an HTTP/2 connection.
type frames struct {
	skip    int // bytes before the first frame: the client's preface
	header  [frameHeader]byte
	have    int // bytes of the header
	now     frame
	left    int  // bytes of the payload that have not come
	padding int  // of a frame of data, -1: not known yet
	whole   bool // the first frame has come
}

// frame is the header of a frame.
type frame struct {
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
	size   int // of the payload
}

// endsStream reports whether the frame is the last one of its sender on the stream.
func (f frame) endsStream() bool {
	switch f.kind {
	case http2.FrameHeaders, http2.FrameData:
		return f.flags&http2.FlagDataEndStream != 0
	case http2.FrameRSTStream:
		return true
	}
	return false
}

// follow calls begin for each frame that begins in p, and data for each part of the content of a frame of data, with
// the number of bytes of that content which have not come.
func (f *frames) follow(p []byte, begin func(frame), data func(stream uint32, part []byte, more int)) {
	n := min(f.skip, len(p))
	f.skip -= n
	p = p[n:]
	for len(p) > 0 {
		if f.have < frameHeader {
			n := copy(f.header[f.have:], p)
			f.have += n
			p = p[n:]
			if f.have < frameHeader {
				return
			}
			f.start()
			begin(f.now)
		} else {
			n := min(f.left, len(p))
			if f.now.kind == http2.FrameData {
				f.content(p[:n], data)
			}
			f.left -= n
			p = p[n:]
		}
		if f.left == 0 {
			f.have, f.whole = 0, true
		}
	}
}

// between reports whether the bytes that were followed end between two frames.
func (f *frames) between() bool { return f.have == 0 && f.skip == 0 }

// start reads a header that is complete.
func (f *frames) start() {
	size := binary.BigEndian.Uint32(f.header[:]) >> 8
	f.now = frame{
		kind: http2.FrameType(f.header[3]), flags: http2.Flags(f.header[4]),
		stream: binary.BigEndian.Uint32(f.header[5:]) & (1<<31 - 1), size: int(size),
	}
	f.left, f.padding = f.now.size, 0
	if f.now.kind == http2.FrameData && f.now.flags&http2.FlagDataPadded != 0 {
		f.padding = -1
	}
}

// content passes on a part of a payload without padding.
func (f *frames) content(part []byte, data func(uint32, []byte, int)) {
	left := f.left
	if f.padding < 0 {
		f.padding = int(part[0])
		part, left = part[1:], left-1
	}
	if n := min(len(part), left-f.padding); n > 0 {
		data(f.now.stream, part[:n], left-f.padding-n)
	}
}
