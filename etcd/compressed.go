package etcd

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
)

// maxCompressed bounds what a message has that a client has compressed. gRPC decompresses it before it is known who
// sends it: a message of 1 KiB could cost as much memory and time as one of 1 MiB.
const maxCompressed = 64 << 10

var errCompressedTooLarge = errors.New("etcdserver: a compressed message may have 64 KiB: do not compress larger ones")

// smallGzip decompresses messages, and implements grpc.Decompressor.
type smallGzip struct{}

// Type implements grpc.Decompressor.
func (smallGzip) Type() string { return gzip.Name }

// Do implements grpc.Decompressor.
func (smallGzip) Do(r io.Reader) ([]byte, error) {
	z, err := encoding.GetCompressor(gzip.Name).Decompress(r)
	if err != nil {
		return nil, err
	}
	if c, ok := z.(io.Closer); ok {
		defer c.Close()
	}
	room := compressedRoom.Get().(*[maxCompressed + 1]byte)
	defer compressedRoom.Put(room)
	for n := 0; n < len(room); {
		m, err := z.Read(room[n:])
		n += m
		switch {
		case errors.Is(err, io.EOF):
			return bytes.Clone(room[:n]), nil
		case err != nil:
			return nil, err
		}
	}
	return nil, errCompressedTooLarge
}

// compressedRoom has arrays for messages that are being decompressed: a refusal leaves no garbage.
var compressedRoom = sync.Pool{New: func() any { return new([maxCompressed + 1]byte) }}
