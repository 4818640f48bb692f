package etcd

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestReadChunks(t *testing.T) {
	t.Parallel()
	broken := errors.New("the connection broke")
	for _, size := range []int{0, 1, bodyChunk - 1, bodyChunk, bodyChunk + 1, 3*bodyChunk + 5} {
		want := bytes.Repeat([]byte("northstar"), size/9+1)[:size]
		for name, r := range map[string]io.Reader{
			"whole":        bytes.NewReader(want),
			"in parts":     iotest.OneByteReader(bytes.NewReader(want)),
			"with its end": iotest.DataErrReader(bytes.NewReader(want)),
		} {
			if got, err := readChunks(r); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes %s: %d bytes, %v", size, name, len(got), err)
			}
		}
		for _, end := range []error{broken, io.ErrUnexpectedEOF} {
			_, err := readChunks(io.MultiReader(bytes.NewReader(want), iotest.ErrReader(end)))
			if !errors.Is(err, end) {
				t.Errorf("%d bytes and then %v: %v", size, end, err)
			}
		}
	}
}
