package dashboard_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/dashboard"
)

// fakeNode serves the page with a test's own data: what a real cluster shows rarely, or only for a moment.
type fakeNode struct {
	*httptest.Server
	out chan string // for the stream of the page

	unfinished atomic.Int64 // answers with words.js that break off

	mu      sync.Mutex
	view    apiv1.DashboardView
	answers map[string]any // by method and path
	changes []change
	refusal string // of the stream
}

// change is a call of the page that is no GET.
type change struct {
	Call string // method and path
	Body string
}

func startFakeNode(t *testing.T) *fakeNode {
	t.Helper()
	f := &fakeNode{out: make(chan string, 16), answers: map[string]any{}}
	f.view = apiv1.DashboardView{
		Caller: apiv1.Caller{Name: "ann", Role: "operator"}, NodeID: "n1", At: time.Now(),
		Cluster: apiv1.Cluster{
			ClusterID: "c-1", ClusterName: "harbour", Generation: 1, Term: 7, LeaderID: "n1", Revision: 5,
			AutoFailover: true, ObservedBy: "n1", Quorum: apiv1.Quorum{Voters: 3, Needed: 2, Healthy: 3, Tolerates: 1},
		},
	}
	for _, id := range []string{"n1", "n2", "n3"} {
		state := map[bool]string{true: "leader", false: "follower"}[id == "n1"]
		f.view.Cluster.Members = append(f.view.Cluster.Members, apiv1.Member{
			ID: id, Suffrage: "voter", Priority: 100, Eligible: true, Lifecycle: "active", Healthy: true,
			Reasons: []string{}, State: state,
		})
		f.view.Nodes = append(f.view.Nodes, apiv1.Status{
			NodeID: id, State: state, LeaderID: "n1", Lifecycle: "active", StartedAt: time.Now(), Warnings: []string{},
		})
	}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/dashboard/")
	if r.URL.Path == "/" {
		name = "index.html"
	}
	if data, media, ok := dashboard.File(name); ok {
		w.Header().Set("Content-Type", media)
		if name == "words.js" && f.unfinished.Add(-1) >= 0 {
			w.Header().Set("Content-Length", strconv.Itoa(2*len(data)))
		}
		_, _ = w.Write(data)
		return
	}
	if r.URL.Path == apiv1.PathFeed {
		f.stream(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	defer f.mu.Unlock()
	call := r.Method + " " + r.URL.EscapedPath()
	if r.Method != http.MethodGet {
		f.changes = append(f.changes, change{call, string(body)})
	}
	answer, ok := f.answers[call]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// stream sends the view, and then what the test pushes, or four times a second that nothing has changed.
func (f *fakeNode) stream(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	first, refusal := event(apiv1.EventView, f.view), f.refusal
	f.mu.Unlock()
	if refusal != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]string{"detail": refusal})
		return
	}
	w.Header().Set("Content-Type", apiv1.TypeEventStream)
	same := time.NewTicker(250 * time.Millisecond)
	defer same.Stop()
	for text := first; ; {
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case text = <-f.out:
		case <-same.C:
			text = event(apiv1.EventSame, apiv1.DashboardSame{At: time.Now()})
		case <-r.Context().Done():
			return
		}
	}
}

func event(name string, v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // of a type of this package's tests
	}
	return fmt.Sprintf("event: %s\ndata: %s\n\n", name, data)
}

// show changes the view, and sends it after what comes before it in one piece.
func (f *fakeNode) show(change func(v *apiv1.DashboardView), before ...string) {
	f.mu.Lock()
	change(&f.view)
	f.view.At = time.Now()
	text := event(apiv1.EventView, f.view)
	f.mu.Unlock()
	f.out <- strings.Join(before, "") + text
}

// answer sets the answer to a call.
func (f *fakeNode) answer(call string, v any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[call] = v
}

// changed returns the changes since the last call.
func (f *fakeNode) changed() []change {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.changes
	f.changes = nil
	return all
}
