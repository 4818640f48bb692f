package etcd

import "context"

// heldStream is what gRPC holds for a stream.
type heldStream struct {
	received
	decoded int           // memory of the message that its call has
	unsent  int           // bytes of messages that were given to gRPC, and not written
	sent    chan struct{} // has room for one; nil: its call has not waited
}

// wake wakes the call of a stream when messages were sent.
func (h *heldStream) wake() {
	if h.sent != nil {
		notify(h.sent)
	}
}

// wrote notes bytes of messages that are written. The lock must be held.
func (w *wire) wrote(stream uint32, part []byte, _ int) {
	if h, ok := w.open[stream]; ok && h.unsent > 0 {
		h.unsent -= len(part)
		h.wake()
	}
}

// sends notes that the call of a stream gives a message to gRPC.
func (l link) sends(size int) {
	if l.wire == nil {
		return
	}
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	if h, ok := l.wire.open[l.stream]; ok {
		h.unsent += len(received{}.prefix) + size
	}
}

// awaitSent waits until few bytes of the stream's messages are unsent, or the stream has ended. gRPC keeps up to 64 KiB
// of them for a client that does not want them yet, and small ones take much more memory. Only the goroutine that sends
// may call it. If ctx ends before, it returns the cause.
func (l link) awaitSent(ctx context.Context) error {
	if l.wire == nil {
		return nil
	}
	for {
		sent := l.wire.unsent(l.stream)
		if sent == nil {
			return nil
		}
		select {
		case <-sent:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unsent returns what tells that messages of a stream were sent, nil if it has not too many that are not.
func (w *wire) unsent(stream uint32) (sent <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.open[stream]
	if !ok || h.unsent <= maxUnsent {
		return nil
	}
	if h.sent == nil {
		h.sent = make(chan struct{}, 1)
	}
	return h.sent
}
