package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// memNet is a network in memory, so that tests run in virtual time.
type memNet struct {
	mu   sync.Mutex
	open map[string]chan net.Conn // accept queues
}

func newMemNet() *memNet { return &memNet{open: map[string]chan net.Conn{}} }

// dial fails immediately if nothing listens at the address.
func (m *memNet) dial(ctx context.Context, _, address string) (net.Conn, error) {
	m.mu.Lock()
	accept := m.open[address]
	m.mu.Unlock()
	if strings.HasPrefix(address, "blackhole") {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if accept == nil {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: syscall.ECONNREFUSED}
	}
	mine, theirs := net.Pipe()
	select {
	case accept <- theirs:
		return mine, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memListener struct {
	m       *memNet
	address string
	accept  chan net.Conn
	done    chan struct{}
	once    sync.Once
}

func (m *memNet) listen(address string) *memListener {
	l := &memListener{m: m, address: address, accept: make(chan net.Conn, 64), done: make(chan struct{})}
	m.mu.Lock()
	m.open[address] = l.accept
	m.mu.Unlock()
	return l
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		l.m.mu.Lock()
		delete(l.m.open, l.address)
		l.m.mu.Unlock()
		close(l.done)
	})
	return nil
}

func (l *memListener) Addr() net.Addr { return &net.TCPAddr{} }

// fakeNode is one node of a fake cluster, at http://NAME:1.
type fakeNode struct {
	name     string
	server   *http.Server
	fc       *fakeCluster
	handle   http.HandlerFunc // replaces the cluster's handler if not nil
	paused   chan struct{}    // not nil: the node is hung until it is closed
	received []*http.Request  // except /leader and /v1/cluster
	streams  int              // requests of leader streams
	dead     bool
	cutOff   bool          // knows no leader
	stale    *apiv1.Leader // its response to GET /leader, if not nil
}

func (n *fakeNode) address() string { return n.name + ":1" }

// fakeCluster behaves like a cluster: any node accepts a write, and forwards it to the leader or holds it while
// there is none.
type fakeCluster struct {
	t   *testing.T
	net *memNet

	mu       sync.Mutex
	nodes    map[string]*fakeNode
	leader   string
	term     uint64
	changed  chan struct{}
	revision uint64
	values   map[string]string
	applied  int
	answers  map[string]apiv1.PutResult // by idempotency key
	hold     time.Duration
	lossRate float64 // fraction of applied writes whose response is lost
	streams  bool    // the nodes stream the leader
	oneEvent bool    // each stream of the leader ends after its first event
	probes   int     // number of GET /leader and /v1/cluster requests at all nodes
}

func newFakeCluster(t *testing.T, names ...string) *fakeCluster {
	fc := &fakeCluster{
		t: t, net: newMemNet(), nodes: map[string]*fakeNode{}, values: map[string]string{},
		answers: map[string]apiv1.PutResult{}, changed: make(chan struct{}), hold: 600 * time.Millisecond,
	}
	for _, name := range names {
		n := &fakeNode{name: name, fc: fc}
		n.server = &http.Server{Handler: http.HandlerFunc(n.serve)}
		fc.nodes[name] = n
		l := fc.net.listen(n.address())
		go n.server.Serve(l)
	}
	fc.elect(names[0])
	return fc
}

func (fc *fakeCluster) close() {
	for name := range fc.nodes {
		fc.resume(name)
		fc.kill(name)
	}
}

func (fc *fakeCluster) elect(name string) {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	fc.leader = name
	fc.term++
	close(fc.changed)
	fc.changed = make(chan struct{})
}

// depose leaves the cluster without a leader.
func (fc *fakeCluster) depose() {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	fc.leader = ""
}

// kill breaks all connections of a node and refuses new ones.
func (fc *fakeCluster) kill(name string) {
	fc.mu.Lock()
	fc.nodes[name].dead = true
	fc.mu.Unlock()
	fc.nodes[name].server.Close()
}

// hang makes a node accept connections and requests without responding.
func (fc *fakeCluster) hang(name string) {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	fc.nodes[name].paused = make(chan struct{})
}

// resume ends a hang. Requests received meanwhile get no response.
func (fc *fakeCluster) resume(name string) {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	if n := fc.nodes[name]; n.paused != nil {
		close(n.paused)
		n.paused = nil
	}
}

// setCutOff makes a node know no leader, or know it again.
func (fc *fakeCluster) setCutOff(name string, off bool) {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	fc.nodes[name].cutOff = off
}

func (fc *fakeCluster) requests(name string) []*http.Request {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	return append([]*http.Request(nil), fc.nodes[name].received...)
}

func (fc *fakeCluster) background() int {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	return fc.probes
}

func (fc *fakeCluster) client(names ...string) *Client {
	var endpoints []string
	for _, name := range names {
		endpoints = append(endpoints, name+":1")
	}
	c, err := New(Config{Endpoints: endpoints, Dial: fc.net.dial})
	if err != nil {
		fc.t.Fatal(err)
	}
	return c
}

func (n *fakeNode) serve(w http.ResponseWriter, r *http.Request) {
	fc := n.fc
	body, err := io.ReadAll(r.Body) // the server notices a disconnected caller only after reading the body
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	fc.mu.Lock()
	paused, handle := n.paused, n.handle
	background := r.URL.Path == apiv1.PathLeader || r.URL.Path == apiv1.PathCluster ||
		r.URL.Path == apiv1.PathLeaderWatch
	switch {
	case r.URL.Path == apiv1.PathLeaderWatch:
		n.streams++
	case background:
		fc.probes++
	default:
		n.received = append(n.received, r.Clone(context.Background()))
	}
	fc.mu.Unlock()
	if paused != nil {
		select {
		case <-paused:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
	if handle != nil && !background {
		handle(w, r)
		return
	}
	switch {
	case r.URL.Path == apiv1.PathLeader:
		n.serveLeader(w)
	case r.URL.Path == apiv1.PathCluster:
		n.serveCluster(w)
	case r.URL.Path == apiv1.PathLeaderWatch:
		n.serveLeaderWatch(w, r)
	case strings.HasPrefix(r.URL.Path, apiv1.PathKV):
		n.serveKV(w, r)
	default:
		problem(w, cluster.Errorf(cluster.CodeBadRequest, "no such path"))
	}
}

func (n *fakeNode) serveLeader(w http.ResponseWriter) {
	fc := n.fc
	fc.mu.Lock()
	leader, term, stale, cutOff := fc.leader, fc.term, n.stale, n.cutOff
	fc.mu.Unlock()
	if stale != nil {
		reply(w, stale)
		return
	}
	if leader == "" || cutOff {
		problem(w, cluster.Errorf(cluster.CodeNoLeader, "none"))
		return
	}
	reply(w, apiv1.Leader{LeaderID: leader, LeaderAddress: leader + ":1", Term: term, ObservedBy: n.name})
}

// serveLeaderWatch streams the leader, if the nodes of the test do.
func (n *fakeNode) serveLeaderWatch(w http.ResponseWriter, r *http.Request) {
	fc := n.fc
	fc.mu.Lock()
	streams := fc.streams
	fc.mu.Unlock()
	if !streams {
		problem(w, cluster.Errorf(cluster.CodeNotFound, "no such path"))
		return
	}
	w.Header().Set("Content-Type", apiv1.TypeEventStream)
	for {
		fc.mu.Lock()
		l := apiv1.Leader{LeaderID: fc.leader, LeaderAddress: fc.leader + ":1", Term: fc.term, ObservedBy: n.name}
		changed, last := fc.changed, fc.oneEvent
		fc.mu.Unlock()
		data, err := json.Marshal(l)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", apiv1.EventLeader, data)
		if http.NewResponseController(w).Flush() != nil || last {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (n *fakeNode) serveCluster(w http.ResponseWriter) {
	fc := n.fc
	fc.mu.Lock()
	defer fc.mu.Unlock()
	var cl apiv1.Cluster
	if !n.cutOff {
		cl.LeaderID = fc.leader
	}
	for name, x := range fc.nodes {
		cl.Members = append(cl.Members, apiv1.Member{ID: name, HTTPAddress: x.address()})
	}
	reply(w, cl)
}

// toLeader waits until there is a leader that is up and not hung.
func (n *fakeNode) toLeader(r *http.Request) error {
	fc := n.fc
	timer := time.NewTimer(fc.hold)
	defer timer.Stop()
	for {
		fc.mu.Lock()
		leader, changed := fc.leader, fc.changed
		ok, hung := leader != "" && !fc.nodes[leader].dead, leader != "" && fc.nodes[leader].paused != nil
		fc.mu.Unlock()
		switch {
		case hung: // forwarded to the hung leader, where it stays
			<-r.Context().Done()
			return r.Context().Err()
		case ok:
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return cluster.Errorf(cluster.CodeNoLeader, "none")
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

func (n *fakeNode) serveKV(w http.ResponseWriter, r *http.Request) {
	fc := n.fc
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if err := n.toLeader(r); err != nil {
		problem(w, err)
		return
	}
	key := strings.TrimPrefix(r.URL.Path, apiv1.PathKVPrefix)
	fc.mu.Lock()
	defer fc.mu.Unlock()
	if fc.leader != n.name {
		w.Header().Set(apiv1.HeaderLeader, fc.leader+":1")
	}
	if r.Method == http.MethodGet {
		v, ok := fc.values[key]
		if !ok {
			e := cluster.Errorf(cluster.CodeBadRequest, "no such key")
			e.Status = http.StatusNotFound
			problem(w, e)
			return
		}
		w.Header().Set(apiv1.HeaderRevision, fmt.Sprint(fc.revision))
		io.WriteString(w, v)
		return
	}
	idem := r.Header.Get(apiv1.HeaderIdempotencyKey)
	res, again := fc.answers[idem]
	if !again || idem == "" {
		fc.revision++
		fc.applied++
		fc.values[key] = string(body)
		res = apiv1.PutResult{Key: key, Revision: fc.revision, Created: true}
		fc.answers[idem] = res
	}
	if rand.Float64() < fc.lossRate {
		panic(http.ErrAbortHandler)
	}
	reply(w, res)
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", apiv1.TypeJSON)
	json.NewEncoder(w).Encode(v)
}

func problem(w http.ResponseWriter, err error) {
	var e *cluster.Error
	if !errors.As(err, &e) {
		return
	}
	w.Header().Set("Content-Type", apiv1.TypeProblem)
	w.WriteHeader(e.HTTPStatus())
	json.NewEncoder(w).Encode(apiv1.Problem{Title: e.Code.Title(), Status: e.HTTPStatus(), Detail: e.Detail, Code: int(
		e.Code,
	), Name: e.Code.Name(), Retryable: e.Retryable()})
}
