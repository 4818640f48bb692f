package state

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
)

// A snapshot is the magic, the format (4 bytes, little endian) and frames. A frame is a section number (1 byte),
// the length of its content, a checksum (4 bytes each, little endian) and the content. The content is a list of
// records, each after its length (4 bytes). Sections come in order of number and may have several frames. The last
// frame is that of sectionEnd, and nothing follows it.
//
// The checksum is CRC-32C over section number, length and content, continued from the frame before. So a reader
// detects a missing, repeated or moved frame, and an altered one before it decodes it.
const (
	snapshotMagic  = "NSSTATE\n"
	snapshotFormat = 1
	frameHeader    = 1 + 4 + 4
	frameFull      = 64 << 10 // size of the content at which a frame is written
	// maxFrame is the largest content that Apply can bring about: a frame that is almost full, and one record.
	maxFrame = frameFull + max(maxChangeRecord, maxRoleRecord) + 64<<10
)

// The largest records. All others have at most 64 KiB.
const (
	maxField           = 2 + 10          // bytes of a number, or of what precedes a text: its tag and its length
	maxChangeRecord    = 2 * MaxTxnBytes // two values, with their keys
	maxCandidateRecord = 7*maxField + MaxSession + MaxSessionName + MaxRoleValue
	maxTenureRecord    = 9*maxField + MaxSession + MaxSessionName + MaxRoleValue
	maxRoleRecord      = MaxCandidates*maxCandidateRecord + (1+MaxTenures)*maxTenureRecord
)

type section byte

const (
	sectionMeta        section = 1 // one record
	sectionMembers     section = 2
	sectionElections   section = 3
	sectionKeys        section = 4
	sectionHistory     section = 5
	sectionIdempotency section = 6
	sectionSessions    section = 7
	sectionRoles       section = 8
	sectionRoleLog     section = 9 // history of the roles
	sectionAppNodes    section = 10
	sectionNodeLog     section = 11 // history of the application nodes
	sectionAudit       section = 12
	sectionProducers   section = 13 // of audit records
	sectionSenders     section = 14
	sectionLast                = sectionSenders
	sectionEnd         section = 255 // one empty record
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameWriter writes the frames of a snapshot. It stops at the first error.
type frameWriter struct {
	w       io.Writer
	section section
	enc     codec // header and content of the frame being filled
	crc     uint32
	n       int64
	err     error
}

func newFrameWriter(w io.Writer) *frameWriter {
	f := &frameWriter{w: w}
	head := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotFormat)
	f.crc = crc32.Checksum(head, castagnoli)
	f.write(head)
	f.begin()
	return f
}

// record adds one record to a section. It reports whether the writer can continue. Sections must come in order.
func (f *frameWriter) record(s section, r record) bool {
	if f.err != nil {
		return false
	}
	if s != f.section || len(f.enc.buf) >= frameHeader+frameFull {
		f.flush()
	}
	f.section = s
	f.enc.putSized(r)
	return f.err == nil
}

// flush writes the present frame unless it is empty.
func (f *frameWriter) flush() {
	b := f.enc.buf
	if len(b) == frameHeader {
		return
	}
	b[0] = byte(f.section)
	binary.LittleEndian.PutUint32(b[1:], uint32(len(b)-frameHeader))
	f.crc = frameSum(f.crc, b)
	binary.LittleEndian.PutUint32(b[5:], f.crc)
	f.write(b)
	f.begin()
}

func (f *frameWriter) begin() {
	f.enc.buf = append(f.enc.buf[:0], make([]byte, frameHeader)...)
}

func (f *frameWriter) write(b []byte) {
	if f.err != nil {
		return
	}
	var n int
	n, f.err = f.w.Write(b)
	f.n += int64(n)
}

// frameSum continues a checksum over a frame's number, length and content.
func frameSum(crc uint32, frame []byte) uint32 {
	crc = crc32.Update(crc, castagnoli, frame[:5])
	return crc32.Update(crc, castagnoli, frame[frameHeader:])
}

// frameReader reads the frames of a snapshot.
type frameReader struct {
	r       *bufio.Reader
	n       int64
	crc     uint32
	buf     []byte // the frame with its header; reused
	section section
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, frameFull)}
}

// start reads the magic and the format.
func (f *frameReader) start() error {
	head := make([]byte, len(snapshotMagic)+4)
	if err := f.read(head); err != nil {
		return err
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return damaged("this is not a snapshot")
	}
	if v := binary.LittleEndian.Uint32(head[len(snapshotMagic):]); v != snapshotFormat {
		return damaged("snapshot format %d, this build reads %d", v, snapshotFormat)
	}
	f.crc = crc32.Checksum(head, castagnoli)
	return nil
}

// next reads one frame and checks it.
func (f *frameReader) next() error {
	f.buf = append(f.buf[:0], make([]byte, frameHeader)...)
	if err := f.read(f.buf); err != nil {
		return err
	}
	size := binary.LittleEndian.Uint32(f.buf[1:])
	if size > maxFrame {
		return damaged("frame of %d bytes, at most %d are possible", size, maxFrame)
	}
	if s := section(f.buf[0]); s < f.section {
		return damaged("section %d after section %d", s, f.section)
	}
	f.section = section(f.buf[0])
	want := binary.LittleEndian.Uint32(f.buf[5:])
	if err := f.readContent(int(size)); err != nil {
		return err
	}
	f.crc = frameSum(f.crc, f.buf)
	if f.crc != want {
		return damaged("checksum of a frame of section %d does not match", f.section)
	}
	return nil
}

// readContent reads the content of a frame. The buffer grows with what has arrived: the size is not checked yet.
func (f *frameReader) readContent(size int) error {
	for size > 0 {
		at := len(f.buf)
		n := min(size, max(frameFull, at))
		f.buf = slices.Grow(f.buf, n)[:at+n]
		if err := f.read(f.buf[at:]); err != nil {
			return err
		}
		size -= n
	}
	return nil
}

// records calls add for each record of the frame. A record is valid until the next frame.
func (f *frameReader) records(add func(section, []byte) error) error {
	for b := f.buf[frameHeader:]; len(b) > 0; {
		if len(b) < 4 {
			return damaged("record is cut short")
		}
		size := binary.LittleEndian.Uint32(b)
		if uint64(size) > uint64(len(b)-4) {
			return damaged("record of %d bytes, %d are left", size, len(b)-4)
		}
		if err := add(f.section, b[4:4+size]); err != nil {
			return err
		}
		b = b[4+size:]
	}
	return nil
}

// end returns an error if anything follows.
func (f *frameReader) end() error {
	switch _, err := f.r.ReadByte(); {
	case err == nil:
		f.n++
		return damaged("bytes after the end of the snapshot")
	case errors.Is(err, io.EOF):
		return nil
	default:
		return err
	}
}

func (f *frameReader) read(b []byte) error {
	n, err := io.ReadFull(f.r, b)
	f.n += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged("snapshot is cut short after %d bytes", f.n)
	}
	return err
}
