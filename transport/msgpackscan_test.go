package transport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
)

func encode(t testing.TB, kind int, msgs ...any) []byte {
	t.Helper()
	var buf bytes.Buffer
	if kind >= 0 {
		buf.WriteByte(byte(kind))
	}
	for _, m := range msgs {
		if err := codec.NewEncoder(&buf, &codec.MsgpackHandle{}).Encode(m); err != nil {
			t.Fatal(err)
		}
	}
	return buf.Bytes()
}

func someEntries(n, size int) *raft.AppendEntriesRequest {
	req := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: 3, ID: []byte("n1"),
		Addr: []byte("127.0.0.1:7700"),
	}, Term: 1 << 40, PrevLogEntry: 70000}
	for i := range n {
		req.Entries = append(req.Entries, &raft.Log{
			Index: 70001 + uint64(i), Term: 300, Data: make([]byte, size),
			Extensions: []byte("e"), AppendedAt: time.Unix(1, 5),
		})
	}
	return req
}

// The scanner accepts what the library writes, in pieces of any size.
func TestScannerFollowsTheLibrary(t *testing.T) {
	t.Parallel()
	header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1"), Addr: []byte("a")}
	var stream []byte
	for _, m := range [][]byte{
		encode(t, int(wireAppendEntries), someEntries(0, 0)),
		encode(t, int(wireAppendEntries), someEntries(3, 5)),
		encode(t, int(wireAppendEntries), someEntries(600, 300)),
		encode(t, int(wireAppendEntries), someEntries(2, 70000)),
		encode(t, int(wireRequestVote), &raft.RequestVoteRequest{RPCHeader: header, Term: 7, LeadershipTransfer: true}),
		encode(t, int(wireRequestPreVote), &raft.RequestPreVoteRequest{RPCHeader: header, Term: 7}),
		encode(t, int(wireTimeoutNow), &raft.TimeoutNowRequest{RPCHeader: header}),
	} {
		stream = append(stream, m...)
	}
	snapshot := encode(t, int(wireInstallSnapshot), &raft.InstallSnapshotRequest{
		RPCHeader: header, Size: 1 << 33,
		Configuration: make([]byte, 300),
	})
	for round := range 50 {
		s := scanner{requests: true, limit: MaxMessage}
		for rest := stream; len(rest) > 0; {
			n := len(rest)
			if round > 0 {
				n = min(n, 1+rand.IntN(1<<(round%17)))
			}
			if err := s.feed(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if s.midMessage() {
			t.Fatal("it does not see the end of the last message")
		}
		if err := s.feed(snapshot); err != nil || !s.data {
			t.Fatalf("snapshot: %v, data %v", err, s.data)
		}
		if err := s.feed(bytes.Repeat([]byte{0xc1}, 1000)); err != nil {
			t.Fatalf("its data: %v", err)
		}
	}
	answers := scanner{limit: maxResponse}
	if err := answers.feed(encode(t, -1, "", &raft.AppendEntriesResponse{RPCHeader: header, Success: true}, "an error",
		nil)); err != nil || answers.midMessage() {
		t.Fatalf("answers: %v", err)
	}
}

func TestScannerRejectsOversizedMessages(t *testing.T) {
	t.Parallel()
	field := func(name string, value ...byte) []byte { // a request that is a map of one field
		b := []byte{wireAppendEntries, 0x81, 0xa0 | byte(len(name))}
		return append(append(b, name...), value...)
	}
	for name, b := range map[string][]byte{
		"unknown type":     {9},
		"reserved byte":    field("Term", 0xc1),
		"4 GiB string":     field("Leader", 0xc6, 0xff, 0xff, 0xff, 0xff),
		"4 GiB old string": field("Leader", 0xdb, 0xff, 0xff, 0xff, 0xff),
		"4 GiB extension":  field("Leader", 0xc9, 0xff, 0xff, 0xff, 0xff),
		"4 G entries":      field("Entries", 0xdd, 0xff, 0xff, 0xff, 0xff),
		"4 G fields":       field("Entries", 0xdf, 0xff, 0xff, 0xff, 0xff),
		"too many entries": field("Entries", 0xdd, 0x00, 0x02, 0x00, 0x01),
		"nesting":          field("Entries", bytes.Repeat([]byte{0x91}, 100)...),
		"empty map bomb": append(field("Entries", 0x92, 0xdd, 0, 1, 0xff, 0),
			append(bytes.Repeat([]byte{0x80}, 0x1ff00), 0xdd, 0, 1, 0, 0)...),
	} {
		s := scanner{requests: true, limit: MaxMessage}
		if err := s.feed(b); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := scanner{limit: maxResponse}
	if err := s.feed([]byte{0xc6, 0, 2, 0, 0}); !errors.Is(err, errMalformed) {
		t.Errorf("large answer: %v", err)
	}
}

// A peer that has passed the hello and sends frames with huge lengths costs little memory, and its connection.
func TestOversizedFramesCostNoMemory(t *testing.T) {
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n1.bind()
	filler := bytes.Repeat([]byte{0x80}, 1<<20)
	for name, head := range map[string][]byte{
		"string":  {0xc6, 0xff, 0xff, 0xff, 0xf0},
		"entries": {0xdd, 0x7f, 0xff, 0xff, 0xff},
	} {
		conn, x, err := n2.tr.open(t.Context(), n1.addr, purposeRaft, "n1")
		if err != nil || x.refused() != nil {
			t.Fatal(err, x.refused())
		}
		defer conn.Close()
		before := heap()
		b := append([]byte{wireAppendEntries, 0x81, 0xa7}, "Entries"...)
		_, err = conn.Write(append(b, head...))
		for range 64 {
			if err != nil {
				break
			}
			_, err = conn.Write(filler)
		}
		if err == nil {
			t.Errorf("%s: 64 MiB were taken", name)
		}
		if grown := heap() - before; grown > 16<<20 {
			t.Errorf("%s: the heap has grown by %d MiB", name, grown>>20)
		}
	}
	if n := n1.rejected("message/malformed"); n != 2 {
		t.Errorf("rejected %d", n)
	}
	if reached(got) != 0 {
		t.Error("something reached raft")
	}
	if _, err := n2.append(n1, nil); err != nil {
		t.Errorf("a good message after it: %v", err)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}

// All unfinished messages of a peer share one bound.
func TestUnfinishedMessagesShareABudget(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n1.bind()
	if _, err := n2.heartbeat(n1); err != nil {
		t.Fatal(err)
	}
	p, err := n1.raft.peer("n2")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "an answered message holds nothing", func() bool { return p.budget.Load() == 0 })
	p.budget.Add(MaxMessage) // as if others held it
	if _, err := n2.heartbeat(n1); err == nil {
		t.Error("a message over the budget was answered")
	}
	p.budget.Add(-MaxMessage)
	if _, err := n2.heartbeat(n1); err != nil {
		t.Error(err)
	}
	eventually(t, "the closed connection holds nothing", func() bool { return p.budget.Load() == 0 })
}

// After a snapshot's answer a connection carries nothing more: the scanner cannot tell where the data ends.
func TestNothingFollowsASnapshot(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n1.bind()
	conn, _, err := n2.tr.open(t.Context(), n1.addr, purposeRaft, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	snapshot := encode(t, int(wireInstallSnapshot), &raft.InstallSnapshotRequest{
		RPCHeader: n2.header(), Term: 5, LastLogIndex: 500, Size: 4,
	})
	if _, err := conn.Write(append(snapshot, "data"...)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	dec := codec.NewDecoder(r, &codec.MsgpackHandle{})
	var text string
	var resp raft.InstallSnapshotResponse
	if err := errors.Join(dec.Decode(&text), dec.Decode(&resp)); err != nil || !resp.Success {
		t.Fatalf("%q %+v, %v", text, resp, err)
	}
	_, _ = conn.Write(encode(t, int(wireRequestVote), &raft.RequestVoteRequest{RPCHeader: n2.header(), Term: 6}))
	if _, err := io.ReadAll(r); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Logf("closed with %v", err)
	}
	if n := reached(got); n != 1 {
		t.Errorf("%d messages reached raft, want the snapshot alone", n)
	}
}

// Every message that the scanner accepts decodes within its bounds, and ends where the decoder ends.
func FuzzScanner(f *testing.F) {
	f.Add(encode(f, int(wireAppendEntries), someEntries(2, 10)))
	f.Add(encode(f, int(wireTimeoutNow), &raft.TimeoutNowRequest{}))
	f.Add([]byte{0, 0xdd, 0, 0, 0, 1, 0x80})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := scanner{requests: true, limit: 1 << 16}
		end := -1
		for i := range data {
			if err := s.feed(data[i : i+1]); err != nil {
				return
			}
			if !s.inValue {
				end = i + 1
				break
			}
		}
		if end < 0 || data[0] != wireAppendEntries {
			return
		}
		r := bytes.NewReader(data[1:end])
		var req raft.AppendEntriesRequest
		err := codec.NewDecoder(r, &codec.MsgpackHandle{}).Decode(&req)
		if err == nil && r.Len() > 0 {
			t.Errorf("decoded %d of %d bytes", end-1-r.Len(), end-1)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the decoder wants more than %d bytes", end)
		}
	})
}
