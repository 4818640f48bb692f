package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/transport"
)

// traceLines is how much a trace remembers.
const traceLines = 400

// ring keeps the newest of what is put into it, twice as many at most.
type ring[T any] []T

func (r *ring[T]) add(size int, item T) {
	if len(*r) >= 2*size {
		*r = slices.Delete(*r, 0, size)
	}
	*r = append(*r, item)
}

// last returns the newest n, oldest first.
func (r ring[T]) last(n int) []T { return slices.Clone(r[max(0, len(r)-n):]) }

// trace is the newest log lines of a node, or of the run itself, in memory: writing a file would change what happens.
// It may be written to from any goroutine.
type trace struct {
	mu    sync.Mutex
	lines ring[string]
}

// Write takes log lines.
func (t *trace) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range strings.SplitSeq(strings.TrimRight(string(b), "\n"), "\n") {
		t.lines.add(traceLines, line)
	}
	return len(b), nil
}

// at writes one line with the virtual time since start.
func (t *trace) at(start time.Time, format string, args ...any) {
	_, _ = fmt.Fprintf(t, "%12v  %s\n", time.Since(start), fmt.Sprintf(format, args...))
}

// sent is a message as its sender gave it to the network.
type sent struct {
	at       time.Duration
	kind     string
	from, to cluster.NodeID
	term     uint64
	fault    transport.Fault
}

func (s sent) String() string {
	line := fmt.Sprintf("%12v  %s→%s %s, term %d", s.at, s.from, s.to, s.kind, s.term)
	switch {
	case s.fault.Drop:
		line += ", lost"
	case s.fault.DropReply:
		line += ", its answer lost"
	}
	if s.fault.Twice {
		line += ", twice"
	}
	if s.fault.Late != nil {
		line += ", its answer late"
	}
	if s.fault.Delay > 0 {
		line += fmt.Sprintf(", %v late", s.fault.Delay)
	}
	return line
}

const keptMessages = 200 // of each of the two kinds

// messages are the newest messages. Those of elections are kept separately, because
// they are few among many others. The owner's lock guards them.
type messages struct{ elections, others ring[sent] }

func (m *messages) add(s sent) {
	switch s.kind {
	case "vote", "prevote", "timeout_now":
		m.elections.add(keptMessages, s)
	default:
		m.others.add(keptMessages, s)
	}
}
