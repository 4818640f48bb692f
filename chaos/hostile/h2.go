package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"strconv"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2 is a connection to the etcd API whose HTTP/2 frames an attacker makes itself. One goroutine writes.
type h2 struct {
	a    *attacker
	conn net.Conn
	next uint32 // stream

	mu      sync.Mutex // guards what follows: answering a ping writes as well
	frames  *http2.Framer
	block   bytes.Buffer
	headers *hpack.Encoder
	windows map[uint32]int64 // of the node by stream, beyond the first 64 KiB; 0: of the connection
	changed chan struct{}    // closed at the next change of a window
	failed  error            // of reading
}

// firstWindow is how much a client may send before the node says more.
const firstWindow = 65535

// grpcLimits are the settings of a client: what it takes of one stream, and of all.
type grpcLimits struct{ stream, all uint32 }

// patient are the settings of a client that reads everything.
var patient = grpcLimits{stream: 1 << 20, all: 1 << 30}

// dialEtcd opens a connection from the address of the i-th request.
func (a *attacker) dialEtcd(ctx context.Context, i int, l grpcLimits) (*h2, error) {
	conn, err := a.dialTo(ctx, a.Etcd, i)
	if err != nil {
		return nil, err
	}
	h := &h2{
		a: a, conn: conn, next: 1, frames: http2.NewFramer(conn, conn), windows: map[uint32]int64{},
		changed: make(chan struct{}),
	}
	h.headers = hpack.NewEncoder(&h.block)
	h.frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = conn.Write([]byte(http2.ClientPreface))
	if err == nil {
		err = h.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: l.stream})
	}
	if err == nil && l.all > 0 {
		err = h.frames.WriteWindowUpdate(0, l.all)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return h, nil
}

// open opens a stream for a call of a method, with more headers, and returns its number.
func (h *h2) open(i int, method string, more ...hpack.HeaderField) (uint32, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.block.Reset()
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: h.a.Etcd},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
		{Name: "token", Value: h.a.Tokens[h.a.caller(i)]},
	}
	for _, f := range append(fields, more...) {
		if err := h.headers.WriteField(f); err != nil {
			return 0, err
		}
	}
	id := h.next
	h.next += 2
	block := h.block.Bytes()
	first := min(len(block), 16<<10)
	p := http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:first], EndHeaders: first == len(block)}
	err := h.frames.WriteHeaders(p)
	for rest := block[first:]; len(rest) > 0 && err == nil; {
		n := min(len(rest), 16<<10)
		err = h.frames.WriteContinuation(id, n == len(rest), rest[:n])
		rest = rest[n:]
	}
	return id, err
}

// data sends bytes of a stream as the node's windows allow. The connection must be read.
func (h *h2) data(ctx context.Context, id uint32, body []byte, end bool) error {
	for len(body) > 0 || end {
		h.mu.Lock()
		room, changed := min(h.windows[id], h.windows[0])+firstWindow, h.changed
		n := int(min(room, int64(len(body)), 16<<10))
		err := h.failed
		last := end && n == len(body)
		if err == nil && (n > 0 || last) {
			h.windows[id] -= int64(n)
			h.windows[0] -= int64(n)
			err = h.frames.WriteData(id, last, body[:n])
		}
		h.mu.Unlock()
		if err != nil || last {
			return err
		}
		body = body[n:]
		if n == 0 && len(body) > 0 {
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// grow adds to a window of the node. An error ends those who wait for it.
func (h *h2) grow(id, n uint32, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.windows[id] += int64(n)
	h.failed = err
	close(h.changed)
	h.changed = make(chan struct{})
}

// reset resets a stream.
func (h *h2) reset(id uint32) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.frames.WriteRSTStream(id, http2.ErrCodeCancel)
}

// message returns a gRPC message with its prefix.
func message(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

// read reads frames until the connection ends. It counts the statuses of calls, and calls ended, if not nil, for each
// stream that the node ends. With refill, it takes as much as the node sends.
func (h *h2) read(refill bool, ended func(id uint32)) (err error) {
	defer func() { h.grow(0, 0, err) }()
	for {
		f, err := h.frames.ReadFrame()
		if err != nil {
			return err
		}
		over := uint32(0)
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = h.write(h.frames.WriteSettingsAck)
			}
		case *http2.WindowUpdateFrame:
			h.grow(f.StreamID, f.Increment, nil)
		case *http2.PingFrame:
			if !f.IsAck() {
				err = h.write(func() error { return h.frames.WritePing(true, f.Data) })
			}
		case *http2.DataFrame:
			if n := uint32(len(f.Data())); refill && n > 0 {
				err = h.write(func() error {
					_ = h.frames.WriteWindowUpdate(f.StreamID, n)
					return h.frames.WriteWindowUpdate(0, n)
				})
			}
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if code, err := strconv.Atoi(field.Value); err == nil && field.Name == "grpc-status" {
					h.a.count(code)
				}
			}
			if f.StreamEnded() {
				over = f.StreamID
			}
		case *http2.RSTStreamFrame:
			over = f.StreamID
		}
		if err != nil {
			return err
		}
		if over != 0 && ended != nil {
			ended(over)
		}
	}
}

func (h *h2) write(frame func() error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return frame()
}

// ping fails when the connection has ended.
func (h *h2) ping() error {
	return h.write(func() error { return h.frames.WritePing(false, [8]byte{}) })
}

// failure returns the error that ended reading, nil while it goes on.
func (h *h2) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}
