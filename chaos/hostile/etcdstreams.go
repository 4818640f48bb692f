package hostile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// oneStream creates a watch on the first stream of its connection.
func oneStream(ctx context.Context, h *h2, i int) error {
	if h.next == 1 {
		if _, err := h.open(i, pb.Watch_Watch_FullMethodName); err != nil {
			return err
		}
	}
	body, err := proto.Marshal(watchOf(fmt.Sprintf("hostile/%d/", i)))
	if err != nil {
		return err
	}
	return h.data(ctx, 1, message(body), false)
}

// wanting are the settings of a client that reads its connection, but wants nothing of any stream.
var wanting = grpcLimits{all: 1 << 30}

// errStalled is the error of an opener when the node reads the connection no more.
var errStalled = errors.New("the node does not read the connection")

// fullStream makes a call that reads no more of its stream: a watch whose answers the client does not want, or a call
// with one answer. Then it sends as much as the node's window of the stream allows, in frames of 1,025 bytes, each with
// a whole message: gRPC keeps 4 KiB for it.
func fullStream(ctx context.Context, h *h2, i int) error {
	const stallAfter = time.Second
	limited, cancel := context.WithTimeout(ctx, stallAfter)
	defer cancel()
	_ = h.conn.SetWriteDeadline(time.Now().Add(stallAfter))
	err := h.fillStream(limited, i)
	if ctx.Err() == nil && (limited.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		return errStalled
	}
	return err
}

func (h *h2) fillStream(ctx context.Context, i int) error {
	if i%2 == 0 {
		if err := h.call(ctx, i, pb.KV_Range_FullMethodName, rangeOf(bigPrefix), false); err != nil {
			return err
		}
		return h.fill(ctx, h.next-2)
	}
	id, err := h.open(i, pb.Watch_Watch_FullMethodName)
	if err != nil {
		return err
	}
	var pairs []byte
	for watch := range int64(800) { // gRPC queues 64 KiB of answers
		create := watchOf(fmt.Sprintf("hostile/%d/", i))
		create.GetCreateRequest().WatchId = watch + 1
		for _, m := range []*pb.WatchRequest{create, {RequestUnion: &pb.WatchRequest_CancelRequest{
			CancelRequest: &pb.WatchCancelRequest{WatchId: watch + 1},
		}}} {
			body, err := proto.Marshal(m)
			if err != nil {
				return err
			}
			pairs = append(pairs, message(body)...)
		}
	}
	if err := h.data(ctx, id, pairs, false); err != nil {
		return err
	}
	return h.fill(ctx, id)
}

// fill sends whole messages on a stream until the node's window for it is used.
func (h *h2) fill(ctx context.Context, id uint32) error {
	body := message(append([]byte{0xa2, 0x06, 0xf8, 0x07}, make([]byte, 1016)...)) // a field 100, which no message has
	for {
		h.mu.Lock()
		room, all, changed := h.windows[id]+firstWindow, h.windows[0]+firstWindow, h.changed
		err := h.failed
		size := int64(len(body))
		if err == nil && room >= size && all >= size {
			h.windows[id] -= size
			h.windows[0] -= size
			err = h.frames.WriteData(id, false, body)
		}
		h.mu.Unlock()
		if err != nil || room < size {
			return err
		}
		if all < size {
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// fillRevisions makes many revisions that watches can begin with: those after the first call of an etcd client.
func fillRevisions(ctx context.Context, c *cluster) error {
	u := c.caller(c.writer, writerAddress)
	defer u.forget()
	if _, err := u.do(ctx, c.Nodes[0], http.MethodPost, "/v3/kv/put", []byte(`{"key":"YQ=="}`)); err != nil {
		return err
	}
	return c.write(ctx, 1200, 16)
}

func watchFirst(ctx context.Context, h *h2, i int) error {
	r := watchOf(bigPrefix)
	r.GetCreateRequest().StartRevision = 100 // of a cluster's first writes, and after that of fillRevisions
	return h.call(ctx, i, pb.Watch_Watch_FullMethodName, r, false)
}
