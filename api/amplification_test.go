package api

import (
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
	"northstar/telemetry"
)

// stuckWriter is the response to a client that takes nothing until read is closed.
type stuckWriter struct {
	*httptest.ResponseRecorder
	read <-chan struct{}
}

func (w stuckWriter) Write(p []byte) (int, error) {
	<-w.read
	return w.ResponseRecorder.Write(p)
}

// Anyone may read the metrics, and an answer is large. Scrapes that one address does not take leave room for others.
func TestUnreadScrapesAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := bareServer(t)
		read := make(chan struct{})
		from := func(address string) *http.Request {
			r := httptest.NewRequest("GET", "http://127.0.0.1/metrics", nil)
			r.RemoteAddr = address
			return r
		}
		const share = maxScrapes / 8
		for range 2 * share {
			go s.ServeHTTP(stuckWriter{httptest.NewRecorder(), read}, from(someAddress))
		}
		synctest.Wait()
		if got := s.scrapes.Load(); got != share {
			t.Errorf("one address holds %d answers, want %d", got, share)
		}
		if w := serveBriefly(s, from(someAddress)); w.Code != http.StatusServiceUnavailable ||
			w.Header().Get("Content-Type") != apiv1.TypeProblem {
			t.Errorf("another one: %d %s", w.Code, w.Header())
		}
		if w := serveBriefly(s, from("192.0.2.8:1234")); w.Code != http.StatusOK ||
			!strings.Contains(w.Body.String(), "northstar_http_in_flight") {
			t.Errorf("another address: %d, %d bytes", w.Code, w.Body.Len())
		}
		close(read)
		synctest.Wait()
		if got := s.scrapes.Load(); got != 0 {
			t.Errorf("%d answers are left", got)
		}
	})
}

// blockingCollector is a collector without metrics that takes until release is closed.
type blockingCollector struct {
	collecting *atomic.Int64
	release    <-chan struct{}
}

func (c blockingCollector) Describe(chan<- *prometheus.Desc) {}

func (c blockingCollector) Collect(chan<- prometheus.Metric) {
	c.collecting.Add(1)
	<-c.release
}

// A slow node refuses no scrape below the limit: one address that takes its share of places keeps no other one out.
func TestSlowScrapesAreNotRefused(t *testing.T) {
	virtual(t, func(t *testing.T) {
		release := make(chan struct{})
		slow := blockingCollector{new(atomic.Int64), release}
		s := bareServer(t, func(d *Deps) { d.Metrics = telemetry.New(slow) })
		const scrapes = maxScrapes / 2
		answers := make(chan int, scrapes)
		for i := range scrapes {
			go func() {
				r := httptest.NewRequest("GET", "http://127.0.0.1/metrics", nil)
				r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1234", i)
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				answers <- w.Code
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := slow.collecting.Load(); got != scrapes || len(answers) != 0 {
			t.Errorf("%d scrapes are in progress, %d are answered, want %d and 0", got, len(answers), scrapes)
		}
		close(release)
		for range scrapes {
			if code := <-answers; code != http.StatusOK {
				t.Errorf("a scrape is answered with %d", code)
			}
		}
	})
}

// The document is the same for all clients, so that those who do not read it cost no memory for it.
func TestDocumentIsShared(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := bareServer(t)
		var answers [2][]byte
		for i := range answers {
			w := keepingWriter{httptest.NewRecorder(), &answers[i]}
			s.ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
		}
		if len(answers[0]) == 0 || &answers[0][0] != &answers[1][0] {
			t.Errorf("two answers of %d and %d bytes are two copies", len(answers[0]), len(answers[1]))
		}
	})
}

// keepingWriter keeps the slice that is written.
type keepingWriter struct {
	*httptest.ResponseRecorder
	kept *[]byte
}

func (w keepingWriter) Write(p []byte) (int, error) {
	*w.kept = p
	return len(p), nil
}

// Offsets of nodes that are no members are not repeated in each event of an answer: one request with many of them would
// have an answer of many megabytes.
func TestEvents_InventedOffsets(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, _ := three(t)
		seq := n1.events("").Prev
		for i := range 900 {
			seq += fmt.Sprintf(",x%d=y", i)
		}
		got := n1.events("?since=" + url.QueryEscape(seq))
		if texts(got) != "abcd" {
			t.Errorf("events %q", texts(got))
		}
		for _, it := range got.Items {
			if len(it.Seq) > 200 {
				t.Fatalf("the seq of an event has %d bytes", len(it.Seq))
			}
		}
		long := n1.events("").Prev + strings.Repeat("0", stream.MaxOffsetBytes)
		n1.do("GET", "/v1/events?since="+url.QueryEscape(long), "").is(t, 400, cluster.CodeBadRequest)
	})
}

// An answer that is made of those of all nodes counts while it is made, and one caller leaves room for others. So do
// streams of events, which make requests of all nodes all the time.
func TestMergedAnswersAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		s := bareServer(t, withTokens(file), func(d *Deps) { d.Limits.AnswerBytes = 4 << 20 })
		read := make(chan struct{})
		as := func(who, path, accept string) *http.Request {
			r := httptest.NewRequest("GET", path, nil)
			r.RemoteAddr = "192.0.2." + map[string]string{"alice": "1", "bob": "2"}[who] + ":1234"
			r.Header.Set("Authorization", tokens[who])
			r.Header.Set("Accept", accept)
			return r
		}
		for _, path := range []string{"/v1/events?limit=1000", "/v1/elections?limit=1000"} {
			for range 4 {
				go s.ServeHTTP(stuckWriter{httptest.NewRecorder(), read}, as("alice", path, ""))
				synctest.Wait()
			}
			if got := s.answers.Load(); got != 2*1000*mergedItemBytes {
				t.Errorf("%s: answers of %d bytes, want two", path, got)
			}
			for who, want := range map[string]int{"alice": http.StatusServiceUnavailable, "bob": http.StatusOK} {
				if w := serveBriefly(s, as(who, path, "")); w.Code != want {
					t.Errorf("%s: another one of %s: %d", path, who, w.Code)
				}
			}
			close(read)
			synctest.Wait()
			read = make(chan struct{})
			if got := s.answers.Load(); got != 0 {
				t.Errorf("%s: %d bytes are left", path, got)
			}
		}
		const share = maxEventStreams / 4
		for range share + 8 {
			go serveBriefly(s, as("alice", "/v1/events", apiv1.TypeEventStream))
		}
		synctest.Wait()
		if got := s.eventStreams.Load(); got != share {
			t.Errorf("%d streams of one identity, want %d", got, share)
		}
		if w := serveBriefly(s, as("bob", "/v1/events", apiv1.TypeEventStream)); w.Code != http.StatusOK {
			t.Errorf("a stream of another identity: %d", w.Code)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := s.eventStreams.Load(); got != 0 {
			t.Errorf("%d streams are left", got)
		}
	})
}

// The reserve is for members. A removed node, which may only ask to be added, leaves operators their places.
func TestOnlyMembersUseTheReserve(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := tokenFile()
		trusted := newAuthority(t)
		for id, want := range map[string]int64{"n2": 5, "n8": 4} {
			s := bareServer(t, withTokens(file), func(d *Deps) {
				d.Limits.AdminCalls = 4
				d.ClientRoots = func() *x509.CertPool { return trusted.pool }
				d.Reads.(*fakeCluster).removeRecord("n8")
			})
			body, end := io.Pipe()
			for range 8 {
				r := httptest.NewRequest("POST", "http://127.0.0.1/admin/members", body)
				r.RemoteAddr, r.TLS = someAddress, trusted.certified(t, "northstar://test/node/"+id, time.Hour)
				go s.ServeHTTP(httptest.NewRecorder(), r)
			}
			synctest.Wait()
			if got := s.admin.Load(); got != want {
				t.Errorf("node %s holds %d places, want %d", id, got, want)
			}
			r := httptest.NewRequest("GET", "http://127.0.0.1/admin/auto-failover", nil)
			r.RemoteAddr = someAddress
			r.Header.Set("Authorization", "Bearer "+tokens[token.Operator])
			if w := serveBriefly(s, r); id == "n8" && w.Code != http.StatusOK {
				t.Errorf("an operator: %d %s", w.Code, w.Body)
			}
			_ = end.Close()
			synctest.Wait()
		}
	})
}

// countedReads counts how often the state is looked at.
type countedReads struct {
	*fakeCluster
	views atomic.Int64
}

func (c *countedReads) View() *state.View {
	c.views.Add(1)
	return c.fakeCluster.View()
}

// Thousands of requests may ask to be attached to sessions that never were. Each waits, since this node may not have
// applied yet what made the session, and costs little meanwhile.
func TestInventedSessionsCostLittle(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		reads := &countedReads{fakeCluster: f}
		n := startServer(t, f, func(d *Deps) { d.Reads = reads })
		reads.views.Store(0)
		began := time.Now()
		n.do("GET", "/v1/sessions/"+strings.Repeat("f", state.SessionRevisionDigits)+"abcdefgh/attach", "").is(t, 503,
			cluster.CodeNoLeader)
		if got := reads.views.Load(); got > 100 || time.Since(began) < time.Second {
			t.Errorf("the state was looked at %d times in %v", got, time.Since(began))
		}
		began = time.Now() // it waits for no ID that no session can have
		for _, id := range []string{"deadbeef", strings.Repeat("f", state.SessionRevisionDigits) + "-abc"} {
			n.do("GET", "/v1/sessions/"+id+"/attach", "").is(t, 404, cluster.CodeSessionEnded)
		}
		if waited := time.Since(began); waited >= minOwnerPoll {
			t.Errorf("IDs without the form of one were waited for: %v", waited)
		}
	})
}

// A campaign waits for minutes, and a request that is forwarded keeps its body. Bodies of one caller take its share.
func TestBodiesOfWaitingCampaignsAreCounted(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true), func(d *Deps) { d.Limits.RequestBytes = 1 << 20 })
		n.lead()
		n.campaign("r", n.session("holder"), 0)
		padded := `{"session_id":"` + n.session("waits") + `","wait_ms":10000` + strings.Repeat(" ", 60<<10) + `}`
		waits := make(chan error, 1)
		go func() { // without a Content-Length
			resp, err := n.http.Post("http://"+n.addr+"/v1/roles/r/campaign", apiv1.TypeJSON,
				io.MultiReader(strings.NewReader(padded)))
			if err == nil {
				_ = resp.Body.Close()
			}
			waits <- err
		}()
		time.Sleep(time.Second)
		if got := n.bodyBytes.Load(); got != int64(len(padded)) {
			t.Errorf("%d bytes are counted, want %d", got, len(padded))
		}
		if err := <-waits; err != nil {
			t.Error(err)
		}
		eventually(t, func() bool { return n.bodyBytes.Load() == 0 })
		n.bodyBytes.held.Store(n.limits.RequestBytes * 2)
		n.do("POST", "/v1/sessions", `{"name":"x"}`, asJSON, apiv1.TypeJSON).is(t, 503, cluster.CodeBusy)
		n.bodyBytes.held.Store(0)
	})
}

// Anyone may ask for a path that does not exist. The answer does not repeat it at length, and as JSON each of its bytes
// could be six: thousands of clients that do not read their answers would fill the memory.
func TestErrorsRepeatLittle(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := bareServer(t)
		long := strings.Repeat("<", 30<<10)
		for _, target := range []string{"/" + long, "/leader?" + long, "/dashboard/" + long} {
			r := httptest.NewRequest("GET", target, nil)
			r.RemoteAddr = someAddress
			w := serveBriefly(s, r)
			p, ok := problem.Decode(w.Code, w.Header(), w.Body.Bytes())
			if !ok || w.Code < 400 || w.Body.Len() > 8<<10 || !strings.HasSuffix(p.Detail, "…") {
				t.Errorf("%.12s…: %d, %d bytes that end with %.40q", target, w.Code, w.Body.Len(),
					p.Detail[max(0, len(p.Detail)-40):])
			}
		}
	})
}

// The answer to what changes nothing counts, as that to a read does: it can be large, and be asked for again and again.
func TestAnswersThatChangeNothingAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		f := newFakeCluster("n1", true)
		n := startServer(t, f, withTokens(file), func(d *Deps) { d.Limits.AnswerBytes = smallAnswer })
		n.lead()
		as := []string{"Authorization", tokens["alice"]}
		made := into[apiv1.SessionCreated](t, n.do("POST", "/v1/sessions", `{"name":"s"}`, as...))
		for i := range 600 {
			f.apply(state.Command{Kind: state.KindRoleCampaign, RoleCampaign: &state.RoleCampaign{
				Role: fmt.Sprintf("%0128d", i), Session: made.SessionID,
			}})
		}
		for _, path := range []string{"/v1/sessions/" + made.SessionID, "/v1/sessions?prefix=s"} {
			n.do("DELETE", path, `{"dry_run":true}`, as...).is(t, 503, cluster.CodeBusy)
		}
		if r := n.do("DELETE", "/v1/sessions/"+made.SessionID, "", as...); r.status != 200 {
			t.Errorf("the end itself: %+v", r)
		}
	})
}

// The answer to what has changed something is not limited, so it is not much longer than what the client has sent.
func TestAnswersToWritesAreSmall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.lead()
		list := func(length, items int) string {
			return `["` + strings.Repeat(strings.Repeat("<", length)+`","`, items-1) + `<"]`
		}
		node := `{"session_id":"` + n.session("a") + `","roles":` + list(255, 64) + `,"capabilities":` + list(255, 64) + `}`
		for _, tc := range []struct{ method, path, body string }{
			{"PUT", "/v1/nodes/web-1", node}, {"POST", "/v1/sessions/renew", `{"session_ids":` + list(120, 500) + `}`},
		} {
			if r := n.do(tc.method, tc.path, tc.body); r.status != 200 || len(r.body) > smallAnswer {
				t.Errorf("%s %s: %d, %d bytes for %d", tc.method, tc.path, r.status, len(r.body), len(tc.body))
			}
		}
	})
}
