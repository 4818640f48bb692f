package telemetry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

func newEventLog(size int) *EventLog { return NewEventLog("n1", "boot-a", size, hclog.NewNullLogger()) }

func messages(items []cluster.Event) string {
	var b strings.Builder
	for _, e := range items {
		b.WriteString(e.Message)
	}
	return b.String()
}

func appendAll(j *EventLog, letters string) {
	for i, r := range letters {
		j.Append(cluster.Event{Type: []string{"election", "member"}[i%2], Message: string(r)})
	}
}

func TestEventLog_Reads(t *testing.T) {
	t.Parallel()
	j := newEventLog(4)
	if items, prev, next := j.Latest("", 10); len(items) != 0 || next == "" || prev != next {
		t.Errorf("empty: %v %q", items, next)
	}
	_, _, start := j.Latest("", 10)
	appendAll(j, "abc")
	for _, tc := range []struct {
		typ   string
		limit int
		want  string
	}{{"", 10, "abc"}, {"", 2, "bc"}, {"member", 10, "b"}, {"election", 1, "c"}, {"other", 10, ""}} {
		items, prev, _ := j.Latest(tc.typ, tc.limit)
		if messages(items) != tc.want {
			t.Errorf("latest %q, %d: %q, want %q", tc.typ, tc.limit, messages(items), tc.want)
		}
		if again, _, err := j.Since(prev, tc.typ, 10); err != nil || messages(again) != tc.want {
			t.Errorf("after what comes before: %q %v", messages(again), err)
		}
	}
	items, next, err := j.Since(start, "", 2)
	if err != nil || messages(items) != "ab" || next != items[1].Seq {
		t.Errorf("since the start: %q %v", messages(items), err)
	}
	items, next, err = j.Since(next, "", 10)
	if err != nil || messages(items) != "c" {
		t.Errorf("the rest: %q %v", messages(items), err)
	}
	if items, again, err := j.Since(next, "", 10); err != nil || len(items) != 0 || again != next {
		t.Errorf("at the end: %q %q %v", messages(items), again, err)
	}
	e := items[0]
	if e.Node != "n1" || e.At.IsZero() || e.At.Location() != time.UTC {
		t.Errorf("event %+v", e)
	}
	// The ring keeps four events: "a" is dropped.
	appendAll(j, "de")
	if items, _, _ := j.Latest("", 10); messages(items) != "bcde" {
		t.Errorf("after five: %q", messages(items))
	}
	if _, _, err := j.Since(start, "", 10); !cluster.IsCode(err, cluster.CodeHistoryCompacted) {
		t.Errorf("since the start: %v", err)
	}
}

func TestEventLog_RejectsOtherSequences(t *testing.T) {
	t.Parallel()
	j := newEventLog(4)
	appendAll(j, "ab")
	for seq, code := range map[string]cluster.Code{
		"boot-b-1": cluster.CodeHistoryCompacted, "boot-a-3": cluster.CodeHistoryCompacted,
		"boot-a-zzzz": cluster.CodeHistoryCompacted,
		"garbage":     cluster.CodeBadRequest, "boot-a-!": cluster.CodeBadRequest, "-": cluster.CodeBadRequest,
		"boot-a-":                     cluster.CodeBadRequest,
		"boot-a-99999999999999999999": cluster.CodeBadRequest,
	} {
		if _, err := j.Cursor(seq, ""); !cluster.IsCode(err, code) {
			t.Errorf("%q: %v, want %d", seq, err, code)
		}
	}
}

func TestCursor_Waits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := newEventLog(16)
		appendAll(j, "a")
		c, err := j.Cursor("", "member") // from now on
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			items, err := c.Next(t.Context(), 10)
			if err != nil || messages(items) != "y" {
				t.Errorf("%q %v", messages(items), err)
			}
		})
		synctest.Wait()
		appendAll(j, "x") // an election: not selected
		synctest.Wait()
		j.Append(cluster.Event{Type: "member", Message: "y"})
		wg.Wait()

		stop := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(stop) })
		if _, err := c.Next(ctx, 1); !errors.Is(err, stop) {
			t.Errorf("ended with %v", err)
		}
		// It continues where it was.
		j.Append(cluster.Event{Type: "member", Message: "z"})
		if items, err := c.Next(t.Context(), 1); err != nil || messages(items) != "z" {
			t.Errorf("%q %v", messages(items), err)
		}
	})
}

func TestCursor_SlowReaderGetsError(t *testing.T) {
	t.Parallel()
	j := newEventLog(4)
	c, err := j.Cursor("", "")
	if err != nil {
		t.Fatal(err)
	}
	appendAll(j, "abcd")
	if items, err := c.Next(t.Context(), 1); err != nil || messages(items) != "a" {
		t.Fatalf("%q %v", messages(items), err)
	}
	appendAll(j, "efgh")
	if _, err := c.Next(t.Context(), 1); !cluster.IsCode(err, cluster.CodeHistoryCompacted) {
		t.Errorf("%v", err)
	}
}

func TestManyWritersAndReaders(t *testing.T) {
	t.Parallel()
	const writers, each = 4, 200
	j := newEventLog(writers * each)
	var wg sync.WaitGroup
	for range 4 {
		c, err := j.Cursor("", "")
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			last := ""
			for n := 0; n < writers*each; {
				items, err := c.Next(t.Context(), 7)
				if err != nil {
					t.Error(err)
					return
				}
				for _, e := range items {
					if e.Seq == last {
						t.Errorf("%s twice", e.Seq)
					}
					last = e.Seq
				}
				n += len(items)
			}
		})
	}
	for range writers {
		wg.Go(func() {
			for i := range each {
				j.Append(cluster.Event{Type: "node", Message: fmt.Sprint(i)})
			}
		})
	}
	wg.Wait()
}

func TestEventLog_LogsEachEventOnce(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	j := NewEventLog("n1", "boot", 4, hclog.New(&hclog.LoggerOptions{Output: &log}))
	j.Append(cluster.Event{
		Type: "election", Term: 7, Message: "leader elected", Fields: map[string]any{"leader": "n2", "duration_ms": 12},
	})
	j.Warn(cluster.Event{Type: "disk", Message: "disk stalled"})
	(*EventLog)(nil).Append(cluster.Event{})
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("log:\n%s", log.String())
	}
	for i, wants := range [][]string{
		{"[INFO]", "leader elected", "event=election", "term=7", "duration_ms=12 leader=n2"},
		{"[WARN]", "disk stalled"},
	} {
		for _, want := range wants {
			if !strings.Contains(lines[i], want) {
				t.Errorf("line %q has no %s", lines[i], want)
			}
		}
	}
}

// Names in messages come from clients. The log stays one line for each event.
func TestEventLog_LogsOneLine(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	j := NewEventLog("n1", "boot-a", 4, hclog.New(&hclog.LoggerOptions{Output: &log}))
	j.Append(cluster.Event{Type: "role", Message: "a\n2026-11-27T08:00:00.000Z [ERROR] no quorum holds role r"})
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), `a\n2026`) {
		t.Errorf("%q", log.String())
	}
}
