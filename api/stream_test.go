package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// message is one server-sent event.
type message struct{ id, event, data string }

// eventStream reads server-sent events as a client does.
type eventStream struct {
	t    *testing.T
	resp *http.Response
	r    *bufio.Reader
}

func (n *node) stream(path string, headers ...string) *eventStream {
	n.t.Helper()
	req, err := http.NewRequest("GET", "http://"+n.addr+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := n.http.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != apiv1.TypeEventStream {
		body, _ := io.ReadAll(resp.Body)
		n.t.Fatalf("%s: %s %s", path, resp.Status, body)
	}
	return &eventStream{t: n.t, resp: resp, r: bufio.NewReader(resp.Body)}
}

// next reads the next event; false at the end of the stream. Lines that are
// no event, such as retry, are skipped.
func (s *eventStream) next() (message, bool) {
	s.t.Helper()
	var m message
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			return m, false
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			m.id = value
		case "event":
			m.event = value
		case "data":
			m.data = value
		case "":
			if m.event != "" {
				return m, true
			}
		}
	}
}

func (s *eventStream) must(event, id string) message {
	s.t.Helper()
	m, ok := s.next()
	if !ok || m.event != event || id != "" && m.id != id {
		s.t.Fatalf("got %+v (%v), want %s %s", m, ok, event, id)
	}
	return m
}

func TestWatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", false)) // any node will do
		first := n.fake.put("a/1", "one").Revision
		now := n.stream("/v1/watch?prefix=a/")
		if got := now.resp.Header.Get("X-Northstar-Revision"); got != fmt.Sprint(first) {
			t.Errorf("starts after %s, want %d", got, first)
		}
		all := n.stream("/v1/watch?since=0")
		second := n.fake.put("a/2", "two").Revision
		n.fake.put("b", "other")
		third := n.fake.apply(state.Command{Kind: state.KindDelete, Now: 1, Delete: &state.Delete{Key: "a/1"}}).Revision

		all.must("put", fmt.Sprint(first))
		var ch apiv1.Change
		m := now.must("put", fmt.Sprint(second))
		if err := json.Unmarshal([]byte(m.data), &ch); err != nil || ch.Key != "a/2" || string(ch.Value) != "two" ||
			ch.Revision != second {
			t.Errorf("put: %s", m.data)
		}
		m = now.must("delete", fmt.Sprint(third))
		if want := fmt.Sprintf(`{"key":"a/1","value":"","revision":%d}`, third); m.data != want {
			t.Errorf("delete: %s, want %s", m.data, want)
		}
		// The last event ID counts, not what the address still says.
		resumed := n.stream("/v1/watch?prefix=a/&since=0", "Last-Event-ID", fmt.Sprint(second))
		resumed.must("delete", fmt.Sprint(third))
	})
}

// A watch from now on, at a node that has yet to apply what was acknowledged
// before it, does not begin with that.
// Only the last change of a transaction has an id, also if it comes in several batches: a client that continues after
// an id misses no part of it.
func TestWatchOfTransactions(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		all, some := n.stream("/v1/watch?since=0"), n.stream("/v1/watch?since=0&prefix=a")
		p := &state.Txn{}
		for i := range 2*watchBatchSize + 1 {
			key := fmt.Sprintf("%c%03d", "ab"[i%2], i)
			p.Success = append(p.Success, state.Op{Put: &state.TxnPut{Key: key, Value: []byte("v")}})
		}
		r := n.fake.apply(state.Command{Kind: state.KindTxn, Now: 1, Txn: p})
		n.fake.put("c", "later")
		id := fmt.Sprint(r.Revision)
		for i := range p.Success {
			want := ""
			if i == len(p.Success)-1 {
				want = id
			}
			if m := all.must("put", want); m.id != want {
				t.Fatalf("change %d has id %q, want %q", i, m.id, want)
			}
			if i%2 != 0 {
				continue
			}
			if m := some.must("put", want); m.id != want {
				t.Fatalf("change %d of a prefix has id %q, want %q", i, m.id, want)
			}
		}
		all.must("put", fmt.Sprint(r.Revision+1))
	})
}

func TestWatchFromNowOnAtALaggingNode(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for i := range 5 {
			leader.fake.put("k", fmt.Sprint(i))
		}
		for _, path := range []string{"/v1/watch", "/v1/roles/r/watch", "/v1/nodes/watch"} {
			s := follower.stream(path)
			if got, want := s.resp.Header.Get("X-Northstar-Revision"),
				fmt.Sprint(leader.fake.View().Revision()); got != want {
				t.Errorf("%s starts after %s, want %s", path, got, want)
			}
		}
		own := fmt.Sprint(follower.fake.View().Revision())
		follower.fake.addRecord(cluster.Member{
			ID: "n1", HTTPAddress: "127.0.0.1:1", RaftAddress: "h1:7700",
			Lifecycle: cluster.Active,
		})
		if got := follower.stream("/v1/watch").resp.Header.Get("X-Northstar-Revision"); got != own {
			t.Errorf("without the leader's word it starts after %s, want %s", got, own)
		}
	})
}

// slowView is a leader whose first view of the cluster takes long to make.
type slowView struct {
	*fakeCluster
	asked chan struct{} // closed when it has been asked for
	slow  atomic.Bool
}

func (s *slowView) Peers() []cluster.PeerStatus {
	if s.slow.CompareAndSwap(true, false) {
		close(s.asked)
		time.Sleep(100 * time.Millisecond)
	}
	return s.fakeCluster.Peers()
}

// A watch from now on does not begin with what the leader said to an earlier request: it may lack the newest writes.
func TestWatchFromNowOnDuringAnotherRequest(t *testing.T) {
	virtual(t, func(t *testing.T) {
		slow := &slowView{fakeCluster: newFakeCluster("n1", true), asked: make(chan struct{})}
		leader := startServer(t, slow.fakeCluster, func(d *Deps) { d.Reads = slow })
		f := newFakeCluster("n2", false)
		f.addRecord(cluster.Member{ID: "n1", HTTPAddress: leader.addr, Lifecycle: cluster.Active})
		f.lead("n1", 2)
		follower := startServer(t, f)
		slow.slow.Store(true)
		earlier := make(chan reply)
		go func() { earlier <- follower.do("GET", "/v1/cluster", "") }()
		<-slow.asked
		want := fmt.Sprint(slow.put("k", "v").Revision)
		if got := follower.stream("/v1/watch").resp.Header.Get("X-Northstar-Revision"); got != want {
			t.Errorf("it starts after %s, want %s", got, want)
		}
		if r := <-earlier; r.status != 200 {
			t.Errorf("the earlier request: %+v", r)
		}
	})
}

func TestWatchOfCompactedHistory(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.state = state.New(state.Options{HistoryRevisions: 3})
		n := startServer(t, f)
		var last uint64
		for i := range 10 {
			last = f.put("k", fmt.Sprint(i)).Revision
		}
		n.do("GET", "/v1/watch?since=1", "").is(t, 410, cluster.CodeHistoryCompacted)
		n.do("GET", "/v1/watch", "", "Last-Event-ID", "1").is(t, 410, cluster.CodeHistoryCompacted)
		s := n.stream(fmt.Sprintf("/v1/watch?since=%d", last-1))
		s.must("put", fmt.Sprint(last))
	})
}

// A watch of keys that do not change is told how far it has come: it continues elsewhere after its node has failed,
// also when other changes have filled the history meanwhile.
func TestQuietWatchContinues(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.state = state.New(state.Options{HistoryRevisions: 3})
		n := startServer(t, f)
		s := n.stream("/v1/watch?prefix=quiet/")
		synctest.Wait() // it waits for changes
		var last uint64
		for i := range 10 {
			last = f.put("busy", fmt.Sprint(i)).Revision
		}
		id, limit := "", time.Now().Add(time.Minute)
		for want := fmt.Sprint(last); id != want; {
			line, err := s.r.ReadString('\n')
			if err != nil || time.Now().After(limit) {
				t.Fatalf("told %q within %v, want %s: %v", id, time.Minute, want, err)
			}
			if value, ok := strings.CutPrefix(line, "id: "); ok {
				id = strings.TrimSuffix(value, "\n")
			}
		}
		again := n.stream("/v1/watch?prefix=quiet/", "Last-Event-ID", id)
		again.must("put", fmt.Sprint(f.put("quiet/a", "1").Revision))
	})
}

// TestSlowWatcher: a client that does not read holds no memory, is left behind
// by history, and is told so when it reads on.
func TestSlowWatcher(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.state = state.New(state.Options{HistoryRevisions: 50})
		n := startServer(t, f)
		s := n.stream("/v1/watch?since=0")
		big := strings.Repeat("x", 512<<10)
		for range 200 { // far more than all buffers on the way
			f.put("k", big)
		}
		seen := 0
		for {
			m, ok := s.next()
			if !ok {
				t.Fatalf("the stream broke after %d changes, without a word", seen)
			}
			if m.event == apiv1.EventError {
				var p apiv1.Problem
				if err := json.Unmarshal([]byte(m.data), &p); err != nil ||
					p.Code != int(cluster.CodeHistoryCompacted) || p.Status != 410 {
					t.Errorf("last event %s", m.data)
				}
				break
			}
			seen++
		}
		if seen >= 200 {
			t.Errorf("the slow watcher got all %d changes", seen)
		}
		if _, ok := s.next(); ok {
			t.Error("the stream goes on after its error")
		}
		eventually(t, func() bool { return n.streams.Load() == 0 })
	})
}

func TestStreamsEndWithDrain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		watch := n.stream("/v1/watch")
		events := n.stream("/v1/events", "Accept", apiv1.TypeEventStream)
		n.Drain()
		for _, s := range []*eventStream{watch, events} {
			s.must(apiv1.EventDraining, "")
			if _, ok := s.next(); ok {
				t.Error("the stream goes on")
			}
		}
	})
}

func TestStreamsEndWithTheClient(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		s := n.stream("/v1/watch")
		eventually(t, func() bool { return n.streams.Load() == 1 })
		s.resp.Body.Close()
		eventually(t, func() bool { return n.streams.Load() == 0 })
	})
}

func TestStreamsAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true), func(d *Deps) { d.Limits.Streams = 1 })
		n.stream("/v1/watch")
		n.do("GET", "/v1/watch", "").is(t, 503, cluster.CodeBusy)
		n.do("GET", "/v1/events", "", "Accept", apiv1.TypeEventStream).is(t, 503, cluster.CodeBusy)
		if r := n.do("GET", "/v1/events", ""); r.status != 200 {
			t.Errorf("events as JSON are no stream: %+v", r)
		}
	})
}

func TestEvents(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.fake.addRecord(cluster.Member{ID: "n2"})
		eventLog := n.deps.EventLog
		for i := range 5 {
			eventLog.Append(cluster.Event{
				Type: []string{"election", "member"}[i%2], Term: uint64(i),
				Message: fmt.Sprint("event ", i),
			})
		}
		get := func(query string) (e apiv1.Events) {
			t.Helper()
			r := n.do("GET", "/v1/events"+query, "")
			if err := json.Unmarshal([]byte(r.body), &e); err != nil || r.status != 200 {
				t.Fatalf("%s: %d %s", query, r.status, r.body)
			}
			return e
		}
		latest := get("?limit=2")
		if len(latest.Items) != 2 || latest.Items[1].Message != "event 4" || latest.Next != latest.Items[1].Seq {
			t.Errorf("latest: %+v", latest)
		}
		if fmt.Sprint(latest.Missing) != "[n2]" {
			t.Errorf("missing %v", latest.Missing)
		}
		if e := get("?type=member"); len(e.Items) != 2 || e.Items[0].Node != "n1" || e.Items[0].At.IsZero() {
			t.Errorf("members: %+v", e)
		}
		first := get("").Items[0].Seq
		rest := get("?since=" + first)
		if len(rest.Items) != 4 || rest.Items[0].Message != "event 1" {
			t.Errorf("since the first: %+v", rest)
		}
		if e := get("?since=" + rest.Next); len(e.Items) != 0 || e.Next != rest.Next || e.Items == nil {
			t.Errorf("at the end: %+v", e)
		}
		n.do("GET", "/v1/events?since=otherboot-1", "").is(t, 410, cluster.CodeHistoryCompacted)

		s := n.stream("/v1/events?since="+first, "Accept", apiv1.TypeEventStream)
		for _, it := range rest.Items {
			m := s.must(it.Type, it.Seq)
			if !strings.Contains(m.data, it.Message) {
				t.Errorf("data %s", m.data)
			}
		}
		eventLog.Append(cluster.Event{Type: "health", Message: "live"})
		s.must("health", "")
		again := n.stream("/v1/events", "Accept", apiv1.TypeEventStream, "Last-Event-ID", rest.Next)
		again.must("health", "")
		conflicts := n.stream("/v1/events?type=split-brain&since="+first, "Accept", apiv1.TypeEventStream)
		eventLog.Append(cluster.Event{Type: "splitbrain", Message: "two lead"})
		conflicts.must("splitbrain", "")
		if e := get("?type=split_brain"); len(e.Items) != 1 || e.Items[0].Message != "two lead" {
			t.Errorf("split brains: %+v", e)
		}
	})
}

// A client that never reads is disconnected after 30 s. net.Pipe has no buffer, so the first unread byte blocks the
// server.
func TestClientThatNeverReads(t *testing.T) {
	piped(t, func(s *Server, client net.Conn) {
		send(t, client, "/v1/watch?since=0")
		synctest.Wait()
		if got := s.streams.Load(); got != 1 {
			t.Fatalf("%d streams", got)
		}
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if got := s.streams.Load(); got != 1 {
			t.Errorf("dropped before its time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := s.streams.Load(); got != 0 {
			t.Errorf("%d streams after the limit", got)
		}
	})
}

// TestKeepAlives: a silent stream shows that it lives, for hours if need be.
func TestKeepAlives(t *testing.T) {
	piped(t, func(s *Server, client net.Conn) {
		send(t, client, "/v1/watch")
		start := time.Now()
		comments := 0
		for r := bufio.NewReader(client); time.Since(start) < time.Hour; {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			if strings.HasPrefix(line, ":") {
				comments++
			}
		}
		if want := int(time.Hour / (10 * time.Second)); comments < want-1 || comments > want+1 {
			t.Errorf("%d keep-alives in an hour, want %d", comments, want)
		}
	})
}

// piped serves one connection in virtual time.
func piped(t *testing.T, test func(s *Server, client net.Conn)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := testDeps(newFakeCluster("n1", true))
		d.Insecure = true
		s, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		server, client := net.Pipe()
		hs := s.HTTPServer()
		l := &oneConn{conn: server, done: make(chan struct{})}
		served := make(chan struct{})
		go func() { defer close(served); _ = hs.Serve(l) }()
		test(s, client)
		client.Close()
		close(l.done)
		hs.Close()
		<-served
	})
}

func send(t *testing.T, client net.Conn, path string) {
	t.Helper()
	if _, err := io.WriteString(client, "GET "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
}

// oneConn is a listener of one connection.
type oneConn struct {
	conn     net.Conn
	accepted bool
	done     chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if !l.accepted {
		l.accepted = true
		return l.conn, nil
	}
	<-l.done
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// Watches are counted while they are open. The lag is that of a client that does not read.
func TestWatchersAreCounted(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		want := func(open int, lag uint64) {
			t.Helper()
			eventually(t, func() bool {
				gotOpen, gotLag := n.Watchers()
				return gotOpen == open && gotLag == lag
			})
		}
		n.fake.put("k", "v")
		reads := n.stream("/v1/watch?since=1")
		c, _ := n.unread("/v1/watch?since=1", "", 8)
		want(2, 0)
		for range 10 {
			n.fake.put("k", strings.Repeat("v", 100_000))
		}
		for i := range 10 {
			reads.must("put", fmt.Sprint(i+2))
		}
		want(2, 0) // nothing was sent to it: it has not read the beginning
		_ = c.Close()
		want(1, 0)
		c, _ = n.unread("/v1/watch?since=1", "", 40)
		want(2, 10)
		_ = c.Close()
		want(1, 0)
	})
}
