package proc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"northstar/chaos/check"
	"northstar/client"
	"northstar/cluster"
)

// chaosClients are the users of the cluster for one segment.
type chaosClients struct {
	s       *suite
	ctx     context.Context
	cancel  context.CancelFunc
	quit    chan struct{} // closed when no new operation is to begin
	working sync.WaitGroup
	library *client.Client

	history   check.History
	revisions *check.Revisions
	watchers  []*chaosWatcher
	watching  sync.WaitGroup
	roles     tenures
	operators []*chaosOperator
	holders   *chaosHolders
}

const (
	rawUsers     = 3 // over plain HTTP, at any node
	libraryUsers = 2 // with the Go client
	chaosKeys    = 3 // for each fault
	opLimit      = 3 * time.Second
)

func (s *suite) startClients() *chaosClients {
	c := &chaosClients{s: s, quit: make(chan struct{}), revisions: check.NewRevisions(s.violated)}
	c.ctx, c.cancel = context.WithCancel(s.t.Context())
	var endpoints []string
	for _, n := range s.cluster.Nodes {
		endpoints = append(endpoints, n.HTTP)
	}
	var err error
	if c.library, err = client.New(client.Config{Endpoints: endpoints, Timeout: opLimit}); err != nil {
		s.t.Fatal(err)
	}
	since := mustPut(s.t, s.cluster, "segment", "begins").Revision
	for i := range rawUsers + libraryUsers {
		u := &chaosUser{c: c, id: i, rand: rand.New(rand.NewPCG(s.seed, uint64(100*s.key+i))), seen: map[string]seen{}}
		u.server = rawServer{s, u.rand}
		if i >= rawUsers {
			u.server = libraryServer{c.library}
		}
		c.working.Go(u.run)
	}
	for i, follow := range []func(context.Context, *chaosWatcher) error{c.followRaw, c.followLibrary} {
		w := &chaosWatcher{watch: check.Watch{Name: fmt.Sprintf("watch %d", i+1), From: since}}
		c.watchers = append(c.watchers, w)
		c.watching.Go(func() { c.watch(w, follow) })
	}
	c.startCampaigners()
	c.startOperators()
	c.startHolders()
	return c
}

// stop ends the users, waits until the watches have seen all, and ends them.
func (c *chaosClients) stop() {
	close(c.quit)
	c.working.Wait()
	last := c.revisions.Acknowledged()
	for deadline := time.Now().Add(soon); time.Now().Before(deadline); pause(20 * time.Millisecond) {
		behind := ""
		for _, w := range c.watchers {
			if at := w.seen(); at < last {
				behind = fmt.Sprintf("%s has seen revision %d of %d", w.watch.Name, at, last)
			}
		}
		if behind == "" {
			break
		}
		if time.Now().After(deadline.Add(-50 * time.Millisecond)) {
			c.s.violated(check.Violation{Invariant: check.WatchOrder, Detail: behind})
		}
	}
	c.cancel()
	c.watching.Wait()
	c.library.Close()
}

// over reports whether the users are to end, after a pause.
func (c *chaosClients) over(d time.Duration) bool {
	select {
	case <-c.quit:
		return true
	case <-time.After(d):
		return false
	}
}

// chaosUser reads and writes, one operation at a time.
type chaosUser struct {
	c      *chaosClients
	id     int
	n      int
	rand   *rand.Rand
	server server
	seen   map[string]seen
}

type seen struct {
	value    string
	revision uint64
}

// server is the cluster as a user reaches it. What each gives is an outcome; ""
// is known not to have happened.
type server interface {
	read(ctx context.Context, key string) (seen, check.Outcome, error)
	write(ctx context.Context, key, value string, o client.WriteOptions) (uint64, check.Outcome, error)
	remove(ctx context.Context, key string, o client.WriteOptions) (uint64, check.Outcome, error)
}

func (u *chaosUser) run() {
	for !u.c.over(time.Duration(u.rand.IntN(25)) * time.Millisecond) {
		u.operate()
	}
}

func (u *chaosUser) operate() {
	s := u.c.s
	s.mu.Lock()
	key := fmt.Sprintf("k%d-%d", s.key, u.rand.IntN(chaosKeys))
	s.mu.Unlock()
	u.n++
	last, known := u.seen[key]
	value := fmt.Sprintf("u%d-%d", u.id, u.n)
	op := check.Op{Client: u.id, Key: key, Begin: s.now()}
	begin := u.c.revisions.Begin()
	ctx, cancel := context.WithTimeout(u.c.ctx, opLimit)
	defer cancel()
	var o client.WriteOptions
	var revision uint64
	var err error
	switch x := u.rand.Float64(); {
	case x < 0.4:
		var got seen
		op.Kind = check.Get
		got, op.Outcome, err = u.server.read(ctx, key)
		op.Value, value, revision = got.value, got.value, got.revision
	case x < 0.7 || !known || last.value == "":
		op.Kind, op.Value = check.Put, value
		revision, op.Outcome, err = u.server.write(ctx, key, value, o)
	case x < 0.85:
		op.Kind, op.Value, op.Expect, o.IfRevision = check.CAS, value, last.value, last.revision
		revision, op.Outcome, err = u.server.write(ctx, key, value, o)
	case x < 0.92:
		op.Kind, op.Value, o.IfAbsent = check.Create, value, true
		revision, op.Outcome, err = u.server.write(ctx, key, value, o)
	default:
		op.Kind, op.Expect, o.IfRevision, value = check.Delete, last.value, last.revision, ""
		revision, op.Outcome, err = u.server.remove(ctx, key, o)
	}
	op.End = s.now()
	if err != nil {
		op.Note = err.Error()
	}
	if op.Outcome == "" || op.Kind == check.Get && op.Outcome != check.Done {
		return
	}
	if op.Outcome == check.Done {
		u.seen[key] = seen{value, revision}
	}
	if op.Outcome == check.Done && op.Kind != check.Get {
		op.Revision = revision
		u.c.revisions.Wrote(op.String(), begin, revision)
		s.mu.Lock()
		s.acks = append(s.acks, op.End)
		s.mu.Unlock()
	}
	u.c.history.Add(op)
}

// rawServer is any node, by plain HTTP.
type rawServer struct {
	s    *suite
	rand *rand.Rand
}

func (r rawServer) do(ctx context.Context, method, path string, body []byte, header ...string) (answer, check.Outcome, error) {
	a, err := do(ctx, r.s.cluster.Nodes[r.rand.IntN(len(r.s.cluster.Nodes))], method, path, body, header...)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return a, "", err
	case err != nil:
		return a, check.Unknown, err
	case a.Status == http.StatusOK:
		return a, check.Done, nil
	case a.Status == http.StatusPreconditionFailed, a.Status == http.StatusNotFound, a.Code == int(cluster.CodeFenced):
		return a, check.Refused, nil
	}
	err = fmt.Errorf("%d %s", a.Status, a.Body)
	switch cluster.Code(a.Code) {
	case cluster.CodeOutcomeUnknown:
		return a, check.Unknown, err
	case cluster.CodeNoLeader, cluster.CodeBusy, cluster.CodeReadOnly, cluster.CodeSplitBrain:
		return a, "", err
	}
	r.s.violated(check.Violation{Invariant: check.OnlyDocumentedErrors, Detail: fmt.Sprintf("%s %s: %v", method, path, err)})
	return a, check.Unknown, err
}

func (r rawServer) read(ctx context.Context, key string) (seen, check.Outcome, error) {
	a, o, err := r.do(ctx, http.MethodGet, "/v1/kv/"+key, nil)
	switch o {
	case check.Refused: // it does not exist
		return seen{}, check.Done, nil
	case check.Done:
		return seen{string(a.Body), a.Revision}, o, nil
	}
	return seen{}, o, err
}

func (r rawServer) write(ctx context.Context, key, value string, w client.WriteOptions) (uint64, check.Outcome, error) {
	a, o, err := r.do(ctx, http.MethodPut, "/v1/kv/"+key, []byte(value), headers(w)...)
	return a.Revision, o, err
}

func (r rawServer) remove(ctx context.Context, key string, w client.WriteOptions) (uint64, check.Outcome, error) {
	a, o, err := r.do(ctx, http.MethodDelete, "/v1/kv/"+key, nil, headers(w)...)
	var done struct {
		Revision uint64 `json:"revision"`
	}
	if o == check.Done {
		err = json.Unmarshal(a.Body, &done)
	}
	return done.Revision, o, err
}

func headers(o client.WriteOptions) (h []string) {
	if o.IfRevision != 0 {
		h = append(h, "If-Match", strconv.Quote(strconv.FormatUint(o.IfRevision, 10)))
	}
	if o.IfAbsent {
		h = append(h, "If-None-Match", "*")
	}
	if o.Fence != nil {
		h = append(h, "X-Northstar-Fence", fmt.Sprintf("%s=%d", o.Fence.Role, o.Fence.Token))
	}
	return h
}

// libraryServer is the cluster through the Go client.
type libraryServer struct{ c *client.Client }

func outcomeOf(err error) check.Outcome {
	var e *client.Error
	switch {
	case err == nil:
		return check.Done
	case errors.Is(err, client.ErrConditionFailed), errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrFenced):
		return check.Refused
	case errors.As(err, &e) && e.Retry:
		return ""
	}
	return check.Unknown
}

func (l libraryServer) read(ctx context.Context, key string) (seen, check.Outcome, error) {
	e, err := l.c.Get(ctx, key, client.Linearizable)
	if errors.Is(err, client.ErrNotFound) {
		return seen{}, check.Done, nil
	}
	return seen{string(e.Value), e.Revision}, outcomeOf(err), err
}

func (l libraryServer) write(ctx context.Context, key, value string, o client.WriteOptions) (uint64, check.Outcome, error) {
	r, err := l.c.Put(ctx, key, []byte(value), o)
	return r.Revision, outcomeOf(err), err
}

func (l libraryServer) remove(ctx context.Context, key string, o client.WriteOptions) (uint64, check.Outcome, error) {
	r, err := l.c.Delete(ctx, key, o)
	return r.Revision, outcomeOf(err), err
}

// chaosWatcher follows all changes.
type chaosWatcher struct {
	mu    sync.Mutex
	watch check.Watch
}

func (w *chaosWatcher) seen() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watch.LastRevision()
}

func (w *chaosWatcher) add(c check.Change) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watch.Add(c)
}

// errOrder is for a watch that broke its promise.
type errOrder string

func (e errOrder) Error() string { return string(e) }

func (c *chaosClients) watch(w *chaosWatcher, follow func(context.Context, *chaosWatcher) error) {
	for c.ctx.Err() == nil {
		err := follow(c.ctx, w)
		var order errOrder
		if errors.As(err, &order) {
			c.s.violated(check.Violation{Invariant: check.WatchOrder, Detail: string(order)})
			return
		}
		pause(10 * time.Millisecond)
	}
}

// followLibrary watches with the Go client, which resumes on its own.
func (c *chaosClients) followLibrary(ctx context.Context, w *chaosWatcher) error {
	for ch, err := range c.library.Watch(ctx, "", client.WatchOptions{Since: w.seen()}) {
		if errors.Is(err, client.ErrCompacted) {
			return errOrder(fmt.Sprintf("%s: %v", w.watch.Name, err))
		}
		if err != nil {
			return err
		}
		if why := w.add(check.Change{Revision: ch.Revision, Key: ch.Key, Value: string(ch.Value)}); why != "" {
			return errOrder(why)
		}
	}
	return nil
}

// followRaw watches one node for a while.
func (c *chaosClients) followRaw(ctx context.Context, w *chaosWatcher) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	n := c.s.cluster.Nodes[rand.IntN(len(c.s.cluster.Nodes))]
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/v1/watch?since=%d", n.HTTP, w.seen()), nil)
	if err != nil {
		return err
	}
	resp, err := testClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusGone {
		return errOrder(fmt.Sprintf("%s: %s says that what is newer than revision %d is gone", w.watch.Name, n.ID, w.seen()))
	}
	lines := bufio.NewScanner(resp.Body)
	event := ""
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		if name == "event" {
			event = value
		}
		if name != "data" || event != "put" && event != "delete" {
			continue
		}
		var ch struct {
			Key      string `json:"key"`
			Value    []byte `json:"value"`
			Revision uint64 `json:"revision"`
		}
		if err := json.Unmarshal([]byte(value), &ch); err != nil {
			return errOrder(fmt.Sprintf("%s: %s sent %q: %v", w.watch.Name, n.ID, value, err))
		}
		if why := w.add(check.Change{Revision: ch.Revision, Key: ch.Key, Value: string(ch.Value)}); why != "" {
			return errOrder(why)
		}
	}
	return lines.Err()
}
