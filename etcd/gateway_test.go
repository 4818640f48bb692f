package etcd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"northstar/cluster"
)

// TestGatewayAnswersAsEtcd compares the JSON gateway with recorded answers of etcd, byte by byte.
func TestGatewayAnswersAsEtcd(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	text, err := os.ReadFile("testdata/gateway.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	requests := 0
	for i := 0; i < len(lines); i++ {
		request, ok := strings.CutPrefix(lines[i], "> ")
		if !ok {
			continue
		}
		requests++
		var want []string
		for ; i+1 < len(lines) && strings.HasPrefix(lines[i+1], "< "); i++ {
			want = append(want, strings.TrimPrefix(lines[i+1], "< "))
		}
		got := answers(t, addr, request)
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s\ngot  %s\nwant %s", request, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	if requests < 50 {
		t.Errorf("only %d requests are recorded", requests)
	}
}

var changing = regexp.MustCompile(`"(cluster_id|member_id|raft_term|memberID)":"[0-9]+"`)

// answers makes a request and returns what the file would have: status and document.
func answers(t *testing.T, addr, request string) (out []string) {
	t.Helper()
	take := 0
	words := strings.SplitN(request, " ", 3)
	method := http.MethodPost
	switch words[0] {
	case "get":
		method, request = http.MethodGet, words[1]
	case "take", "any":
		if _, err := fmt.Sscan(words[1], &take); err != nil {
			t.Fatal(err)
		}
		request = words[2]
	}
	if words[0] == "any" {
		defer func() { slices.Sort(out) }()
	}
	path, body, _ := strings.Cut(request, " ")
	r, err := http.NewRequestWithContext(within(t), method, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	documents := json.NewDecoder(resp.Body)
	for take == 0 || len(out) < take {
		var one json.RawMessage
		if err := documents.Decode(&one); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%s: %v", request, err)
		}
		one = bytes.ReplaceAll(one, []byte("\u00a0"), []byte(" ")) // in protobuf's errors it depends on the build
		text := changing.ReplaceAllString(string(one), `"$1":"N"`)
		if resp.StatusCode != http.StatusOK {
			text = withoutOldFields(t, one)
		}
		if strings.Contains(text, "compact_revision") { // etcd's header has no revision there
			text = regexp.MustCompile(`"revision":"\d+",`).ReplaceAllString(text, "")
		}
		out = append(out, fmt.Sprintf("%d %s", resp.StatusCode, text))
	}
	return out
}

// withoutOldFields returns an error's body without what only etcd 3.5 has.
func withoutOldFields(t *testing.T, body []byte) string {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(body, &all); err != nil {
		t.Fatal(err)
	}
	if all["error"] != all["message"] {
		t.Errorf("error is not the message: %s", body)
	}
	delete(all, "error")
	out, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestStreamError: the error of a stream has the fields of all versions of etcd, in one line.
func TestStreamError(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.behind = cluster.Errorf(cluster.CodeNoLeader, "not caught up")
	n.setLeader("")
	_, addr := serve(t, testDeps(n), nil)
	resp, err := http.Post("http://"+addr+"/v3/watch", "", strings.NewReader(`{"create_request":{"key":"YQ=="}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	want := `{"error":{"code":14,"grpc_code":14,"http_code":503,"http_status":"Service Unavailable",` +
		`"message":"etcdserver: no leader"}}` + "\n"
	if err != nil || string(body) != want || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d %s, %v", resp.StatusCode, body, err)
	}
}

// TestOneDocumentAChunk: some clients take each chunk of a stream for one document.
func TestOneDocumentAChunk(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	body, send := io.Pipe()
	defer send.Close()
	r, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+addr+"/v3/watch", body)
	if err != nil {
		t.Fatal(err)
	}
	go fmt.Fprint(send, `{"create_request":{"key":"YQ=="}}`)
	resp, err := http.DefaultTransport.(*http.Transport).Clone().RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 4096)
	for i := range 3 {
		k, err := resp.Body.Read(buf)
		if err != nil || !json.Valid(buf[:k]) || bytes.Count(buf[:k], []byte("\n")) != 1 {
			t.Fatalf("chunk %d: %q, %v", i, buf[:k], err)
		}
		n.apply(t, put("a", fmt.Sprint(i)))
	}
}

// TestHealthOverHTTP: a node without a leader, with a full disk, or that has not caught up, is not healthy.
func TestHealthOverHTTP(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	n.setLeader("")
	if got := get(t, &http.Transport{}, "http://"+addr+"/health"); got != `{"health":"false","reason":"RAFT NO LEADER"}` {
		t.Errorf("without a leader: %s", got)
	}
	const healthy = `{"health":"true","reason":""}`
	if got := get(t, &http.Transport{}, "http://"+addr+"/health?serializable=true"); got != healthy {
		t.Errorf("serializable, without a leader: %s", got)
	}
	n.setLeader("n1")
	n.setFull("n2")
	if got := get(t, &http.Transport{}, "http://"+addr+"/health"); got != healthy {
		t.Errorf("with a full disk of another node: %s", got)
	}
	n.setFull("n1", "n2")
	if got := get(t, &http.Transport{}, "http://"+addr+"/health"); got != `{"health":"false","reason":"ALARM NOSPACE"}` {
		t.Errorf("with a full disk: %s", got)
	}
	if got := get(t, &http.Transport{}, "http://"+addr+"/health?exclude=NOSPACE"); got != healthy {
		t.Errorf("with a full disk, without its alarm: %s", got)
	}
	n.setFull()
	n.mu.Lock()
	n.behind = cluster.Errorf(cluster.CodeNoLeader, "it has not caught up")
	n.mu.Unlock()
	if got := get(t, &http.Transport{}, "http://"+addr+"/health"); !strings.Contains(got, "not caught up") {
		t.Errorf("of a node that has just started: %s", got)
	}
	n.setLeader("") // restarted without a quorum, it cannot catch up, and another restart would not help
	if got := get(t, &http.Transport{}, "http://"+addr+"/health?serializable=true"); got != healthy {
		t.Errorf("serializable, of a node that has just started: %s", got)
	}
}

// TestUnsupportedPaths: paths of etcd's gateway that are not served say so, and are not taken for wrong ones.
func TestUnsupportedPaths(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	for request, want := range map[string]string{
		"/v3/maintenance/snapshot {}":  "501 etcdserver: not supported by NorthStar: Snapshot: use northstarctl snapshot save",
		"/v3/cluster/member/add {}":    "501 etcdserver: not supported by NorthStar: MemberAdd: use northstarctl members",
		"/v3beta/auth/enable {}":       "501 etcdserver: not supported by NorthStar: AuthEnable: users and roles",
		"get /v3/maintenance/snapshot": "501 Method Not Allowed",
		"get /v3/kv/range":             "501 Method Not Allowed",
		"/v3/auth/nothing {}":          "404 Not Found",
	} {
		got := answers(t, addr, request)
		var body struct{ Message string }
		if len(got) != 1 || json.Unmarshal([]byte(got[0][4:]), &body) != nil ||
			!strings.HasPrefix(got[0][:4]+body.Message, want) {
			t.Errorf("%s: %q, want %s", request, got, want)
		}
	}
}

// TestWebSocket: a client that wants to watch over WebSocket learns what to do, and its connection goes on.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	read := bufio.NewReader(c)
	for range 2 {
		_, err = io.WriteString(c, "GET /v3/watch HTTP/1.1\r\nHost: n1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(read, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		says := strings.Contains(string(body), "WebSocket: send")
		if err != nil || resp.StatusCode != http.StatusNotImplemented || !says {
			t.Errorf("%s %s, %v", resp.Status, body, err)
		}
	}
}

// TestUpgradeToHTTP2: Java's HTTP client offers HTTP/2 with its first request, and goes on without it.
func TestUpgradeToHTTP2(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v3/kv/range",
		strings.NewReader(`{"key":"YQ=="}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABk",
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s, want 200", resp.Status)
	}
}

// TestStreamMessageIsLimited: a message of a stream that never ends is not kept in memory.
func TestStreamMessageIsLimited(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	endless := io.MultiReader(strings.NewReader(`{"create_request":{"key":"`), &repeated{text: "YWFh", left: 64 << 20})
	r, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+addr+"/v3/watch", endless)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) // the server may close the connection, since it does not read the rest
	if !strings.Contains(string(body), "request is too large") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// repeated is a reader of a text that is repeated.
type repeated struct {
	text string
	left int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, io.EOF
	}
	n := 0
	for n+len(r.text) <= len(p) {
		n += copy(p[n:], r.text)
	}
	r.left -= n
	return n, nil
}

// TestBodiesAreCounted: the body of a call that is not allowed is not read, and a large one takes bytes of the budget.
func TestBodiesAreCounted(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	d := testDeps(n)
	var denied atomic.Bool
	begin := d.Begin
	d.Begin = func(ctx context.Context, r *http.Request, conn any, kind CallKind) (Call, error) {
		if denied.Load() {
			return nil, cluster.Errorf(cluster.CodeUnauthenticated, "no token")
		}
		return begin(ctx, r, conn, kind)
	}
	_, addr := serve(t, d, nil)
	post := func(path string, body io.Reader) int {
		t.Helper()
		r, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+addr+path, body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	large := func() io.Reader {
		return strings.NewReader(`{"key":"YQ==","value":"` + strings.Repeat("YWFh", 100_000) + `"}`)
	}
	if code := post("/v3/kv/put", large()); code != http.StatusOK || n.largest.Load() < 2*bodyChunk || n.answers.Load() != 0 {
		t.Errorf("a large body: %d, %d bytes taken, %d not given back", code, n.largest.Load(), n.answers.Load())
	}
	n.answers.Store(maxAnswer)
	if code := post("/v3/kv/put", large()); code != http.StatusTooManyRequests {
		t.Errorf("a large body without room: %d", code)
	}
	if code := post("/v3/kv/put", strings.NewReader(`{"key":"YQ==","value":"YQ=="}`)); code != http.StatusOK {
		t.Errorf("a small body without room: %d", code)
	}
	if code := post("/v3/auth/authenticate", large()); code != http.StatusBadRequest {
		t.Errorf("a large body without a caller: %d", code)
	}
	denied.Store(true)
	never, writer := io.Pipe()
	defer writer.Close()
	if code := post("/v3/kv/put", never); code != http.StatusUnauthorized {
		t.Errorf("a call that is not allowed: %d", code)
	}
}

// The answer to a message that cannot be read does not repeat it: protojson names a bad value, which can have
// megabytes.
func TestGateway_ErrorsRepeatLittle(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	for path, body := range map[string]string{
		"/v3/kv/range":          `{"key":"` + strings.Repeat("<", 1<<20) + `"}`,
		"/v3/auth/authenticate": `{"name":` + strings.Repeat("1", 60<<10) + `}`,
		"/v3/watch":             `{"create_request":{"key":"` + strings.Repeat("<", 30<<10) + `"}}`,
	} {
		r, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || len(answer) > 8<<10 ||
			!strings.Contains(string(answer), "invalid value for") {
			t.Errorf("%s: %d, %d bytes, %v: %.200s", path, resp.StatusCode, len(answer), err, answer)
		}
	}
}
