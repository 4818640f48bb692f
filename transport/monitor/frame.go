package monitor

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"northstar/cluster"
)

// After a hello both sides send frames, for as long as the connection lasts:
//
//	frame: length [4] · frame as JSON
//
// A node that closes the connection after the hello was only probing. Unknown kinds and fields are ignored.

// maxFrame bounds one frame's JSON text.
const maxFrame = 8 << 10

type frameKind string

const (
	frameAsk    frameKind = "ask"    // request
	frameAnswer frameKind = "answer" // response to the request with its Seq
	frameNotify frameKind = "tell"   // needs no response
	frameBye    frameKind = "bye"    // the connection ends, the process does not
)

var errMalformed = errors.New("malformed frame")

// frame is one message on a monitor connection.
type frame struct {
	Kind frameKind `json:"kind"`
	Seq  uint64    `json:"seq,omitempty"`
	// Fresh requests a claim that includes the message that Raft is handling. Wait is how long the requesting side
	// waits for it.
	Fresh bool          `json:"fresh,omitempty"`
	Wait  time.Duration `json:"wait,omitempty"`
	RTT   time.Duration `json:"rtt,omitempty"` // as measured by the sender; 0 if unknown
	Claim cluster.Claim `json:"claim"`
}

func (f frame) encode() ([]byte, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode frame: %w", err)
	}
	if len(body) > maxFrame {
		return nil, fmt.Errorf("frame of %d bytes is over %d", len(body), maxFrame)
	}
	b := make([]byte, 0, 4+len(body))
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...), nil
}

// frameReader reads frames. What it returns does not share memory with it.
type frameReader struct {
	r   *bufio.Reader
	buf []byte
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, 2<<10)}
}

// next reads one frame. The error wraps errMalformed if the bytes are not a frame.
func (fr *frameReader) next() (frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(fr.r, head[:]); err != nil {
		return frame{}, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return frame{}, fmt.Errorf("%w: frame of %d bytes is over %d", errMalformed, size, maxFrame)
	}
	if cap(fr.buf) < int(size) {
		fr.buf = make([]byte, size)
	}
	body := fr.buf[:size]
	if _, err := io.ReadFull(fr.r, body); err != nil {
		return frame{}, err
	}
	var f frame
	if err := json.Unmarshal(body, &f); err != nil {
		return frame{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return f, nil
}
