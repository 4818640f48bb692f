package etcd

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// randomMessages returns messages and where each ends.
func randomMessages(r *rand.Rand) (stream []byte, ends []int) {
	for range 1 + r.IntN(300) {
		size := r.IntN([]int{1, 30, 2000, 40_000}[r.IntN(4)])
		stream = append(stream, 0, 0, byte(size>>16), byte(size>>8), byte(size))
		stream = append(stream, make([]byte, size)...)
		ends = append(ends, len(stream))
	}
	return stream, ends
}

// TestReceived: a stream counts the memory of all frames that its call has not read to their end.
func TestReceived(t *testing.T) {
	t.Parallel()
	memory := func(size int) int { // of a frame
		switch {
		case size < smallFrame:
			return frameCost + size
		case size <= pooledFrame:
			return frameCost + pooledFrame
		}
		return frameCost + max(size, largeFrame)
	}
	type sent struct{ end, memory int } // of a frame
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		stream, ends := randomMessages(r)
		m, now := received{}, time.Now()
		var frames []sent // ends in the stream, and memory
		at, total, took := 0, 0, 0
		for at < len(stream) {
			size := min(1+r.IntN([]int{3, 100, 3000, 40_000}[r.IntN(4)]), len(stream)-at)
			total += m.frame(size, now)
			for from := at; from < at+size; {
				n := min(1+r.IntN(size), at+size-from)
				m.follow(stream[from:from+n], at+size-from-n, now)
				from += n
			}
			at += size
			frames = append(frames, sent{at, memory(size)})
			for took < len(ends) && ends[took] <= at && r.IntN(3) > 0 {
				total -= m.take(now)
				took++
			}
			read := 0
			if took > 0 {
				read = ends[took-1]
			}
			least := 0 // what gRPC holds: frames that were not read to their end
			for _, f := range frames {
				if f.end > read {
					least += f.memory
				}
			}
			if m.held != total || m.held < least || (m.waiting == nil) && m.held != m.present {
				t.Fatalf("seed %d: %d bytes count, want %d, and gRPC holds %d", seed, m.held, total, least)
			}
			if slices.Contains(ends, at) != m.since.IsZero() {
				t.Fatalf("seed %d: a message has begun at %v", seed, m.since)
			}
		}
		for ; took < len(ends); took++ {
			m.take(now)
		}
		if m.held != 0 || m.waiting != nil || !m.since.IsZero() {
			t.Fatalf("seed %d: %d bytes count after the last message was taken", seed, m.held)
		}
	}
}

// TestTakenMessages: messages count while their call has not taken them, also those that a call with one message never
// takes.
func TestTakenMessages(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	conn := dial(t, c.addr)
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	taken := func() int { _, bytes := c.node.share.taken(); return bytes }

	watch, err := conn.NewStream(within(t), both, pb.Watch_Watch_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	filler := &pb.WatchRequest{}
	filler.ProtoReflect().SetUnknown(append([]byte{0xa2, 0x06, 0x80, 0x09}, make([]byte, 9<<7)...)) // field 100
	for range 1000 {
		if err := watch.SendMsg(filler); err != nil {
			t.Fatal(err)
		}
	}
	if err := watch.SendMsg(createWatch(&pb.WatchCreateRequest{Key: []byte("a")})); err != nil {
		t.Fatal(err)
	}
	if err := watch.RecvMsg(new(pb.WatchResponse)); err != nil {
		t.Fatal(err)
	}
	c.until("the messages of a stream are taken", func() bool { return taken() == 0 })

	c.must("election/campaign", `{"name":%q,"lease":%d}`, "e", 1)
	waiting, err := conn.NewStream(within(t), both, campaignMethod)
	if err != nil {
		t.Fatal(err)
	}
	request := electionMessage(t, "CampaignRequest").set("name", []byte("e")).set("lease", int64(2)).Message
	if err := waiting.SendMsg(request); err != nil {
		t.Fatal(err)
	}
	c.until("the call waits", func() bool { return c.has("e/2") })
	for range 55 {
		if err := waiting.SendMsg(filler); err != nil {
			t.Fatal(err)
		}
	}
	c.until("the others count", func() bool { return taken() >= 55*pooledFrame-freeBytes })
}
