package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"northstar/cluster"
)

// called serves an accepted connection for calls until it ends.
func (t *Transport) called(ctx context.Context, x completedHello, conn net.Conn, leave func()) {
	if err := t.checkCaller(x.peer); err != nil {
		_ = closeNow(conn)
		t.rejectConn(conn, "not_member", err)
		return
	}
	leave()
	_ = conn.SetDeadline(time.Time{}) // that of the hello
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = closeNow(conn) })
	s := &callServer{t: t, conn: conn, writing: make(chan struct{}, 1), cancel: cancel}
	trust := t.trustOfClient(conn)
	var handling sync.WaitGroup
	handling.Go(func() { s.reportProgress(ctx) })
	room := semaphore.NewWeighted(maxCallsBytes)
	in := bufio.NewReader(conn) // the length and the call in one system call, and calls that come together
	for {
		number, request, err := readCall(in, maxCall)
		if errors.Is(err, errMalformed) {
			t.rejectConn(conn, helloReason(err), err)
		}
		if err != nil || t.cfg.Handler == nil {
			break
		}
		if err := t.checkCaller(x.peer); err != nil {
			t.rejectConn(conn, "not_member", err)
			break
		}
		size := int64(max(len(request), maxCallsBytes/maxCalls))
		if room.Acquire(ctx, size) != nil {
			break
		}
		changed := t.identityChanged(x) || !trust.valid()
		s.working.Add(1)
		handling.Go(func() {
			defer room.Release(size)
			defer s.working.Add(-1)
			if changed { // the other node connects and says hello again, and loses no call
				s.respond(number|notHandled, nil)
				return
			}
			s.respond(number, t.cfg.Handler.Called(ctx, x.peer.NodeID, request))
		})
	}
	cancel()
	handling.Wait()
	stop()
	_ = closeNow(conn)
}

// checkCaller returns why this node takes no calls and no relayed messages from a peer, nil if it does. A peer asserts
// with them what its clients do, and its audit records. So they count only from members: from nodes that exchange votes
// with this one, and from those of its roster that have not adopted the cluster ID yet. Without an ID, this node has no
// data of clients to protect.
func (t *Transport) checkCaller(p cluster.Peer) error {
	a := t.admit(p)
	switch {
	case !a.OK():
		return &RefusedError{Node: p.NodeID, Refusal: a.Refusal, Reason: a.Reason}
	case a.Votes, a.MayAdoptClusterID, t.cfg.Membership.LocalPeer().ClusterID == "":
		return nil
	}
	return fmt.Errorf("%w: %s", errNotMember, noVotesReason(a))
}

// callServer is the accepting side of a connection for calls.
type callServer struct {
	t       *Transport
	conn    net.Conn
	writing chan struct{} // capacity 1: held while a response is written
	cancel  context.CancelFunc
	working atomic.Int64 // requests in progress
}

func (s *callServer) respond(number uint64, body []byte) {
	s.writing <- struct{}{}
	defer func() { <-s.writing }()
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.t.params.stall)) // an error shows at the write
	if _, err := s.conn.Write(callFrame(number, body)); err != nil {
		s.cancel()
	}
}

// reportProgress sends a sign of life while requests are in progress: the other side would take a request that takes
// long for a broken connection, and all calls on it would fail.
func (s *callServer) reportProgress(ctx context.Context) {
	tick := time.NewTicker(s.t.params.stall / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if s.working.Load() > 0 && len(s.writing) == 0 { // a response that is being written is a sign as well
			s.respond(stillWorking, nil)
		}
	}
}
