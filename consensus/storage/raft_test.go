package storage

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// lines is a state machine: the list of the applied commands.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Apply(e *raft.Log) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(e.Data))
	return nil
}

func (l *lines) Snapshot() (raft.FSMSnapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return lineSnapshot(strings.Join(l.all, "\n")), nil
}

func (l *lines) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = strings.Split(string(b), "\n")
	return nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

type lineSnapshot string

func (s lineSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := io.WriteString(sink, string(s)); err != nil {
		return err
	}
	return sink.Close()
}

func (s lineSnapshot) Release() {}

// startRaft runs a single Raft node on a data directory until stop.
func startRaft(t *testing.T, dir string) (node *raft.Raft, fsm *lines, stop func()) {
	t.Helper()
	g := guardDir(t, dir)
	c := raft.DefaultConfig()
	c.LocalID, c.Logger = "n1", hclog.NewNullLogger()
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = 50*time.Millisecond, 50*time.Millisecond,
		50*time.Millisecond
	c.TrailingLogs = 10
	addr, trans := raft.NewInmemTransport("n1:1")
	fsm = &lines{}
	has, err := raft.HasExistingState(g.Log(), g.Stable(), g.Snapshots())
	if err == nil && !has {
		err = raft.BootstrapCluster(c, g.Log(), g.Stable(), g.Snapshots(), trans,
			raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: addr}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if node, err = raft.NewRaft(c, fsm, g.Log(), g.Stable(), g.Snapshots(), trans); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return node.State() == raft.Leader })
	return node, fsm, func() {
		if err := node.Shutdown().Error(); err != nil {
			t.Error(err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRaftOnDir runs the library on a data directory over several starts,
// with snapshots and compaction.
func TestRaftOnDir(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for start := range 4 {
		node, fsm, stop := startRaft(t, dir)
		if err := node.Barrier(time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		if got := fsm.String(); got != strings.Join(want, "\n") {
			t.Fatalf("start %d: %q, want %q", start, got, want)
		}
		for i := range 40 {
			line := fmt.Sprintf("%d/%d", start, i)
			if err := node.Apply([]byte(line), time.Second).Error(); err != nil {
				t.Fatal(err)
			}
			want = append(want, line)
			if i == 25 {
				if err := node.Snapshot().Error(); err != nil {
					t.Fatal(err)
				}
			}
		}
		stop()
	}
}
