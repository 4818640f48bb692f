package api

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

// unread sends a GET whose answer is not read, but for its first bytes.
func (n *node) unread(path, authorization string, first int) (net.Conn, io.Reader) {
	n.t.Helper()
	c, err := dialMemory(n.t.Context(), n.addr)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %s\r\n\r\n", path,
		authorization); err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil)
	if err != nil || resp.StatusCode != 200 {
		n.t.Fatalf("%s: %v %v", path, resp, err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, first)); err != nil {
		n.t.Fatal(err)
	}
	return c, resp.Body
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Answers that no client reads cost little memory: a list is sent as it is made, and an event in pieces. Not parallel,
// as it measures memory.
func TestUnreadAnswersCostLittle(t *testing.T) {
	virtualTests.Store(t, true) // connections in memory: they buffer nothing
	defer virtualTests.Delete(t)
	n := startServer(t, newFakeCluster("n1", true))
	value := strings.Repeat("v", 1<<20)
	for i := range 4 {
		n.fake.put(fmt.Sprintf("k%d", i), value)
	}
	const clients = 16
	before := heap()
	for range clients {
		n.unread("/v1/kv", "", 40)
		n.unread("/v1/watch?since=1", "", 40)
	}
	eventually(t, func() bool { return n.answers.Load() >= clients*5<<20 })
	if cost := heap() - before; cost > clients*2*256<<10 {
		t.Errorf("%d lists and watches of 1 MiB values cost %d KiB", clients, cost>>10)
	}
	n.http.CloseIdleConnections()
}

// Lists that no client reads do not hold records that have ended or changed since. Not parallel, as it measures memory.
func TestUnreadListsHoldNoOldRecords(t *testing.T) {
	virtualTests.Store(t, true) // connections in memory: they buffer nothing
	defer virtualTests.Delete(t)
	f := newFakeCluster("n1", true)
	n := startServer(t, f)
	const rounds, records, size = 8, 500, 4000
	before := heap()
	for range rounds {
		var ids []string
		for i := range records {
			s := f.apply(state.Command{Kind: state.KindSessionCreate, SessionCreate: &state.SessionCreate{
				Nonce: "abcdefgh", TTL: time.Minute, Meta: map[string]string{"m": strings.Repeat("m", size)},
			}}).Session
			ids = append(ids, s.ID)
			f.apply(state.Command{Kind: state.KindAppNodePut, AppNodePut: &state.AppNodePut{Node: state.AppNode{
				ID: fmt.Sprint("w", i), Session: s.ID, Status: state.AppActive,
				Roles: []string{strings.Repeat("r", 255), strings.Repeat("s", 255)},
			}}})
		}
		n.unread("/v1/sessions", "", 40)
		n.unread("/v1/nodes", "", 40)
		f.apply(state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{
			IDs: ids, Cause: state.CauseSessionEnded,
		}})
	}
	if held := heap() - before; held > rounds*records*size*3/4 { // the history of the nodes has half of it
		t.Errorf("%d unread lists of %d KiB hold %d KiB", rounds, records*size>>10, held>>10)
	}
	n.http.CloseIdleConnections()
}

// Keys without values count, too: a page has up to 4 MiB of them.
func TestUnreadKeysAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		f := newFakeCluster("n1", true)
		n := startServer(t, f, withTokens(file), func(d *Deps) { d.Limits.AnswerBytes = 4 << 20 })
		for i := range 400 {
			f.put(fmt.Sprintf("%04000d", i), "")
		}
		n.unread("/v1/kv", tokens["alice"], 40)
		if r := n.do("GET", "/v1/kv?timeout_ms=1000", "", "Authorization", tokens["alice"]); r.status != 503 {
			t.Errorf("another list of the same caller: %d", r.status)
		}
		if r := n.do("GET", "/v1/kv?limit=300", "", "Authorization", tokens["root"]); r.status != 200 {
			t.Errorf("another identity: %d", r.status)
		}
	})
}

// A list that waits for room is not made again and again: one caller may have 1,500 of them.
func TestWaitingListsCostLittle(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		f := newFakeCluster("n1", true)
		reads := &countedReads{fakeCluster: f}
		n := startServer(t, f, withTokens(file), func(d *Deps) { d.Limits.AnswerBytes, d.Reads = 4<<20, reads })
		f.put("a", strings.Repeat("v", 1<<20))
		f.put("b", strings.Repeat("v", 1<<19))
		first, _ := n.unread("/v1/kv", tokens["alice"], 40)
		reads.views.Store(0)
		start := time.Now()
		if r := n.do("GET", "/v1/kv?timeout_ms=10000", "", "Authorization", tokens["alice"]); r.status != 503 {
			t.Errorf("a list beyond the share: %d", r.status)
		}
		if looked := reads.views.Load(); looked > 10 || time.Since(start) < 10*time.Second {
			t.Errorf("it looked at the state %d times in %v", looked, time.Since(start))
		}
		go func() {
			time.Sleep(time.Second)
			_ = first.Close()
		}()
		if r := n.do("GET", "/v1/kv", "", "Authorization", tokens["alice"]); r.status != 200 {
			t.Errorf("a list for which there is room later: %d", r.status)
		}
	})
}

// What one client does not read leaves room for others. It waits itself, and is then told so.
func TestUnreadAnswersAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		f := newFakeCluster("n1", true)
		n := startServer(t, f, withTokens(file), func(d *Deps) { d.Limits.AnswerBytes = 8<<20 + 8<<10 })
		f.put("a", strings.Repeat("v", 1<<20))
		f.put("b", strings.Repeat("v", 1<<20))
		first, _ := n.unread("/v1/kv", tokens["alice"], 40)
		second, _ := n.unread("/v1/kv", tokens["alice"], 40)
		eventually(t, func() bool { return n.answers.Load() >= 4<<20 })
		start := time.Now()
		for _, path := range []string{"/v1/kv", "/v1/kv/a"} {
			n.do("GET", path+"?timeout_ms=1000", "", "Authorization", tokens["alice"]).is(t, 503, cluster.CodeBusy)
		}
		if took := time.Since(start); took < 2*time.Second {
			t.Errorf("the answers waited for %v", took)
		}
		watch, events := n.unread("/v1/watch?since=1", tokens["alice"], 8) // waits, too
		if r := n.do("GET", "/v1/kv/a", "", "Authorization", tokens["root"]); r.status != 200 || len(r.body) != 1<<20 {
			t.Errorf("another identity: %d", r.status)
		}
		_ = first.Close()
		_ = second.Close()
		_ = watch.SetReadDeadline(time.Now().Add(time.Second))
		lines := bufio.NewReader(events)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(line, "data: ") {
				var change apiv1.Change
				if err := json.Unmarshal([]byte(line[6:]), &change); err != nil || change.Key != "b" ||
					len(change.Value) != 1<<20 {
					t.Errorf("%v: %s, %d bytes", err, change.Key, len(change.Value))
				}
				break
			}
		}
		_ = watch.Close()
		eventually(t, func() bool { return n.answers.Load() == 0 })
	})
}

// The answers of another protocol hold bytes of the same budget, also after the end of their call.
func TestAnswersOfCallsAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		n := startServer(t, f, func(d *Deps) { d.Limits.AnswerBytes = 2 << 20 })
		f.put("a", strings.Repeat("v", 1<<20))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/x", nil)
		r.RemoteAddr = "127.0.0.1:1"
		call, err := n.Begin(r.Context(), r, nil, CallSpec{Name: "x", Role: token.Observer})
		if err != nil {
			t.Fatal(err)
		}
		var given []func()
		for range 9 { // loopback is an operator: its reserve counts, too
			if give, err := call.TakeAnswer(1 << 18); err == nil {
				given = append(given, give)
			}
		}
		if _, err := call.TakeAnswer(1 << 20); !cluster.IsCode(err, cluster.CodeBusy) {
			t.Errorf("beyond the limit: %v", err)
		}
		call.Leave(nil)
		n.do("GET", "/v1/kv/a?timeout_ms=100", "").is(t, 503, cluster.CodeBusy)
		for _, give := range given {
			give()
		}
		if r := n.do("GET", "/v1/kv/a", ""); r.status != 200 {
			t.Errorf("after all were given back: %+v", r)
		}
	})
}

// A list that is sent in pieces is the same as one that is not.
func TestLongListsAreWhole(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		n := startServer(t, f)
		for _, size := range []int{0, 1, 2, 3, 24<<10 - 1, 24 << 10, 24<<10 + 1, 100_000} {
			value := strings.Repeat("\x00\xff", size)[:size]
			f.put("k", value)
			f.put("l", "end")
			var list apiv1.List
			r := n.do("GET", "/v1/kv", "")
			if err := json.Unmarshal([]byte(r.body), &list); err != nil || len(list.Items) != 2 {
				t.Fatalf("%d bytes: %v %d", size, err, len(list.Items))
			}
			if string(list.Items[0].Value) != value || string(list.Items[1].Value) != "end" || list.Next != "" {
				t.Errorf("a value of %d bytes is another one", size)
			}
			if short := size < 20_000; short != (r.header.Get("Content-Length") != "") {
				t.Errorf("%d bytes: Content-Length %q", size, r.header.Get("Content-Length"))
			}
			if !strings.Contains(r.body, base64.StdEncoding.EncodeToString([]byte(value))) {
				t.Errorf("a value of %d bytes is not in standard base64", size)
			}
		}
		for i := range 300 {
			if r := n.do("POST", "/v1/sessions", fmt.Sprintf(`{"name":"s%d","meta":{"m":%q}}`, i,
				strings.Repeat("m", 1000))); r.status != 200 {
				t.Fatalf("%+v", r)
			}
		}
		var sessions apiv1.Sessions
		r := n.do("GET", "/v1/sessions?limit=299", "")
		if err := json.Unmarshal([]byte(r.body), &sessions); err != nil || len(sessions.Items) != 299 ||
			sessions.Next != sessions.Items[298].SessionID || sessions.Items[7].Name != "s7" {
			t.Errorf("%v, %d sessions, next %q", err, len(sessions.Items), sessions.Next)
		}
	})
}
