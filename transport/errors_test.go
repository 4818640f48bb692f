package transport

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// The texts by which nodes of all builds know one another's rejections. A node that sent other ones would not be
// understood by a node of an earlier build.
const (
	wireTimeoutNowRejected = "not told to stand"
	wireNoSpace            = "this node is short of disk space"
)

// A node of an earlier build looks for these texts in what this build answers.
func TestRejectionsKeepTheirTextOnTheWire(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n2.bind()
	n2.electionBlocked.Store(true)
	n2.readOnly.Store(true)
	out := n1.to(n2) // the library's own transport shows what arrives
	id, addr := raft.ServerID(n2.id), raft.ServerAddress(n2.addr)
	err := out.TimeoutNow(id, addr, &raft.TimeoutNowRequest{RPCHeader: n1.header()}, new(raft.TimeoutNowResponse))
	if err == nil || !strings.HasPrefix(err.Error(), wireTimeoutNowRejected+": ") {
		t.Errorf("a rejected TimeoutNow: %v", err)
	}
	err = out.AppendEntries(id, addr, &raft.AppendEntriesRequest{
		RPCHeader: n1.header(), Term: 5, Entries: []*raft.Log{{Index: 1, Term: 5}},
	}, new(raft.AppendEntriesResponse))
	if err == nil || !strings.HasPrefix(err.Error(), wireNoSpace+" and ") {
		t.Errorf("entries without disk space: %v", err)
	}
}

// This build knows the rejections of a node of an earlier build by their texts.
func TestRejectionsOfAnEarlierBuild(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n2.bindOnly()
	n2.serve(func(rpc raft.RPC) {
		if _, ok := rpc.Command.(*raft.TimeoutNowRequest); ok {
			rpc.Respond(nil, errors.New(wireTimeoutNowRejected+": the transfer was given up"))
		} else {
			rpc.Respond(nil, errors.New(wireNoSpace+" and takes no entries"))
		}
	})
	err := n1.timeoutNow(n2)
	var not *TimeoutNowUndelivered
	if !errors.As(err, &not) || !not.Undelivered() || err.Error() != "TimeoutNow rejected: the transfer was given up" {
		t.Errorf("a rejected TimeoutNow: %v", err)
	}
	if _, err := n1.append(n2, nil); !errors.Is(err, errNoSpace) || errors.As(err, &not) {
		t.Errorf("entries without disk space: %v", err)
	}
	if err := fromWire(errClosed); err != errClosed {
		t.Errorf("%v", err)
	}
	if fromWire(nil) != nil || toWire(nil) != nil || toWire(errClosed) != errClosed {
		t.Error("an error that is no rejection was changed")
	}
}
