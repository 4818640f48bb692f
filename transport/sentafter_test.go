package transport

import (
	"testing"
	"time"
)

// An append counts from the response before it on its connection: it may have been in a socket while this node was
// stopped.
func TestAppendIsAsOldAsTheResponseBefore(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n2.bind()
	var began, answered []time.Time
	for range 3 {
		began = append(began, time.Now())
		if _, err := n1.append(n2, nil); err != nil {
			t.Fatal(err)
		}
		answered = append(answered, time.Now())
	}
	n2.mu.Lock()
	defer n2.mu.Unlock()
	if len(n2.sentAfter) != 3 || !n2.sentAfter[0].IsZero() {
		t.Fatalf("the first one on a connection counts from %v", n2.sentAfter)
	}
	for i, at := range n2.sentAfter[1:] {
		if at.Before(began[i]) || at.After(answered[i]) {
			t.Errorf("append %d of %v counts from %v, and the one before was sent at %v", i+1, began[i+1], at, began[i])
		}
	}
}

// Which connection a message came on is unknown: the one that was last answered longest ago counts.
func TestSentAfterOfManyConnections(t *testing.T) {
	t.Parallel()
	start := time.Now()
	open := func(busy bool, answered time.Duration) *inConn {
		c := &inConn{opened: start}
		c.answered.Store(int64(answered))
		if busy {
			c.state.Store(connBusy)
		}
		return c
	}
	for name, tt := range map[string]struct {
		conns []*inConn
		want  time.Time
	}{
		"none":           {nil, time.Time{}},
		"all idle":       {[]*inConn{open(false, 5)}, time.Time{}},
		"one is busy":    {[]*inConn{open(false, 3), open(true, 7), open(false, 9)}, start.Add(7)},
		"two are busy":   {[]*inConn{open(true, 7), open(true, 3)}, start.Add(3)},
		"one is new":     {[]*inConn{open(true, 7), open(true, 0)}, time.Time{}},
		"an idle is new": {[]*inConn{open(true, 7), open(false, 0)}, start.Add(7)},
	} {
		if got := sentAfter(tt.conns); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
