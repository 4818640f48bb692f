package etcd

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"northstar/state"
)

// Large answers are counted against the budget of the native API until their client has taken them: gRPC keeps them in
// memory after the handler's return, as long as the client's flow control wants.
const (
	smallAnswer   = 4 << 10                // up to this size an answer is not counted: the wire counts its call
	maxUnsent     = 1 << 10                // of a stream: with more bytes of messages that are not sent, none is made
	maxAnswer     = 64 << 20               // of one answer, and of one message of a watch
	answerRetry   = 20 * time.Millisecond  // and twice as long each time: thousands may wait
	maxRetry      = 640 * time.Millisecond // of that
	answerTimeout = 10 * time.Second       // of a watch, and of the answer to a write, for the budget
)

var (
	errAnswerTooLarge = status.Error(codes.ResourceExhausted,
		"etcdserver: the answer is over 64 MiB: use a limit, or a watch with fragments")
	errAnswerRefused = status.Error(codes.Unknown,
		"etcdserver: the request was executed, but the node has no memory for its answer")
)

// counted is a message that holds a part of the budget until it is sent. Codec and gateway know it.
type counted struct {
	message proto.Message
	give    func() // may be called more than once
}

// newCounted returns a message that calls give once: when it is sent, or at the latest when it is garbage. gRPC does
// not say so when a connection or a stream ends before. If it is not sent within limit, it calls late: a client that
// does not read must not hold its part of the budget for ever.
func newCounted(m proto.Message, give func(), limit time.Duration, late func()) *counted {
	var given atomic.Bool
	timer := time.AfterFunc(limit, func() {
		collectGarbage(limit / 2)
		time.AfterFunc(cleanupTime, func() {
			if !given.Load() {
				late()
			}
		})
	})
	c := &counted{message: m, give: sync.OnceFunc(func() {
		given.Store(true)
		timer.Stop()
		give()
	})}
	runtime.AddCleanup(c, func(give func()) { give() }, c.give)
	return c
}

// cleanupTime is how long cleanups may take after a garbage collection.
const cleanupTime = time.Second

// collectGarbage collects garbage if the last time is older than age.
func collectGarbage(age time.Duration) {
	var stats debug.GCStats
	if debug.ReadGCStats(&stats); time.Since(stats.LastGC) > age {
		runtime.GC()
	}
}

// closeConn returns a function that closes the connection of a gRPC call. Connections of the gateway have deadlines.
func closeConn(ctx context.Context) func() {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(*connInfo); ok && info.live != nil {
			return func() { _ = info.live.Close() }
		}
	}
	return func() {}
}

// Get implements mem.BufferPool.
func (c *counted) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool: the encoded message was sent.
func (c *counted) Put(*[]byte) { c.give() }

// codec is gRPC's codec for protobuf, and encodes counted messages.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*counted)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	body, err := proto.Marshal(m.message)
	if err != nil {
		m.give()
		return nil, err
	}
	if mem.IsBelowBufferPoolingThreshold(cap(body)) {
		m.give() // nothing reports the sending of so small a message
	}
	m.message = nil // it refers to values that the state may have replaced
	return mem.BufferSlice{mem.NewBuffer(&body, m)}, nil
}

// answerPlain has gRPC send the answers to a call as they are. Otherwise it compresses them if the client compresses
// its messages: it frees the encoded message before it has sent the compressed one, which nothing counts.
func answerPlain(ctx context.Context) error {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ SendCompress() string })
	if !ok || stream.SendCompress() == "" {
		return nil // of the gateway, or plain
	}
	return grpc.SetSendCompressor(ctx, encoding.Identity)
}

// uncounted returns the message of an answer, and what to call when it was sent.
func uncounted(m any) (message any, sent func()) {
	if c, ok := m.(*counted); ok {
		return c.message, c.give
	}
	return m, func() {}
}

// answerKey is the key of what the answer to a call with one answer holds, in the context of the call.
type answerKey struct{}

// heldAnswer is what an answer has taken of the budget, but for the last smallAnswer bytes. One goroutine uses it.
type heldAnswer struct {
	size, taken int
	gives       []func()
}

func (h *heldAnswer) give() {
	for _, give := range h.gives {
		give()
	}
}

// grow takes bytes of the budget with take.
func (h *heldAnswer) grow(size int, take func(size int) (give func(), err error)) error {
	h.size += size
	more := h.size - h.taken
	switch {
	case h.size > maxAnswer:
		return errAnswerTooLarge
	case more <= smallAnswer:
		return nil
	}
	give, err := take(more)
	if err != nil {
		return err
	}
	h.gives, h.taken = append(h.gives, give), h.size
	return nil
}

// roomForAnswer returns what counts the answer to a call while it is made.
func roomForAnswer(ctx context.Context) state.Room {
	held, _ := ctx.Value(answerKey{}).(*heldAnswer)
	if held == nil {
		return func(int) error { return nil }
	}
	return func(size int) error {
		return held.grow(size, func(size int) (func(), error) { return takeBytes(ctx, size) })
	}
}

// takeBytes takes bytes of the budget, twice the size: for the encoded message, and what the garbage collector has not
// freed yet. JSON needs as much for base64 and a copy without spaces.
func takeBytes(ctx context.Context, size int) (give func(), err error) {
	if size > maxAnswer {
		return nil, errAnswerTooLarge
	}
	return callOf(ctx).TakeAnswer(2 * size)
}

// awaitBytes is takeBytes for what waits before it fails.
func awaitBytes(ctx context.Context, size int) (give func(), err error) {
	until := time.Now().Add(answerTimeout)
	for delay := answerRetry; ; delay = min(2*delay, maxRetry) {
		give, err = takeBytes(ctx, size)
		if err == nil || size > maxAnswer || !time.Now().Before(until) {
			return give, err
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// awaitAnswer counts the answer to a request that was executed: its client must not take an error for a refusal.
func awaitAnswer(ctx context.Context, size int) error {
	held, _ := ctx.Value(answerKey{}).(*heldAnswer)
	if held == nil {
		return nil
	}
	if held.grow(size, func(size int) (func(), error) { return awaitBytes(ctx, size) }) != nil {
		return errAnswerRefused
	}
	return nil
}

func sizeOfItem(it *state.Item) int {
	if it == nil {
		return 0
	}
	return len(it.Key) + len(it.Value) + state.ItemOverhead
}

func sizeOfItems(items []*state.Item) (size int) {
	for _, it := range items {
		size += sizeOfItem(it)
	}
	return size
}

func sizeOfTxn(r *state.TxnResult) (size int) {
	for i := range r.Responses {
		switch one := &r.Responses[i]; {
		case one.Range != nil:
			size += sizeOfItems(one.Range.Items)
		case one.Put != nil:
			size += sizeOfItem(one.Put.Prev)
		case one.Delete != nil:
			size += sizeOfItems(one.Delete.Prev)
		case one.Txn != nil:
			size += sizeOfTxn(one.Txn)
		}
	}
	return size
}

// sizeOfChanges returns the size of the events of changes.
func sizeOfChanges(changes []state.Change, prevKV bool) (size int) {
	for i := range changes {
		size += len(changes[i].Key) + len(changes[i].Value) + state.ItemOverhead
		if prevKV {
			size += sizeOfItem(changes[i].Prev)
		}
	}
	return size
}

// countedMessage returns a message of a stream whose size is known, counted with take if it is large. A stream has few
// others: see maxUnsent.
func (s *Server) countedMessage(
	ctx context.Context, m proto.Message, size int, take func(context.Context, int) (give func(), err error),
) (any, error) {
	if size <= smallAnswer {
		return m, nil
	}
	give, err := take(ctx, size)
	if err != nil {
		return nil, err
	}
	return newCounted(m, give, s.lifetime, closeConn(ctx)), nil
}
