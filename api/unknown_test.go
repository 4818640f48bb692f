package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// A write that was sent to a leader and not answered may have been applied. A later leader's refusal does not change
// that, so the outcome is unknown. An error of the state is final.
func TestForward_RefusalAfterUnknownAttempt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		refusal *cluster.Error
		status  int
		code    cluster.Code
	}{
		"read-only":        {cluster.Errorf(cluster.CodeReadOnly, "x"), 504, cluster.CodeOutcomeUnknown},
		"busy":             {cluster.Errorf(cluster.CodeBusy, "x"), 504, cluster.CodeOutcomeUnknown},
		"split brain":      {cluster.Errorf(cluster.CodeSplitBrain, "x"), 504, cluster.CodeOutcomeUnknown},
		"condition failed": {cluster.Errorf(cluster.CodeConditionFailed, "x"), 412, cluster.CodeConditionFailed},
	} {
		refuse := func(context.Context, state.Command) (state.Result, error) { return state.Result{}, tc.refusal }
		virtually(t, name+" at another node", func(t *testing.T) {
			addr, requests := brokenLeader(t, true)
			n := followerOf(t, addr)
			answer := make(chan reply)
			go func() { answer <- n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "i") }()
			eventually(t, func() bool { return requests.Load() == 1 })
			f := newFakeCluster("n3", true)
			f.propose = refuse
			n.fake.addRecord(cluster.Member{ID: "n3", HTTPAddress: startServer(t, f).addr, Lifecycle: cluster.Active})
			n.fake.lead("n3", 3)
			(<-answer).is(t, tc.status, tc.code)
		})
		virtually(t, name+" here", func(t *testing.T) {
			addr, requests := brokenLeader(t, true)
			n := followerOf(t, addr)
			answer := make(chan reply)
			go func() { answer <- n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "i") }()
			eventually(t, func() bool { return requests.Load() == 1 })
			n.fake.set(func() { n.fake.propose = refuse })
			n.fake.lead("n2", 3)
			(<-answer).is(t, tc.status, tc.code)
		})
	}
}

// TestCampaign_ForwardedToLostLeader: the next one knows how it ended.
func TestCampaign_ForwardedToLostLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		addr, requests := brokenLeader(t, true)
		n := followerOf(t, addr)
		next := startServer(t, newFakeCluster("n3", true))
		a, b := next.session("a"), next.session("b")
		into[apiv1.Role](t, next.campaign("r", a, 0))
		answer := make(chan reply)
		go func() { answer <- n.campaign("r", b, 2000) }()
		eventually(t, func() bool { return requests.Load() == 1 })
		n.fake.addRecord(cluster.Member{ID: "n3", HTTPAddress: next.addr, Lifecycle: cluster.Active})
		n.fake.lead("n3", 3)
		if r := <-answer; !strings.Contains(r.body, `"holder":"a"`) {
			t.Errorf("%+v", r)
		} else {
			r.is(t, 409, cluster.CodeRoleHeld)
		}
		if role, _ := next.fake.View().Role("r"); role.Waits(b) {
			t.Error("the candidate waits on, with nobody to wait for it")
		}
	})
}

// TestForward_TransportDoesNotRetryWrites: a write with an idempotency key that was lost with a
// connection in use is not repeated behind this program's back: the second
// try's "no leader" would be taken for the truth about both.
func TestForward_TransportDoesNotRetryWrites(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := listen(t)
		var lost atomic.Int64
		var wg sync.WaitGroup
		serve := func(c net.Conn) {
			defer c.Close()
			in := bufio.NewReader(c)
			for first := true; ; first = false {
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				if r.Method == http.MethodPut && !first {
					lost.Add(1)
					return
				}
				status, media, body := 503, apiv1.TypeProblem, fmt.Sprintf(`{"code":%d,"retryable":true}`, cluster.CodeNoLeader)
				if r.Method != http.MethodPut {
					status, media, body = 200, "text/plain", "v"
				}
				fmt.Fprintf(c, "HTTP/1.1 %d x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", status, media,
					len(body), body)
			}
		}
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				wg.Go(func() { serve(c) })
			}
		})
		n := followerOf(t, l.Addr().String(), func(d *Deps) { d.TimeoutMax = 50 * time.Millisecond })
		if r := n.do("GET", "/v1/kv/k", ""); r.status != 200 {
			t.Fatalf("%+v", r)
		}
		n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "i").is(t, 504, cluster.CodeOutcomeUnknown)
		if lost.Load() == 0 {
			t.Error("no write was lost with its connection")
		}
		n.forward.Close()
		l.Close()
		wg.Wait()
	})
}
