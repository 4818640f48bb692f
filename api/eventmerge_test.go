package api

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/telemetry"
)

// three is n1, which knows n2 (running) and n3 (not), with events of both whose
// clocks agree: a b c d, by turns.
func three(t *testing.T) (n1, n2 *node) {
	t.Helper()
	eventLog := func(id cluster.NodeID) func(*Deps) {
		return func(d *Deps) {
			d.Node.ID, d.Node.BootID = id, "boot-"+string(id)
			d.EventLog = telemetry.NewEventLog(id, d.Node.BootID, 64, hclog.NewNullLogger())
		}
	}
	n2 = startServer(t, newFakeCluster("n2", false), eventLog("n2"))
	f := newFakeCluster("n1", true)
	f.addRecord(cluster.Member{ID: "n1"})
	f.addRecord(cluster.Member{ID: "n2", HTTPAddress: n2.addr})
	f.addRecord(cluster.Member{ID: "n3", HTTPAddress: "127.0.0.1:1"})
	n1 = startServer(t, f, eventLog("n1"))
	for i, n := range []*node{n1, n2, n1, n2} {
		n.deps.EventLog.Append(cluster.Event{Type: "node", At: time.Unix(int64(i), 0), Message: string(rune('a' + i))})
	}
	return n1, n2
}

func (n *node) events(query string) (e apiv1.Events) {
	n.t.Helper()
	r := n.do("GET", "/v1/events"+query, "")
	if err := json.Unmarshal([]byte(r.body), &e); err != nil || r.status != 200 {
		n.t.Fatalf("%s: %d %s", query, r.status, r.body)
	}
	return e
}

func texts(e apiv1.Events) string {
	s := ""
	for _, it := range e.Items {
		s += it.Message
	}
	return s
}

func TestEventsOfAllNodes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2 := three(t)
		all := n1.events("")
		if texts(all) != "abcd" || all.Items[1].Node != "n2" || fmt.Sprint(all.Missing) != "[n3]" {
			t.Fatalf("%q, missing %v", texts(all), all.Missing)
		}
		since := func(seq string) string { return "?since=" + url.QueryEscape(seq) }
		for i, it := range all.Items {
			if got := texts(n1.events(since(it.Seq))); got != "abcd"[i+1:] {
				t.Errorf("after %s: %q", it.Message, got)
			}
		}
		if got := texts(n1.events("?limit=3")); got != "bcd" {
			t.Errorf("the newest three: %q", got)
		}
		if got := texts(n1.events(since(all.Prev))); got != "abcd" {
			t.Errorf("from before the first: %q", got)
		}
		paged := ""
		for seq := all.Prev; len(paged) < 4; {
			page := n1.events(since(seq) + "&limit=1")
			if len(page.Items) != 1 {
				t.Fatalf("after %q: %d items", paged, len(page.Items))
			}
			paged += texts(page)
			seq = page.Next
		}
		if paged != "abcd" {
			t.Errorf("page by page: %q", paged)
		}
		if end := n1.events(since(all.Next)); len(end.Items) != 0 || end.Next == "" {
			t.Errorf("at the end: %+v", end)
		}
		if own := n2.do("GET", "/v1/events", "", apiv1.HeaderForwardedBy, "n1"); strings.Contains(own.body, `"a"`) {
			t.Errorf("asked by another node, it answers for others: %s", own.body)
		}
	})
}

// A stream from now begins with events from now, also those of a node that answers only later.
func TestEvents_StreamFromNow(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2 := three(t)
		n1.fake.addRecord(cluster.Member{ID: "n2", HTTPAddress: "127.0.0.1:1"})
		s := n1.stream("/v1/events", "Accept", apiv1.TypeEventStream)
		time.Sleep(2 * mergeInterval) // virtual
		n2.deps.EventLog.Append(cluster.Event{Type: "node", At: time.Now(), Message: "new"})
		n1.fake.addRecord(cluster.Member{ID: "n2", HTTPAddress: n2.addr})
		if m, _ := s.next(); !strings.Contains(m.data, `"new"`) {
			t.Errorf("%+v", m)
		}
	})
}

func TestEvents_OfStoppedProcess(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2 := three(t)
		all := n1.events("")
		ofN1, ofN2 := all.Items[2].Seq, all.Items[3].Seq
		// n2 is another process now.
		n2.deps.EventLog = telemetry.NewEventLog("n2", "boot-later", 64, hclog.NewNullLogger())
		n2.Server.deps.EventLog = n2.deps.EventLog
		n2.deps.EventLog.Append(cluster.Event{Type: "node", At: time.Unix(9, 0), Message: "new"})
		n1.do("GET", "/v1/events?since="+url.QueryEscape(ofN2), "").is(t, 410, cluster.CodeHistoryCompacted)
		if got := texts(n1.events("?since=" + url.QueryEscape(ofN1))); got != "new" {
			t.Errorf("after an event of n1: %q", got)
		}
		for _, bad := range []string{"n1=", "=x", "n1=boot-n1-1,", "N1=x", "n1=boot-n1-!"} {
			n1.do("GET", "/v1/events?since="+url.QueryEscape(bad), "").is(t, 400, cluster.CodeBadRequest)
		}
	})
}

func TestEventStreamOfAllNodes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2 := three(t)
		all := n1.events("")
		s := n1.stream("/v1/events?since="+url.QueryEscape(all.Items[1].Seq), "Accept", apiv1.TypeEventStream)
		for _, it := range all.Items[2:] {
			if m := s.must("node", it.Seq); !strings.Contains(m.data, it.Message) {
				t.Errorf("data %s", m.data)
			}
		}
		n2.deps.EventLog.Append(cluster.Event{Type: "health", Message: "from afar"})
		s.must("health", "")
		n1.deps.EventLog.Append(cluster.Event{Type: "disk", Message: "own"})
		s.must("disk", "")
	})
}

// TestEvents_ForwardToken: without TLS, nodes with tokens know each other's
// callers by nothing else.
func TestEvents_ForwardToken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, tokens := tokenFile()
		n2 := startServer(t, newFakeCluster("n2", false), withTokens(data), func(d *Deps) { d.Node.ID = "n2" })
		f := newFakeCluster("n1", true)
		f.addRecord(cluster.Member{ID: "n1"})
		f.addRecord(cluster.Member{ID: "n2", HTTPAddress: n2.addr})
		n1 := startServer(t, f, withTokens(data))
		r := n1.do("GET", "/v1/events", "", "Authorization", "Bearer "+tokens["observer"])
		if r.status != 200 || !strings.Contains(r.body, `"missing":[]`) {
			t.Errorf("%d %s", r.status, r.body)
		}
	})
}
