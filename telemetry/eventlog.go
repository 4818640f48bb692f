package telemetry

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

// DefaultEventLogSize is the number of events that a node keeps.
const DefaultEventLogSize = 4096

// EventLog has the events of this node since its process started, in a ring that readers share. Slow readers do not
// block it; a reader gets an error when it has fallen behind. Its methods are safe for concurrent use. Append and
// Warn of a nil EventLog do nothing.
type EventLog struct {
	node   cluster.NodeID
	boot   string
	logger hclog.Logger

	mu      sync.Mutex
	ring    []cluster.Event // event n is at n % len
	last    uint64          // number of the newest event; the first is 1
	changed chan struct{}   // closed at the next event; nil if no reader waits
}

// NewEventLog returns an event log of size events. It rejects sequence numbers of other processes than boot.
func NewEventLog(node cluster.NodeID, boot string, size int, logger hclog.Logger) *EventLog {
	return &EventLog{node: node, boot: boot, logger: logger, ring: make([]cluster.Event, max(size, 1))}
}

// Append records an event, sets Seq, Node and a zero At, and logs it at info. It keeps the event's Fields.
func (l *EventLog) Append(e cluster.Event) { l.append(hclog.Info, e) }

// Warn is Append for an event that needs attention.
func (l *EventLog) Warn(e cluster.Event) { l.append(hclog.Warn, e) }

func (l *EventLog) append(level hclog.Level, e cluster.Event) {
	if l == nil {
		return
	}
	e.Node = l.node
	if e.At.IsZero() {
		e.At = time.Now()
	}
	e.At = e.At.UTC()
	l.mu.Lock()
	l.last++
	e.Seq = l.seq(l.last)
	l.ring[l.last%uint64(len(l.ring))] = e
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	l.mu.Unlock()
	l.logger.Log(level, cluster.Printable(e.Message), logFields(e)...)
}

// logFields returns the event's fields for hclog, in a fixed order.
func logFields(e cluster.Event) []any {
	args := []any{"event", e.Type, "seq", e.Seq}
	if e.Term != 0 {
		args = append(args, "term", e.Term)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
		args = append(args, name, e.Fields[name])
	}
	return args
}

func (l *EventLog) seq(n uint64) string {
	return l.boot + "-" + strconv.FormatUint(n, 36)
}

// position returns the number of the event with this seq.
func (l *EventLog) position(seq string) (uint64, error) {
	i := strings.LastIndexByte(seq, '-')
	n, err := strconv.ParseUint(seq[i+1:], 36, 64)
	if i < 0 || err != nil {
		return 0, cluster.Errorf(cluster.CodeBadRequest, "since: %q is not the seq of an event", seq)
	}
	if seq[:i] != l.boot {
		return 0, cluster.Errorf(cluster.CodeHistoryCompacted,
			"since: %q is of an earlier process, or of another node; this is %s", seq, l.node)
	}
	return n, nil
}

// Latest returns the newest limit events of a type ("" for all), oldest first, and the seqs before and after them.
func (l *EventLog) Latest(typ string, limit int) (items []cluster.Event, prev, next string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.last
	for n := l.last; n >= l.oldest() && len(items) < limit; n-- {
		if e := l.at(n); typ == "" || e.Type == typ {
			items = append(items, e)
			before = n - 1
		}
	}
	slices.Reverse(items)
	return items, l.seq(before), l.seq(l.last)
}

// Since returns up to limit events of a type ("" for all) after seq, and the seq to continue from. CodeBadRequest: an
// invalid seq; CodeHistoryCompacted: one that is no longer kept or belongs to another process.
func (l *EventLog) Since(seq, typ string, limit int) (items []cluster.Event, next string, err error) {
	c, err := l.Cursor(seq, typ)
	if err != nil {
		return nil, "", err
	}
	items, _, err = c.take(limit)
	return items, l.seq(c.read), err
}

// oldest returns the number of the oldest event kept; last+1 if there is none. The caller holds the lock.
func (l *EventLog) oldest() uint64 {
	if size := uint64(len(l.ring)); l.last > size {
		return l.last - size + 1
	}
	return 1
}

// at returns event n, which must be kept. The caller holds the lock.
func (l *EventLog) at(n uint64) cluster.Event { return l.ring[n%uint64(len(l.ring))] }

// Cursor starts to read after the event with that seq; "" means now. Its errors are those of Since.
func (l *EventLog) Cursor(seq, typ string) (*EventCursor, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &EventCursor{eventLog: l, typ: typ, read: l.last}
	if seq == "" {
		return c, nil
	}
	n, err := l.position(seq)
	if err != nil {
		return nil, err
	}
	if n > l.last || n+1 < l.oldest() {
		return nil, cluster.Errorf(cluster.CodeHistoryCompacted, "since: %q is no longer kept", seq)
	}
	c.read = n
	return c, nil
}

// EventCursor reads an event log in order. It belongs to one goroutine.
type EventCursor struct {
	eventLog *EventLog
	typ      string
	read     uint64 // number of the last event read
}

// Next returns 1 to limit events, the context's cause, or CodeHistoryCompacted if the cursor has fallen behind.
func (c *EventCursor) Next(ctx context.Context, limit int) ([]cluster.Event, error) {
	for {
		items, changed, err := c.take(limit)
		if err != nil || len(items) > 0 {
			return items, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take returns the available events. If there are none, it returns a channel that is closed at the next event.
func (c *EventCursor) take(limit int) (items []cluster.Event, changed <-chan struct{}, err error) {
	l := c.eventLog
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.read+1 < l.oldest() {
		return nil, nil, cluster.Errorf(cluster.CodeHistoryCompacted,
			"events after %q are no longer kept: the reader has fallen behind", l.seq(c.read))
	}
	for c.read < l.last && len(items) < limit {
		c.read++
		if e := l.at(c.read); c.typ == "" || e.Type == c.typ {
			items = append(items, e)
		}
	}
	if len(items) > 0 {
		return items, nil, nil
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return nil, l.changed, nil
}
