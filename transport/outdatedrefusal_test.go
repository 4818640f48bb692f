package transport

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestOutdatedRefusal: which refusals of an append raft.Raft does not get.
func TestOutdatedRefusal(t *testing.T) {
	t.Parallel()
	type (
		request  = raft.AppendEntriesRequest
		response = raft.AppendEntriesResponse
	)
	for name, tt := range map[string]struct {
		change   func(*request, *response)
		outdated bool
	}{
		"the peer's log is longer":  {nil, true},
		"success":                   {func(_ *request, r *response) { r.Success = true }, false},
		"a newer term":              {func(_ *request, r *response) { r.Term = 6 }, false},
		"the peer's log is shorter": {func(_ *request, r *response) { r.LastLog = 9 }, false},
		"an entry in it": {func(a *request, _ *response) {
			a.Entries = []*raft.Log{{Index: 11, Term: 5}}
		}, false},
		"after the leader's first entry": {func(a *request, _ *response) { a.PrevLogTerm = 5 }, false},
		"a heartbeat":                    {func(a *request, _ *response) { *a = request{Term: 5} }, false},
	} {
		a := &raft.AppendEntriesRequest{Term: 5, PrevLogEntry: 10, PrevLogTerm: 4, LeaderCommitIndex: 9}
		r := &raft.AppendEntriesResponse{Term: 5, LastLog: 12}
		if tt.change != nil {
			tt.change(a, r)
		}
		if err := outdatedRefusal(a, r); (err != nil) != tt.outdated {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// slowNoops is a log that stores a leader's first entry slowly.
type slowNoops struct{ *raft.InmemStore }

func (s slowNoops) StoreLogs(entries []*raft.Log) error {
	if entries[0].Type == raft.LogNoop {
		time.Sleep(testMin / 4)
	}
	return s.InmemStore.StoreLogs(entries)
}

// TestFollowerOfAnAbandonedRestoreSeesTheFirstEntry: the follower's newest snapshot is an abandoned restore, entry 11
// of term 1, and it has entry 12. It refuses each append that begins before that. The new leader's log ends with entry
// 10, and its first append precedes its own entry 11. Only that entry shows the follower that the restore is abandoned.
// raft.Raft would go back in its log and never send it.
func TestFollowerOfAnAbandonedRestoreSeesTheFirstEntry(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"first append is refused": false, "first append is lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testFirstEntryIsSent(t, lost) })
		})
	}
}

func testFirstEntryIsSent(t *testing.T, lost bool) {
	var mu sync.Mutex
	losing := lost
	c := newSimNet().newCluster(t, 2, func(cfg *Config, _ *end) {
		cfg.Faults = faultFunc(func(m Message) Fault {
			mu.Lock()
			defer mu.Unlock()
			drop := losing && m.Kind == "append"
			losing = losing && !drop
			return Fault{Drop: drop}
		})
	})
	leader, follower := c.nodes[0], c.nodes[1].end
	for i := uint64(2); i <= 10; i++ {
		if err := leader.log.StoreLog(&raft.Log{Index: i, Term: 1, Type: raft.LogCommand}); err != nil {
			t.Fatal(err)
		}
	}
	conf := c.servers()
	if err := leader.log.StoreLog(&raft.Log{
		Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf),
	}); err != nil {
		t.Fatal(err)
	}
	_ = leader.log.SetUint64([]byte("CurrentTerm"), 1)
	leader.commitMessage = func(term uint64) (*raft.AppendEntriesRequest, error) {
		return &raft.AppendEntriesRequest{
			RPCHeader: leader.header(), Term: term, PrevLogEntry: 10, PrevLogTerm: 1, LeaderCommitIndex: 10,
		}, nil
	}
	first := make(chan uint64, 100)
	follower.bindOnly()
	follower.serve(func(rpc raft.RPC) {
		a, ok := rpc.Command.(*raft.AppendEntriesRequest)
		if !ok {
			answer(&rpc, 0)
			return
		}
		if len(a.Entries) > 0 {
			select {
			case first <- a.Entries[0].Index:
			default:
			}
		}
		rpc.Respond(&raft.AppendEntriesResponse{
			Term: a.Term, LastLog: 12, Success: a.PrevLogEntry == 0, NoRetryBackoff: true,
		}, nil)
	})
	leader.slowLog = slowNoops{leader.log}
	leader.start(nil)
	if i := <-first; i != 11 {
		t.Errorf("the first entry that the follower gets is %d", i)
	}
	follower.stop()
}
