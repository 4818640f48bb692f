package etcd

import (
	"io"
	"slices"
)

const bodyChunk = 64 << 10 // that is not counted

// readChunks reads r until it ends. What has been read is not copied before that: many large bodies may never end.
func readChunks(r io.Reader) ([]byte, error) {
	chunk, err := io.ReadAll(io.LimitReader(r, bodyChunk)) // most are smaller
	chunks := [][]byte{chunk}
	for ended := len(chunk) < bodyChunk; err == nil && !ended; {
		n := 0
		for chunk = make([]byte, bodyChunk); n < len(chunk) && err == nil; {
			var m int
			m, err = r.Read(chunk[n:])
			n += m
		}
		chunks = append(chunks, chunk[:n])
		if ended = err == io.EOF; ended { //nolint:errorlint // a Reader returns io.EOF itself
			err = nil
		}
	}
	return slices.Concat(chunks...), err
}

// countedBody is a body that takes bytes of the budget of answers for what it reads.
type countedBody struct {
	body io.Reader
	call Call // nil: no caller is known, and room is all
	room int  // bytes that may be read before more is taken
	took []func()
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	if b.room == 0 {
		if b.call == nil {
			return 0, errMessageTooLarge
		}
		give, err := b.call.TakeAnswer(2 * bodyChunk) // what is read, and the message made of it
		if err != nil {
			return 0, err
		}
		b.took, b.room = append(b.took, give), bodyChunk
	}
	n, err := b.body.Read(p[:min(len(p), b.room)])
	b.room -= n
	return n, err
}

func (b *countedBody) give() {
	for _, give := range b.took {
		give()
	}
}
