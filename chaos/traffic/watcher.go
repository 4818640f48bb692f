package traffic

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
)

// Watcher follows all changes, and resumes where its stream ended.
type Watcher struct {
	traffic *Traffic
	// follows one stream to its end; returns what was wrong with it
	follow func(ctx context.Context, w *Watcher) string
	cancel context.CancelFunc
	done   sync.WaitGroup
	close  func()

	mu    sync.Mutex
	watch check.Watch
}

// StartWatchers starts the watchers over HTTP and over the etcd API. They follow revisions newer than since.
func (t *Traffic) StartWatchers(since uint64) {
	for i := range t.cfg.Watchers {
		name := fmt.Sprintf("w%d", i+1)
		m := t.cluster.Machine(name)
		t.AddWatcher(name, since, user{t, m, t.cfg.Rand(name, "watcher", 0)}.followHTTP).close = m.Close
	}
	t.startEtcdWatchers(since)
}

// AddWatcher starts one more watcher.
func (t *Traffic) AddWatcher(name string, since uint64, follow func(ctx context.Context, w *Watcher) string) *Watcher {
	w := &Watcher{traffic: t, follow: follow, watch: check.Watch{Name: name, From: since}, close: func() {}}
	ctx, cancel := context.WithCancel(t.ctx)
	w.cancel = cancel
	w.done.Go(func() { w.run(ctx) })
	t.watchers = append(t.watchers, w)
	return w
}

// StopWatchers stops the watchers, and compares their events with the history.
func (t *Traffic) StopWatchers() (violations []check.Violation) {
	ops := t.History.Ops()
	for _, w := range t.watchers {
		w.cancel()
		w.done.Wait()
		w.close()
		violations = append(violations, check.CheckWatch(&w.watch, ops)...)
	}
	return violations
}

// WatchersBehind names a watcher that has not received all acknowledged changes; "" if there is none.
func (t *Traffic) WatchersBehind() string {
	for _, w := range t.watchers {
		if seen, acked := w.LastRevision(), t.Revisions.Acknowledged(); seen < acked {
			return fmt.Sprintf("%s has seen revision %d, %d was acknowledged", w.watch.Name, seen, acked)
		}
	}
	return ""
}

// LastRevision returns the newest revision that the watcher has received.
func (w *Watcher) LastRevision() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watch.LastRevision()
}

// Resume returns the revision after which the watcher continues on a new stream.
func (w *Watcher) Resume() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watch.Resume()
	return w.watch.LastRevision()
}

// Add records one change, and returns what is wrong with it.
func (w *Watcher) Add(c check.Change) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watch.Add(c)
}

// Compacted returns the violation of a watch that was told that changes are compacted.
func (w *Watcher) Compacted(node string) string {
	return fmt.Sprintf("%s: %s answers that what is newer than revision %d is gone", w.watch.Name, node,
		w.LastRevision())
}

func (w *Watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		if why := w.follow(ctx, w); why != "" {
			w.traffic.cluster.Violated(check.Violation{Invariant: check.WatchOrder, Detail: why})
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// streamTimeout is how long a stream is followed before the watcher switches to another node.
const streamTimeout = 3 * time.Second

// followHTTP follows the streams of nodes; each stream may come from any node.
func (u user) followHTTP(ctx context.Context, w *Watcher) string {
	node := u.cluster.Nodes()[u.anyNode()]
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	url := fmt.Sprintf("http://%s%s?since=%d", node.HTTP, apiv1.PathWatch, w.Resume())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	res, err := u.machine.Client.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
		return w.read(node.ID, res.Body)
	case http.StatusGone:
		return w.Compacted(node.ID)
	}
	return ""
}

// event is one event of a stream.
type event struct{ id, name, data string }

// events returns the events of a stream until it ends.
func events(stream io.Reader) iter.Seq[event] {
	return func(yield func(event) bool) {
		lines := bufio.NewScanner(stream)
		var e event
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				e.data = value
			case "":
				if !yield(e) {
					return
				}
				e = event{}
			}
		}
	}
}

// read reads the events of a stream.
func (w *Watcher) read(node string, stream io.Reader) string {
	for e := range events(stream) {
		if why := w.event(node, e); why != "" {
			return why
		}
	}
	return ""
}

func (w *Watcher) event(node string, e event) string {
	if e.name != apiv1.EventPut && e.name != apiv1.EventDelete {
		return ""
	}
	var c apiv1.Change
	if err := json.Unmarshal([]byte(e.data), &c); err != nil {
		return fmt.Sprintf("%s: %s sent %q: %v", w.watch.Name, node, e.data, err)
	}
	if e.id != "" && e.id != strconv.FormatUint(c.Revision, 10) {
		return fmt.Sprintf("%s: %s sent event %s with revision %d", w.watch.Name, node, e.id, c.Revision)
	}
	return w.Add(check.Change{Revision: c.Revision, Key: c.Key, Value: string(c.Value), More: e.id == ""})
}
