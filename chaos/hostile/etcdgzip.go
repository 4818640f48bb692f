package hostile

import (
	"bytes"
	"compress/gzip"
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

var gzipEncoding = hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"}

// listGzip is listBig with an encoding, in which gRPC would answer.
func listGzip(ctx context.Context, h *h2, i int) error {
	return h.call(ctx, i, pb.KV_Range_FullMethodName, rangeOf(bigPrefix), true, gzipEncoding)
}

// bomb returns an opener of calls with a small message that becomes a large one.
func bomb() opener {
	body, err := proto.Marshal(&pb.PutRequest{Key: []byte("hostile/bomb"), Value: make([]byte, 1<<20)})
	if err != nil {
		panic(err) // the message is constant
	}
	var small bytes.Buffer
	z := gzip.NewWriter(&small)
	_, _ = z.Write(body) // a Buffer returns no error
	_ = z.Close()
	compressed := message(small.Bytes())
	compressed[0] = 1
	return func(ctx context.Context, h *h2, i int) error {
		id, err := h.open(i, pb.KV_Put_FullMethodName, gzipEncoding)
		if err != nil {
			return err
		}
		return h.data(ctx, id, compressed, true)
	}
}
