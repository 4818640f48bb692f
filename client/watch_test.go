package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// streamer serves /v1/watch from a list of revisions: those after since, and then silence.
type streamer struct {
	revisions []uint64
	last      func(w http.ResponseWriter, r *http.Request) // called after them; nil: silence
	since     []uint64                                     // of each request
}

func (s *streamer) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == apiv1.PathKV {
		reply(w, apiv1.List{Revision: 10})
		return
	}
	since, err := strconv.ParseUint(r.URL.Query().Get("since"), 10, 64)
	if err != nil {
		problem(w, cluster.Errorf(cluster.CodeBadRequest, "since: %v", err))
		return
	}
	s.since = append(s.since, since)
	w.Header().Set("Content-Type", apiv1.TypeEventStream)
	w.WriteHeader(http.StatusOK)
	fmt.Fprint(w, ": hello\n\n")
	for _, rev := range s.revisions {
		if rev > since {
			fmt.Fprintf(w, "id: %d\nevent: put\ndata: {\"key\":\"k\",\"value\":\"eA==\",\"revision\":%d}\n\n", rev, rev)
		}
	}
	w.(http.Flusher).Flush()
	if s.last != nil {
		s.last(w, r)
		return
	}
	<-r.Context().Done()
}

func collect(ctx context.Context, c *Client, since uint64, n int) (got []uint64, err error) {
	for ch, err := range c.Watch(ctx, "", WatchOptions{Since: since, FromNow: since == 0}) {
		if err != nil {
			return got, err
		}
		if got = append(got, ch.Revision); len(got) == n {
			break
		}
	}
	return got, nil
}

func TestWatch_ResumesAtAnotherNode(t *testing.T) {
	t.Parallel()
	breaks := map[string]func(fc *fakeCluster, s *streamer){
		"connection broken": func(_ *fakeCluster, s *streamer) {
			s.last = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		},
		"half an event": func(_ *fakeCluster, s *streamer) {
			s.last = func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "id: 13\nevent: put\ndata: {\"key\":\"k\",\"revi")
			}
		},
		"ended": func(_ *fakeCluster, s *streamer) { s.last = func(http.ResponseWriter, *http.Request) {} },
		"moving": func(_ *fakeCluster, s *streamer) {
			s.last = func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, "event: moving\ndata: {}\n\n")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
		},
		"hung":            func(fc *fakeCluster, _ *streamer) { time.AfterFunc(time.Second, func() { fc.hang("n1") }) },
		"lost its leader": func(fc *fakeCluster, _ *streamer) { fc.setCutOff("n1", true) },
	}
	for name, breakIt := range breaks {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, fc *fakeCluster) {
				c := fc.client("n1", "down")
				defer c.Close()
				first := &streamer{revisions: []uint64{11, 12}}
				second := &streamer{revisions: []uint64{11, 12, 13, 14}} // also serves earlier changes
				fc.nodes["n1"].handle, fc.nodes["n2"].handle = first.serve, second.serve
				breakIt(fc, first)
				c.refreshedAt.set(time.Now())
				go func() { // the client learns of the second node only later, so that it asks the first one first
					time.Sleep(100 * time.Millisecond)
					c.nodes.add("n2:1")
				}()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				got, err := collect(ctx, c, 0, 4)
				if want := []uint64{11, 12, 13, 14}; !slices.Equal(got, want) || err != nil {
					t.Errorf("got %v, %v, want %v: each once, in order", got, err, want)
				}
				if len(second.since) == 0 || second.since[0] != 12 || first.since[0] != 10 {
					t.Errorf("resumed after %v, %v", first.since, second.since)
				}
			}, "n1", "n2")
		})
	}
}

// A node tells a quiet watch how far it has come. The next node needs no history up to there.
func TestWatch_ContinuesAfterProgress(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		defer c.Close()
		s := &streamer{}
		s.last = func(w http.ResponseWriter, _ *http.Request) {
			if len(s.since) == 1 {
				fmt.Fprint(w, "id: 20\n\n:\n\n")
				return
			}
			fmt.Fprint(w, "id: 21\nevent: put\ndata: {\"key\":\"k\",\"value\":\"eA==\",\"revision\":21}\n\n")
		}
		fc.nodes["n1"].handle = s.serve
		if got, err := collect(t.Context(), c, 10, 1); err != nil || !slices.Equal(got, []uint64{21}) ||
			!slices.Equal(s.since, []uint64{10, 20}) {
			t.Errorf("%v, %v; asked for what follows %v", got, err, s.since)
		}
	}, "n1")
}

// The changes of a transaction share a revision. A watch that breaks between them yields each of them once.
func TestWatch_ResumesInsideATransaction(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		defer c.Close()
		s := &streamer{}
		cut := 1
		s.last = func(w http.ResponseWriter, _ *http.Request) { // it breaks after one event, then after two, …
			for i, id := range []string{"", "", "id: 11\n", "id: 12\n"} {
				if i < cut {
					fmt.Fprintf(w, "%sevent: put\ndata: {\"key\":\"k%d\",\"value\":\"eA==\",\"revision\":%d}\n\n", id, i, 11+i/3)
				}
			}
			cut++
		}
		fc.nodes["n1"].handle = s.serve
		var got []string
		for ch, err := range c.Watch(t.Context(), "", WatchOptions{Since: 10}) {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, fmt.Sprint(ch.Key, ch.More)); len(got) == 4 {
				break
			}
		}
		if want := []string{"k0true", "k1true", "k2false", "k3false"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if want := []uint64{10, 10, 10, 11}; !slices.Equal(s.since, want) {
			t.Errorf("resumed after %v, want %v", s.since, want)
		}
	}, "n1")
}

// With a revision, "from now" also works before the first change.
func TestWatch_FromNowSurvivesEarlyBreak(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		defer c.Close()
		s := &streamer{}
		// written without a watcher
		s.last = func(w http.ResponseWriter, _ *http.Request) { s.revisions = []uint64{11} }
		fc.nodes["n1"].handle = s.serve
		if got, err := collect(t.Context(), c, 0, 1); err != nil || !slices.Equal(got, []uint64{11}) {
			t.Errorf("got %v, %v, want 11", got, err)
		}
	}, "n1")
}

func TestWatch_DropsRepeatedChanges(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		defer c.Close()
		fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
			for _, rev := range []int{6, 6, 5, 7} {
				fmt.Fprintf(w, "id: %d\nevent: delete\ndata: {\"key\":\"k\",\"revision\":%d}\n\n", rev, rev)
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
		if got, err := collect(t.Context(), c, 5, 2); err != nil || !slices.Equal(got, []uint64{6, 7}) {
			t.Errorf("got %v, %v, want 6 and 7", got, err)
		}
	}, "n1")
}

func TestWatch_Compacted(t *testing.T) {
	t.Parallel()
	compacted := cluster.Errorf(cluster.CodeHistoryCompacted, "kept from 40")
	for name, handle := range map[string]http.HandlerFunc{
		"answer": func(w http.ResponseWriter, _ *http.Request) { problem(w, compacted) },
		"event": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w,
				"event: error\ndata: {\"code\":4015,\"status\":410,\"detail\":\"kept from 40\",\"retryable\":false}\n\n")
		},
	} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			c := fc.client("n1")
			defer c.Close()
			fc.nodes["n1"].handle = handle
			if _, err := collect(t.Context(), c, 5, 1); !errors.Is(err, ErrCompacted) ||
				!strings.Contains(err.Error(), "kept from 40") {
				t.Errorf("%s: %v, want %v", name, err, ErrCompacted)
			}
		}, "n1")
	}
}

// A node that hangs in the middle of a refusal holds up a watch no longer than one that does not answer.
func TestWatch_NodeHangsInARefusal(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		defer c.Close()
		s, hung := &streamer{revisions: []uint64{6}}, false
		fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
			if hung {
				s.serve(w, r)
				return
			}
			hung = true
			w.WriteHeader(http.StatusServiceUnavailable)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		if got, err := collect(ctx, c, 5, 1); err != nil || len(got) != 1 {
			t.Errorf("%d, %v", got, err)
		}
		within(t, start, 0, 5*time.Second)
	}, "n1")
}

func TestWatch_EndsWithContext(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		fc.nodes["n1"].handle = (&streamer{}).serve
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := collect(ctx, c, 5, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
		}
		within(t, start, 20*time.Second, 20*time.Second+time.Millisecond)
		time.AfterFunc(time.Second, c.Close)
		if _, err := collect(t.Context(), c, 5, 1); !errors.Is(err, ErrClosed) {
			t.Errorf("error %v, want %v", err, ErrClosed)
		}
	}, "n1")
}

func TestWatch_NoNodeReachable(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("down")
		defer c.Close()
		start := time.Now()
		if _, err := collect(t.Context(), c, 5, 1); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("error %v, want the refused connection", err)
		}
		within(t, start, DefaultTimeout, DefaultTimeout+time.Second)
	}, "n1")
}

func TestFollowEvents(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		defer c.Close()
		var requests []string
		pages := 0
		fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept") != apiv1.TypeEventStream {
				pages++
				reply(w, apiv1.Events{Next: fmt.Sprintf("p%d", pages)})
				return
			}
			requests = append(requests, r.Header.Get("Last-Event-ID")+" "+r.URL.RawQuery)
			n := len(requests)
			if n == 3 { // the process that had s2 has ended
				problem(w, cluster.Errorf(cluster.CodeHistoryCompacted, "of another process"))
				return
			}
			fmt.Fprintf(w,
				"id: s%d\nevent: election\ndata: {\"seq\":\"s%d\",\"type\":\"election\",\"message\":\"m\"}\n\n", n, n)
		}
		var got []string
		for ev, err := range c.FollowEvents(t.Context(), "", "election") {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, ev.Seq); len(got) == 3 {
				break
			}
		}
		want := []string{"p1 type=election", "s1 type=election", "s2 type=election", "p2 type=election"}
		if !slices.Equal(got, []string{"s1", "s2", "s4"}) || !slices.Equal(requests, want) {
			t.Errorf("events %q, requests %q", got, requests)
		}
		requests = make([]string, 2)
		for _, err := range c.FollowEvents(t.Context(), "old", "") {
			if !errors.Is(err, ErrCompacted) {
				t.Errorf("error %v, want %v: the requested events are lost", err, ErrCompacted)
			}
		}
	}, "n1")
}

// A stream with large events keeps a buffer of the usual size. Not parallel: it reads the size of the heap.
func TestEventReader_KeepsNoLargeBuffer(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	large := "data: " + strings.Repeat("x", maxEventBytes/2) + "\n\n"
	readers := make([]*eventReader, 16)
	before := heap()
	for i := range readers {
		readers[i] = newEventReader(strings.NewReader(large))
		if e, err := readers[i].next(); err != nil || len(e.data) != maxEventBytes/2 {
			t.Fatalf("%d bytes, %v", len(e.data), err)
		}
	}
	if grown := int64(heap()) - int64(before); grown > maxEventBytes {
		t.Errorf("%d streams keep %d bytes", len(readers), grown)
	}
	runtime.KeepAlive(readers)
}

func TestEventReader(t *testing.T) {
	t.Parallel()
	in := ": comment\r\n\r\nid: 1\r\nevent: put\r\ndata: a\r\ndata:b\r\n\r\n" +
		"event: empty\n\nid:2\ndata: " + strings.Repeat("x", 100_000) +
		"\n\ndata\n\nid: 3\n\n:\n\ndata: b\n\nid: 4\ndata: cut off"
	r := newEventReader(strings.NewReader(in))
	want := []event{
		{id: "1", name: "put", data: []byte("a\nb")},
		{id: "2", data: []byte(strings.Repeat("x", 100_000))},
		{id: "2"},
		{id: "3", onlyID: true},
		{id: "3", data: []byte("b")},
	}
	for i, w := range want {
		got, err := r.next()
		if err != nil || got.id != w.id || got.name != w.name || string(got.data) != string(w.data) ||
			got.onlyID != w.onlyID {
			t.Errorf("event %d: %.80v, %v", i, got, err)
		}
	}
	if e, err := r.next(); err == nil {
		t.Errorf("event %v out of a stream that was cut off", e)
	}
	if _, err := newEventReader(
		strings.NewReader(strings.Repeat("data: 1234567890\n", maxEventBytes/16+1)),
	).next(); !errors.Is(err, errEventTooLarge) {
		t.Errorf("many lines: error %v, want %v", err, errEventTooLarge)
	}
	if _, err := newEventReader(strings.NewReader("data: " +
		strings.Repeat("x", 2*maxEventBytes))).next(); !errors.Is(err,
		errEventTooLarge) {
		t.Errorf("error %v, want %v", err, errEventTooLarge)
	}
}

// Events since now go on at another node when the first one hangs before any event: from when they were asked for, and
// without old events of a node that did not answer then.
func TestFollowEvents_NodeHangsBeforeTheFirstEvent(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2")
		defer c.Close()
		event := func(w http.ResponseWriter, node string, seq int, at time.Time) {
			data, _ := json.Marshal(apiv1.Event{Seq: fmt.Sprint(seq), Node: node, Type: "failover", At: at})
			fmt.Fprintf(w, "id: %d\nevent: failover\ndata: %s\n\n", seq, data)
		}
		var first atomic.Pointer[string] // the node that serves the first stream
		for name, n := range fc.nodes {
			n.handle = func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Accept") != apiv1.TypeEventStream {
					reply(w, apiv1.Events{Next: "7", Missing: []string{"n3"}})
					return
				}
				first.CompareAndSwap(nil, &name)
				w.Header().Set("Content-Type", apiv1.TypeEventStream)
				if *first.Load() == name {
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
					return
				}
				if got := r.Header.Get("Last-Event-ID"); got != "7" {
					t.Errorf("it goes on after %q", got)
				}
				event(w, "n3", 8, time.Now().Add(-time.Hour))
				event(w, "n3", 9, time.Now())
			}
		}
		go func() {
			time.Sleep(5 * time.Second)
			fc.hang(*first.Load())
		}()
		for ev, err := range c.FollowEvents(t.Context(), "", "") {
			if err != nil || ev.Seq != "9" {
				t.Errorf("%+v, %v", ev, err)
			}
			break
		}
	}, "n1", "n2")
}
