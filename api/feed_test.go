package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/cluster"
)

// feedEvent is one event that a page gets.
type feedEvent struct{ name, data string }

// readFeed returns what a page gets within a time.
func readFeed(s *Server, bearer string, took time.Duration) (events []feedEvent) {
	ctx, cancel := context.WithTimeout(context.Background(), took)
	defer cancel()
	r := httptest.NewRequest("GET", apiv1.PathFeed, nil).WithContext(ctx)
	r.Header.Set("Authorization", "Bearer "+bearer)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	for block := range strings.SplitSeq(w.Body.String(), "\n\n") {
		name, data, ok := strings.Cut(block, "\ndata: ")
		if ok {
			events = append(events, feedEvent{strings.TrimPrefix(name, "event: "), data})
		}
	}
	return events
}

func (e feedEvent) view(t *testing.T) (v apiv1.DashboardView) {
	t.Helper()
	if err := json.Unmarshal([]byte(e.data), &v); err != nil {
		t.Fatalf("%s: %v", e.data, err)
	}
	return v
}

func TestFeed_ViewsSamplesAndEvents(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		file, tokens := tokenFile()
		s := bareServerOf(t, f, withTokens(file))
		eventLog := s.deps.EventLog
		eventLog.Append(cluster.Event{Type: "node", Message: "before"})
		ctx, stop := context.WithCancel(t.Context())
		go s.history.run(ctx, f)
		go func() {
			time.Sleep(3500 * time.Millisecond)
			eventLog.Append(cluster.Event{Type: "node", Message: "meanwhile"})
		}()
		events := readFeed(s, tokens[token.Operator], 32*time.Second)
		stop()
		counts := map[string]int{}
		var entries []string
		for _, e := range events {
			counts[e.name]++
			if e.name == apiv1.EventEntry {
				var entry apiv1.Event
				if err := json.Unmarshal([]byte(e.data), &entry); err != nil {
					t.Fatal(err)
				}
				entries = append(entries, entry.Message)
			}
		}
		if n := counts[apiv1.EventView] + counts[apiv1.EventSame]; n < 32 || n > 35 {
			t.Errorf("the page heard of the cluster %d times in 32 s", n)
		}
		if counts[apiv1.EventView] != 2 {
			t.Errorf("%d views in 32 s in which nothing changed, want 2", counts[apiv1.EventView])
		}
		if counts[apiv1.EventSample] != 6 {
			t.Errorf("%d samples in 32 s, want 6", counts[apiv1.EventSample])
		}
		if !slices.Equal(entries, []string{"before", "meanwhile"}) {
			t.Errorf("events: %q", entries)
		}
		v := events[0].view(t)
		if v.Caller.Role != "operator" || v.NodeID != "n1" || v.Cluster.LeaderID != "n1" || len(v.Nodes) != 1 ||
			v.SplitBrain == nil || v.AutoFailover == nil {
			t.Errorf("%+v", v)
		}
	})
}

// TestFeed_ShowsChangesImmediately: a view that differs in more than times is sent at the next look.
func TestFeed_ShowsChangesImmediately(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		file, tokens := tokenFile()
		s := bareServerOf(t, f, withTokens(file))
		contact := func(d time.Duration) {
			f.set(func() { f.peers = []cluster.PeerStatus{{ID: "n2", Healthy: true, Contacted: true, LastContact: d}} })
		}
		f.addRecord(cluster.Member{ID: "n2"})
		contact(20 * time.Millisecond)
		go func() {
			for _, d := range []time.Duration{900, 50, 1100, 1900, 30} {
				time.Sleep(1300 * time.Millisecond)
				contact(d * time.Millisecond)
			}
		}()
		var ages []string
		for _, e := range readFeed(s, tokens[token.Operator], 8*time.Second) {
			if e.name == apiv1.EventView {
				ages = append(ages, fmt.Sprint(*e.view(t).Cluster.Members[1].LastContactMS))
			}
		}
		if got := strings.Join(ages, " "); got != "20 1100 30" {
			t.Errorf("contacts of the views: %s", got)
		}
	})
}

// TestFeed_HidesFromObservers: an observer gets nothing that only an operator may request.
func TestFeed_HidesFromObservers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := tokenFile()
		s := bareServer(t, withTokens(file))
		for role, want := range map[token.Role]bool{token.Observer: false, token.Client: false, token.Operator: true} {
			v := readFeed(s, tokens[role], time.Second)[0].view(t)
			if got := v.SplitBrain != nil; got != want {
				t.Errorf("%s: claims: %v, want %v", role, got, want)
			}
			if got := v.AutoFailover != nil; got != want {
				t.Errorf("%s: who paused automatic failover: %v, want %v", role, got, want)
			}
			if v.Caller.Role != string(role) {
				t.Errorf("%s: %+v", role, v.Caller)
			}
		}
	})
}

// TestFeed_ShowsOtherNodes: a follower answers with the leader's view, and with the status of each node.
func TestFeed_ShowsOtherNodes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader := newFakeCluster("n1", true)
		n1 := startServer(t, leader)
		follower := newFakeCluster("n2", false)
		follower.addRecord(cluster.Member{ID: "n1", HTTPAddress: n1.addr})
		follower.addRecord(cluster.Member{ID: "n3", HTTPAddress: unusedAddress(t)})
		n2 := startServer(t, follower, func(d *Deps) { d.Node.ID = "n2" })
		follower.lead("n1", 2)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		r := httptest.NewRequest("GET", "http://127.0.0.1"+apiv1.PathFeed, nil).WithContext(ctx)
		r.RemoteAddr = loopback
		w := httptest.NewRecorder()
		n2.ServeHTTP(w, r)
		_, data, _ := strings.Cut(w.Body.String(), "\ndata: ")
		data, _, _ = strings.Cut(data, "\n")
		v := feedEvent{data: data}.view(t)
		if v.NodeID != "n2" || v.Cluster.ObservedBy != "n1" || len(v.Nodes) != 2 || v.Nodes[0].NodeID != "n1" {
			t.Errorf("%s", data)
		}
	})
}

// TestFeed_NodeAnswersLater: of a node that did not answer when the page was opened, only later events are new.
func TestFeed_NodeAnswersLater(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2 := three(t)
		n1.fake.addRecord(cluster.Member{ID: "n2", HTTPAddress: "127.0.0.1:1"})
		n2.deps.EventLog.Append(cluster.Event{Type: "node", At: time.Now(), Message: "of before"})
		n1.deps.EventLog.Append(cluster.Event{Type: "node", At: time.Now(), Message: "of n1"})
		time.Sleep(time.Second)
		go func() {
			time.Sleep(2 * feedInterval)
			n2.deps.EventLog.Append(cluster.Event{Type: "node", At: time.Now(), Message: "meanwhile"})
			n1.fake.addRecord(cluster.Member{ID: "n2", HTTPAddress: n2.addr})
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 6*feedInterval)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "GET", "http://127.0.0.1"+apiv1.PathFeed, nil)
		r.RemoteAddr = loopback
		w := httptest.NewRecorder()
		n1.ServeHTTP(w, r)
		for text, want := range map[string]bool{"of before": false, "of n1": true, "meanwhile": true} {
			if got := strings.Contains(w.Body.String(), text); got != want {
				t.Errorf("%q sent: %v, want %v", text, got, want)
			}
		}
	})
}

// TestFeed_IsLimited: each open page costs the other nodes requests, so a node has a limited number of them. Operators
// are not shut out by others.
func TestFeed_IsLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := tokenFile()
		s := bareServer(t, withTokens(file))
		var open sync.WaitGroup
		for range maxPages {
			open.Go(func() { readFeed(s, tokens[token.Observer], 5*time.Second) })
		}
		synctest.Wait()
		if got := s.pages.Load(); got != maxPages/4 {
			t.Errorf("%d pages of one identity are open, want %d", got, maxPages/4)
		}
		if got := readFeed(s, tokens[token.Observer], time.Second); len(got) > 0 {
			t.Errorf("another page is served: %v", got)
		}
		if got := readFeed(s, tokens[token.Operator], time.Second); len(got) == 0 {
			t.Error("an operator's page is refused")
		}
		open.Wait()
		if got := s.pages.Load(); got != 0 {
			t.Errorf("%d pages are left", got)
		}
	})
}
