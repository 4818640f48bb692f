package transport

import (
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// The cost of the guards: one append and its answer over loopback, with this transport and with the library's alone.
func BenchmarkAppendEntries(b *testing.B) {
	req := func(id, addr string) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte(id), Addr: []byte(addr)}, Term: 5,
			PrevLogEntry: 10, PrevLogTerm: 5, LeaderCommitIndex: 10,
			Entries: []*raft.Log{{Index: 11, Term: 5, Data: make([]byte, 256)}},
		}
	}
	run := func(b *testing.B, from raft.Transport, to *raft.AppendEntriesRequest, addr string) {
		var resp raft.AppendEntriesResponse
		for b.Loop() {
			if err := from.AppendEntries("n2", raft.ServerAddress(addr), to, &resp); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("northstar", func(b *testing.B) {
		n1, n2 := newEnd(b, "n1"), newEnd(b, "n2")
		n2.bindOnly()
		n2.serve(func(rpc raft.RPC) { answer(&rpc, 5) })
		run(b, n1.raft, req("n1", n1.addr), n2.addr)
	})
	b.Run("library", func(b *testing.B) {
		plain := func() *raft.NetworkTransport {
			tr, err := raft.NewTCPTransportWithLogger("127.0.0.1:0", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, maxPool,
				time.Second, hclog.NewNullLogger())
			if err != nil {
				b.Fatal(err)
			}
			return tr
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		addr := ln.Addr().String()
		_ = ln.Close()
		from := plain()
		to, err := raft.NewTCPTransportWithLogger(addr, nil, maxPool, time.Second, hclog.NewNullLogger())
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for rpc := range to.Consumer() {
				answer(&rpc, 5)
				if len(rpc.Command.(*raft.AppendEntriesRequest).Entries) == 0 {
					return
				}
			}
		}()
		run(b, from, req("n1", "a"), addr)
		var resp raft.AppendEntriesResponse
		_ = from.AppendEntries("n2", raft.ServerAddress(addr), &raft.AppendEntriesRequest{}, &resp)
		<-done
		from.CloseStreams()
		_ = from.Close()
		_ = to.Close()
	})
}
