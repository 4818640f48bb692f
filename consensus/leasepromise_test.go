package consensus

import (
	"io/fs"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// memoryFiles are small files in memory.
type memoryFiles struct{ sync.Map }

func (m *memoryFiles) Load(name string) ([]byte, error) {
	if data, ok := m.Map.Load(name); ok {
		return data.([]byte), nil
	}
	return nil, fs.ErrNotExist
}

func (m *memoryFiles) Save(name string, data []byte) error {
	m.Store(name, data)
	return nil
}

// TestLeasePromise_ShorterAfterARestart: a node has promised a leader to vote for no other one for a second. Its next
// processes promise less. None of them may break the promise, however often it is restarted.
func TestLeasePromise_ShorterAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := &memoryFiles{}
		start := func(cfg Config) *Node {
			t.Helper()
			ident, err := openIdentity(files, "n1", zeros{})
			if err != nil {
				t.Fatal(err)
			}
			n := &Node{cfg: cfg, peers: newPeerRegistry(), ident: ident, log: hclog.NewNullLogger()}
			n.peersProbed.Store(true)
			if n.promise, err = openLeasePromise(ident, cfg.LeasePromise()); err != nil {
				t.Fatal(err)
			}
			return n
		}
		wants := func(when string, n *Node, binds bool, wait time.Duration) {
			t.Helper()
			if n.MayVote() == binds || n.LeaseWait() != wait {
				t.Errorf("%s: it may vote: %v; it waits for %v", when, n.MayVote(), n.LeaseWait())
			}
		}
		off := Config{TimeoutMin: 150 * time.Millisecond}
		wants("no leases", start(off), false, 0)
		start(Config{Lease: true, TimeoutMin: time.Second})
		time.Sleep(time.Minute)
		wants("off", start(off), true, time.Second)
		wants("off, again", start(off), true, time.Second)
		n := start(off)
		done := make(chan struct{})
		go func() { defer close(done); n.forgetEarlierPromise(t.Context()) }()
		time.Sleep(2*time.Second - 1)
		wants("just before the end", n, true, time.Second)
		wants("restarted just before the end", start(off), true, time.Second)
		time.Sleep(time.Nanosecond)
		<-done
		wants("at the end", n, false, 0)
		wants("restarted after the end", start(off), false, 0)
	})
}

// zeros is entropy for tests.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
