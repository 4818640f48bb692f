package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// trio returns nodes that share one state and know numbers. The first one leads.
func trio(t *testing.T, change ...func(*Deps)) (n1, n2, n3 *node) {
	t.Helper()
	var nodes [3]*node
	first := newFakeCluster("n1", true)
	for i := range nodes {
		f := first
		if i > 0 {
			f = newFakeCluster(fmt.Sprint("n", i+1), false)
			f.state, f.applies = first.state, first.applies
		}
		nodes[i] = startServer(t, f, change...)
		f.addRecord(cluster.Member{
			ID: f.st.NodeID, HTTPAddress: nodes[i].addr, Lifecycle: cluster.Active, Reads: state.NumberVersion,
		})
	}
	leads(nodes[0], nodes[:]...)
	return nodes[0], nodes[1], nodes[2]
}

// leads makes a node the leader that the others know.
func leads(leader *node, knowing ...*node) {
	term := leader.fake.Status().Term + 1
	for _, n := range knowing {
		n.fake.lead(leader.fake.st.NodeID, term)
	}
}

// lastWords makes the next proposal at a node the last one: it is applied or not, and then answer is called. The node
// does not lead any more, though others may think so.
func (n *node) lastWords(applied bool, answer func(context.Context) error) (proposed chan struct{}) {
	proposed = make(chan struct{})
	n.fake.set(func() {
		n.fake.propose = func(ctx context.Context, c state.Command) (state.Result, error) {
			n.fake.set(func() { n.fake.propose = nil })
			if applied {
				c.Now = time.Now().UnixNano()
				n.fake.apply(c)
			}
			n.fake.lead("", n.fake.Status().Term)
			close(proposed)
			return state.Result{}, answer(ctx)
		}
	})
	return proposed
}

var lastAnswers = map[string]func(context.Context) error{
	"killed":  func(context.Context) error { panic(http.ErrAbortHandler) },
	"stopped": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	"deposed": func(context.Context) error { return cluster.Errorf(cluster.CodeOutcomeUnknown, "lost leadership") },
}

// numberedWrite is a write that gets a number, with the answer to its first execution. %s is the ID of a session that
// holds the role r.
type numberedWrite struct {
	method, path, body string
	absent             bool // If-None-Match
	status             int
	changes            uint64 // revisions that it takes
}

var numberedWrites = []numberedWrite{
	{"PUT", "/v1/kv/new", "v", true, 200, 1},
	{"PUT", "/v1/kv/k", "v", true, 412, 0},
	{"DELETE", "/v1/kv/k", "", false, 200, 1},
	{"DELETE", "/v1/kv/absent", "", false, 404, 0},
	{"POST", "/v1/sessions", `{"name":"s"}`, false, 200, 1},
	{"DELETE", "/v1/roles/r?session_id=%s", "", false, 200, 1},
	{"DELETE", "/v1/roles/r?session_id=other", "", false, 409, 0}, // another session holds it
	{"DELETE", "/v1/sessions/%s", "", false, 200, 2},              // the role becomes vacant, and the node dead
	{"PUT", "/v1/nodes/w2", `{"session_id":"%s","hostname":"h"}`, false, 200, 1},
	{"DELETE", "/v1/nodes/w1", "", false, 200, 1},
}

// A write is answered with its true result, and done once, when the leader that got it dies, hangs or is deposed: at
// the next leader, through a node that lives, which may be the next leader, and through the deposed leader itself.
func TestNumber_WriteAtLostLeader(t *testing.T) {
	for name, answer := range lastAnswers {
		for _, applied := range []bool{true, false} {
			for _, tokens := range []bool{false, true} {
				for i := range numberedWrites {
					w := lostWrite{numberedWrite: numberedWrites[i], applied: applied, tokens: tokens, answer: answer}
					what := fmt.Sprintf("%s, applied %v, tokens %v, %s %s", name, applied, tokens, w.method, w.path)
					virtually(t, what+" through a follower", w.test)
					elected := w
					elected.askedIsNext = true
					virtually(t, what+" through the next leader", elected.test)
					if w.atLeader = true; name == "deposed" {
						virtually(t, what+" through the leader", w.test)
					}
				}
			}
		}
	}
}

// lostWrite is a write that is at the leader when that is lost.
type lostWrite struct {
	numberedWrite
	applied     bool
	tokens      bool // nodes do not tell each other from clients
	answer      func(context.Context) error
	atLeader    bool // the client has asked the leader itself
	askedIsNext bool // the node that the client has asked is the next leader
}

// nodes returns three nodes, and has all requests to them come from one client.
func (w lostWrite) nodes(t *testing.T, aud *fakeAuditor) (n1, n2, n3 *node) {
	if !w.tokens {
		return trio(t, withAudit(aud))
	}
	data, as := identities()
	n1, n2, n3 = trio(t, withAudit(aud), withTokens(data))
	for _, n := range []*node{n1, n2, n3} {
		n.http.Transport = withHeader{n.http.Transport, as["alice"][0], as["alice"][1]}
	}
	return n1, n2, n3
}

// withHeader adds a header to each request.
type withHeader struct {
	http.RoundTripper
	name, value string
}

func (h withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(h.name, h.value)
	return h.RoundTripper.RoundTrip(r)
}

func (w lostWrite) test(t *testing.T) {
	aud := &fakeAuditor{}
	n1, n2, n3 := w.nodes(t, aud)
	s := n1.session("a")
	n1.fake.put("k", "old")
	into[apiv1.Role](t, n1.campaign("r", s, 0))
	n1.fake.apply(state.Command{Kind: state.KindAppNodePut, AppNodePut: &state.AppNodePut{
		Node: state.AppNode{ID: "w1", Session: s, Status: state.AppActive},
	}})
	before := n1.fake.View().Revision()
	aud.take()
	recordedBefore := len(slices.Collect(n3.fake.View().AuditAfter(0)))
	proposed := n1.lastWords(w.applied, w.answer)
	asked, next := n2, n3
	if w.atLeader {
		asked = n1
	} else if w.askedIsNext {
		next = n2
	}
	var header []string
	if w.absent {
		header = []string{"If-None-Match", "*"}
	}
	path, body := strings.ReplaceAll(w.path, "%s", s), strings.ReplaceAll(w.body, "%s", s)
	got := make(chan reply)
	go func() { got <- asked.do(w.method, path, body, header...) }()
	<-proposed
	time.Sleep(time.Second) // longer than a request that was not sent is held
	began := time.Now()
	leads(next, n1, n2, n3)
	r := <-got
	if r.status != w.status || time.Since(began) > 50*time.Millisecond {
		t.Errorf("%+v after %v, want %d", r, time.Since(began), w.status)
	}
	if changes := n3.fake.View().Revision() - before; changes != w.changes {
		t.Errorf("%d changes, want %d", changes, w.changes)
	}
	records, want := len(slices.Collect(n3.fake.View().AuditAfter(0)))-recordedBefore, 1
	if w.tokens && w.applied && w.path != "/v1/nodes/w2" { // which finds itself registered, and is not proposed again
		want = 2 // a client's number does not say that a node repeats it for one call
	}
	if queued := aud.take(); records != want || queued != "" {
		t.Errorf("%d records in the state, want %d; others: %s", records, want, queued)
	}
}

// Two nodes give the same numbers without harm, and so do two clients of one node.
func TestNumber_OfEachNode(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2, n3 := trio(t)
		for i, n := range []*node{n1, n2, n3, n2, n3} {
			got := into[apiv1.PutResult](t, n.do("PUT", fmt.Sprint("/v1/kv/k", i), "v"))
			if !got.Created {
				t.Errorf("put %d: %+v", i, got)
			}
		}
	})
}

// A client is not sent to the next leader with a write that this node has proposed, and that may be applied: it would
// be applied again, or be refused because of itself.
func TestNumber_NoRedirectAfterAnAttempt(t *testing.T) {
	for _, applied := range []bool{true, false} {
		virtually(t, fmt.Sprint("applied ", applied), func(t *testing.T) {
			n1, n2, n3 := trio(t)
			before := n1.fake.View().Revision()
			proposed := n1.lastWords(applied, lastAnswers["deposed"])
			got := make(chan reply)
			go func() { got <- n1.do("PUT", "/v1/kv/k?redirect", "v", "If-None-Match", "*") }()
			<-proposed
			leads(n3, n1, n2, n3)
			if r := <-got; r.status != 200 || !strings.Contains(r.body, `"created":true`) {
				t.Errorf("%+v", r)
			}
			if changes := n3.fake.View().Revision() - before; changes != 1 {
				t.Errorf("%d changes", changes)
			}
		})
	}
}

// The outcome stays unknown when no leader comes before the deadline. It is counted once, by the node that says so.
func TestNumber_NoLeaderBeforeTheDeadline(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2, n3 := trio(t)
		<-n1.lastWordsTo(n2, "/v1/kv/k?timeout_ms=3000", lastAnswers["deposed"], func(r reply, took time.Duration) {
			r.is(t, 504, cluster.CodeOutcomeUnknown)
			if took < 2900*time.Millisecond || took > 3100*time.Millisecond {
				t.Errorf("after %v", took)
			}
		})
		for n, want := range map[*node]string{n1: "0", n2: "1", n3: "0"} {
			metrics := n.do("GET", "/metrics", "").body
			if !strings.Contains(metrics, "\nnorthstar_outcome_unknown_total "+want+"\n") {
				t.Errorf("node %s has not counted %s", n.fake.st.NodeID, want)
			}
		}
	})
}

// lastWordsTo sends a put to a node, for which this leader says its last words, and leaves the others without a leader.
func (n *node) lastWordsTo(asked *node, path string, answer func(context.Context) error,
	check func(reply, time.Duration),
) (done chan struct{}) {
	proposed := n.lastWords(true, answer)
	done = make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		check(asked.do("PUT", path, "v"), time.Since(began))
	}()
	<-proposed
	asked.fake.lead("", 9)
	return done
}

// A client cannot give numbers in the name of a node.
func TestNumber_HeaderOfClient(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, _, _ := trio(t)
		header := []string{apiv1.HeaderNumber, "n1/boot1 1 1 0"}
		byNode := append([]string{apiv1.HeaderForwardedBy, "n2"}, header...)
		for key, header := range map[string][]string{"a": header, "b": header, "c": byNode, "d": byNode} {
			if r := n1.do("PUT", "/v1/kv/"+key, "v", header...); r.status != 200 {
				t.Errorf("%+v", r)
			}
			if _, ok := n1.fake.View().Get(key); !ok { // with a number, it would repeat another one
				t.Errorf("key %s was not written", key)
			}
		}
		for _, bad := range []string{"x", "x 0 0 0", "x 1 1", "x 1 1 y", " 1 1 1"} {
			n1.do("PUT", "/v1/kv/e", "v", apiv1.HeaderNumber, bad, apiv1.HeaderForwardedBy, "n2",
				apiv1.HeaderIdentity, "client alice").is(t, 400, cluster.CodeBadRequest)
		}
	})
}

// The numbered keys of a client keep the meaning of keys, and cost no record of each write.
func TestNumber_KeysOfClient(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2, _ := trio(t)
		key := func(number, lowest uint64) []string {
			return []string{apiv1.HeaderIdempotencyKey, apiv1.NumberedKey(apiv1.SenderPrefix+"ABC", number, lowest)}
		}
		first := into[apiv1.PutResult](t, n2.do("PUT", "/v1/kv/k", "v", key(1, 1)...))
		if again := into[apiv1.PutResult](t, n1.do("PUT", "/v1/kv/k", "v", key(1, 1)...)); again != first {
			t.Errorf("first %+v, again %+v", first, again)
		}
		n1.do("PUT", "/v1/kv/k", "w", key(1, 1)...).is(t, 422, cluster.CodeBadRequest)
		into[apiv1.PutResult](t, n1.do("PUT", "/v1/kv/k", "w", key(2, 2)...))
		n1.do("PUT", "/v1/kv/k", "v", key(1, 1)...).is(t, 504, cluster.CodeOutcomeUnknown)
	})
}

// A follower does not repeat a write of which the state says that its result is no longer kept.
func TestNumber_ForgottenResult(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2, _ := trio(t)
		key := func(number, lowest uint64) []string {
			return []string{apiv1.HeaderIdempotencyKey, apiv1.NumberedKey(apiv1.SenderPrefix+"ABC", number, lowest)}
		}
		into[apiv1.PutResult](t, n2.do("PUT", "/v1/kv/k", "w", key(2, 2)...))
		before := n1.fake.View().AppliedIndex()
		r := n2.do("PUT", "/v1/kv/k?timeout_ms=3000", "v", key(1, 1)...)
		r.is(t, 504, cluster.CodeOutcomeUnknown)
		if n := n1.fake.View().AppliedIndex() - before; n != 1 {
			t.Errorf("it was proposed %d times", n)
		}
		if r.header.Get(apiv1.HeaderDecided) != "" {
			t.Errorf("the client gets what is between nodes: %v", r.header)
		}
	})
}

// Where nodes are not told from clients, a number counts among those of the caller: it is no other's.
func TestNumber_NodesLookLikeClients(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, as := identities()
		n1, _, _ := trio(t, withTokens(data))
		into[apiv1.PutResult](t, n1.do("PUT", "/v1/kv/first", "v", as["alice"][:2]...)) // its number is 1
		for _, number := range []string{"n2/boot1 1 1 0", "n1/boot1 1 1 0"} {
			forged := []string{apiv1.HeaderForwardedBy, "n2", apiv1.HeaderNumber, number}
			for _, who := range []string{"alice", "bob"} {
				if who == "alice" && strings.HasPrefix(number, "n1") { // she has used it
					continue
				}
				key := who + number[:2]
				if r := n1.do("PUT", "/v1/kv/"+key, "v", append(forged, as[who][:2]...)...); r.status != 200 {
					t.Errorf("%+v", r)
				}
				if _, ok := n1.fake.View().Get(key); !ok {
					t.Errorf("the write of %s is taken for another one", key)
				}
			}
		}
	})
}

// What a client's sender has in use is not forgotten, however many of its writes overtake one.
func TestNumber_OvertakenWrite(t *testing.T) {
	t.Parallel()
	s := state.New(state.Options{})
	index := uint64(0)
	apply := func(number, lowest uint64) state.Result {
		index++
		return s.Apply(index, 1, []state.Command{{
			Kind: state.KindPut, Now: 1, Put: &state.Put{Key: "k"},
			Idempotency: &state.Idempotency{
				Key: "client a\nns1.x", Number: number, AnsweredBelow: lowest, RequestHash: []byte("h"),
			},
		}})[0]
	}
	var numbers apiv1.Numbers
	slow, lowest, _ := numbers.BeginWithin(apiv1.MaxNumbersAhead)
	for {
		number, lowest, ok := numbers.BeginWithin(apiv1.MaxNumbersAhead)
		if !ok {
			break
		}
		if r := apply(number, lowest); r.Err != nil {
			t.Fatal(r.Err)
		}
		numbers.End(number)
	}
	if r := apply(slow, lowest); r.Err != nil {
		t.Error(r.Err)
	}
}
