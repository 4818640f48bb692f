package etcd

import (
	"context"
	"reflect"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// callStream is a stream with the context of its call.
type callStream struct {
	grpc.ServerStream
	s        *Server
	ctx      context.Context
	link     link
	received bool // a message, which counts until the next one is wanted
}

// Context implements grpc.ServerStream.
func (c *callStream) Context() context.Context { return c.ctx }

// maxStreamMessage bounds what a client sends in one message of a stream. A stream keeps the messages that wait for its
// handler, which waits for the client to read.
const maxStreamMessage = 32 << 10

const (
	smallMessage = 1 << 10 // up to this size a decoded message is not counted
	decodedCost  = 4       // the memory of a decoded message for each byte, at most: a filter of a watch has one byte
)

// RecvMsg implements grpc.ServerStream.
func (c *callStream) RecvMsg(m any) error {
	if c.received {
		c.link.took()
	}
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	c.received = true
	received, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	size := proto.Size(received)
	c.link.decoded(size)
	if size > maxStreamMessage {
		return rpctypes.ErrGRPCRequestTooLarge
	}
	return nil
}

// SendMsg implements grpc.ServerStream. It waits until the client has taken most of what was sent before.
func (c *callStream) SendMsg(m any) error {
	sent, done := uncounted(m)
	message, ok := sent.(proto.Message)
	if c.link.wire == nil || !ok {
		return c.ServerStream.SendMsg(m)
	}
	err := c.link.awaitSent(c.ctx)
	size := proto.Size(message)
	if _, is := m.(*counted); err == nil && !is {
		m, err = c.s.countedMessage(c.ctx, message, size, takeBytes)
	}
	if err != nil {
		done()
		return err
	}
	c.link.sends(size)
	return c.ServerStream.SendMsg(m)
}

// link is the stream of a gRPC call on its connection. A call of the gateway has none.
type link struct {
	wire   *wire
	stream uint32
}

func linkOf(ctx context.Context) link {
	w := wireOf(ctx)
	if w == nil {
		return link{}
	}
	return link{w, streamNumber(grpc.ServerTransportStreamFromContext(ctx))}
}

// decoded notes the size of the message that the call has, until took. What was received may be compressed.
func (l link) decoded(size int) {
	if l.wire != nil && size > smallMessage {
		l.wire.decoded(l.stream, decodedCost*size)
	}
}

// took notes that the call has taken a message.
func (l link) took() {
	if l.wire != nil {
		l.wire.took(l.stream)
	}
}

// numberField is the field with the number of a stream.
var numberField struct {
	once  sync.Once
	index []int
}

// streamNumber returns the number of a stream in HTTP/2, which gRPC keeps in a field of its own, and 0 if a later
// version of gRPC has no such field. Then TestTakenMessages fails.
func streamNumber(s grpc.ServerTransportStream) uint32 {
	v := reflect.ValueOf(s).Elem()
	numberField.once.Do(func() {
		if f, ok := v.Type().FieldByName("id"); ok && f.Type.Kind() == reflect.Uint32 {
			numberField.index = f.Index
		}
	})
	if numberField.index == nil {
		return 0
	}
	return uint32(v.FieldByIndex(numberField.index).Uint())
}
