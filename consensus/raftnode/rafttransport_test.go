package raftnode

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// agreeing is a transport to two voters that grant and acknowledge everything.
type agreeing struct {
	*raft.InmemTransport
	messages chan raft.RPC // to raft.Raft
	appends  atomic.Int64
}

func (a *agreeing) Consumer() <-chan raft.RPC { return a.messages }

func (*agreeing) RequestPreVote(_ raft.ServerID, _ raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse,
) error {
	resp.Term, resp.Granted = args.Term, true
	return nil
}

func (*agreeing) RequestVote(id raft.ServerID, at raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse,
) error {
	return grants{}.RequestVote(id, at, args, resp)
}

func (a *agreeing) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	a.appends.Add(1)
	resp.Term, resp.Success, resp.LastLog = args.Term, true, args.PrevLogEntry+uint64(len(args.Entries))
	return nil
}

func (*agreeing) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// slowTerms is a store that does not write the terms from stallFrom on before free is closed.
type slowTerms struct {
	*raft.InmemStore
	stallFrom atomic.Uint64
	free      chan struct{}
}

func (s *slowTerms) SetUint64(key []byte, v uint64) error {
	if from := s.stallFrom.Load(); from != 0 && v >= from {
		<-s.free
	}
	return s.InmemStore.SetUint64(key, v)
}

func (s *slowTerms) RecordVote(term, voteTerm uint64, candidate []byte) error {
	return errors.Join(s.SetUint64([]byte(keyCurrentTerm), term), s.SetUint64([]byte(keyLastVoteTerm), voteTerm),
		s.Set([]byte(keyLastVoteCand), candidate))
}

// newLeader starts an instance of three voters, and waits until it leads.
func newLeader(t *testing.T) (*Instance, *slowTerms, *agreeing) {
	t.Helper()
	stable := &slowTerms{InmemStore: raft.NewInmemStore(), free: make(chan struct{})}
	_, inmem := raft.NewInmemTransport("n1")
	trans := &agreeing{InmemTransport: inmem, messages: make(chan raft.RPC)}
	f, log := newTestFSM(), stable.InmemStore
	s, err := OpenSnapshots(raft.NewInmemSnapshotStore(), log, f.FSM, LogPosition{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Self: "n1", TimeoutMin: 150 * time.Millisecond, TimeoutMax: 300 * time.Millisecond,
		SnapshotThreshold: 1000, SnapshotInterval: time.Hour, TrailingLogs: MinTrailingLogs, LogBytes: 1 << 20,
		Log: log, Stable: stable, Snapshots: s, Transport: trans, FSM: f.FSM, Logger: hclog.NewNullLogger(),
		ElectionBlocked: func(uint64) bool { return false }, OnStuckTransfer: func() {},
	}
	voters := raft.Configuration{Servers: []raft.Server{
		{ID: "n1", Address: trans.LocalAddr()}, {ID: "n2", Address: "n2"}, {ID: "n3", Address: "n3"},
	}}
	conf := cfg.raftConfig(cfg.Logger)
	if err := raft.BootstrapCluster(conf, log, stable, s, trans, voters); err != nil {
		t.Fatal(err)
	}
	i, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i.Raft.State() != raft.Leader {
		time.Sleep(time.Millisecond)
	}
	return i, stable, trans
}

// TestDeposedLeaderSendsNothing: raft.Raft still replicates while it writes the term of the next leader.
func TestDeposedLeaderSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, stable, trans := newLeader(t)
		term := i.Raft.CurrentTerm()
		stable.stallFrom.Store(term + 1)
		responses := make(chan raft.RPCResponse, 1)
		next := &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("n2"), Addr: []byte("n2")},
			Term:      term + 1,
		}
		trans.messages <- raft.RPC{Command: next, RespChan: responses}
		synctest.Wait()
		if i.Raft.State() != raft.Follower || i.Raft.CurrentTerm() != term {
			t.Fatalf("%v in term %d, want a follower that writes term %d", i.Raft.State(), i.Raft.CurrentTerm(), term+1)
		}
		before := trans.appends.Load()
		time.Sleep(10 * time.Second)
		if n := trans.appends.Load() - before; n != 0 {
			t.Errorf("%d messages of the deposed leader", n)
		}
		// The newest snapshot may be the next leader's.
		err := i.trans.InstallSnapshot("n2", "n2", &raft.InstallSnapshotRequest{Term: term}, nil, strings.NewReader(""))
		if !errors.Is(err, errDeposed) {
			t.Errorf("a snapshot of the deposed leader: %v", err)
		}
		close(stable.free)
		<-responses
		i.Shutdown()()
	})
}

// TestDemotionWaitsForCommit: a node gets a configuration in which it has no vote once that is committed, and not from
// a leader that is deposed before.
func TestDemotionWaitsForCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, _, _ := newLeader(t)
		time.Sleep(time.Second) // its first entry is committed
		term, index := i.Raft.CurrentTerm(), i.Raft.LastIndex()+1
		send := func(to raft.ServerID, entryTerm uint64) <-chan error {
			demotion := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{
				{ID: "n1", Address: "n1"}, {ID: "n2", Address: "n2", Suffrage: raft.Nonvoter},
			}})
			args := &raft.AppendEntriesRequest{Term: term, PrevLogEntry: index - 1, Entries: []*raft.Log{
				{Index: index, Term: entryTerm, Type: raft.LogConfiguration, Data: demotion},
				{Index: index + 1, Term: term, Type: raft.LogCommand},
			}}
			sent := make(chan error, 1)
			go func() { sent <- i.trans.AppendEntries(to, "", args, &raft.AppendEntriesResponse{}) }()
			time.Sleep(time.Minute)
			return sent
		}
		if err := <-send("n1", term); err != nil {
			t.Errorf("to a voter: %v", err)
		}
		if err := <-send("n2", term-1); err != nil {
			t.Errorf("of an earlier term, to a voter in the latest configuration: %v", err)
		}
		held := []<-chan error{send("n2", term), send("n3", term), send("n4", term-1)}
		for i, sent := range held {
			if len(sent) != 0 {
				t.Errorf("%d: sent before it is committed to a node that has no vote by it", i)
			}
		}
		if err := i.Raft.Apply(nil, 0).Error(); err != nil || i.Raft.CommitIndex() != index {
			t.Fatalf("entry %d is not committed: %v", index, err)
		}
		for i, sent := range held {
			if err := <-sent; err != nil {
				t.Errorf("%d: after the commit: %v", i, err)
			}
		}
		index++
		demoted := send("n2", term)
		i.Shutdown()()
		if err := <-demoted; !errors.Is(err, errDeposed) {
			t.Errorf("after the leadership: %v", err)
		}
	})
}
