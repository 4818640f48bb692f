package sim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
)

// watcher follows all changes over HTTP, and resumes on any node when its stream
// ends.
type watcher struct {
	sim    *Simulation
	remote *httpClient
	rand   *rand.Rand
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	watch check.Watch
}

func (sim *Simulation) startWatchers() (all []*watcher) {
	for i := range sim.cfg.Watchers {
		name := fmt.Sprintf("w%d", i+1)
		v := &watcher{sim: sim, remote: sim.newRemote(name), rand: rand.New(rand.NewPCG(sim.cfg.Seed, hash(sim.cfg.Seed, name, "watcher", 0))), watch: check.Watch{Name: name}}
		v.ctx, v.cancel = context.WithCancel(sim.ctx)
		v.done.Go(v.run)
		all = append(all, v)
	}
	return all
}

// stop ends the watcher.
func (v *watcher) stop() {
	v.cancel()
	v.done.Wait()
	v.remote.close()
}

// seen is the newest revision that it was shown.
func (v *watcher) seen() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.watch.LastRevision()
}

// check compares what it saw with a history. To be called when it has stopped.
func (v *watcher) check(ops []check.Op) []check.Violation { return check.CheckWatch(&v.watch, ops) }

func (v *watcher) run() {
	for v.ctx.Err() == nil {
		if why := v.follow(v.sim.members[v.rand.IntN(len(v.sim.members))]); why != "" {
			v.sim.violated(check.Violation{Invariant: check.WatchOrder, Detail: why})
			return
		}
		select {
		case <-v.ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// watchTurn is how long a stream is followed: then it goes on at another node.
const watchTurn = 3 * time.Second

// follow follows one node's stream until it ends, and reports what was wrong with
// it.
func (v *watcher) follow(m *member) string {
	ctx, cancel := context.WithTimeout(v.ctx, watchTurn)
	defer cancel()
	url := fmt.Sprintf("http://%s%s?since=%d", httpAddress(m.id), apiv1.PathWatch, v.seen())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	res, err := v.remote.http.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusGone:
		return fmt.Sprintf("%s: %s says that what is newer than revision %d is gone", v.watch.Name, m.id, v.seen())
	default:
		return ""
	}
	return v.take(m, res.Body)
}

// take reads events.
func (v *watcher) take(m *member, stream io.Reader) string {
	lines := bufio.NewScanner(stream)
	var id, event, data string
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "event":
			event = value
		case "data":
			data = value
		case "":
			if why := v.event(m, id, event, data); why != "" {
				return why
			}
			id, event, data = "", "", ""
		}
	}
	return ""
}

func (v *watcher) event(m *member, id, event, data string) string {
	if event != apiv1.EventPut && event != apiv1.EventDelete {
		return ""
	}
	var c apiv1.Change
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		return fmt.Sprintf("%s: %s sent %q: %v", v.watch.Name, m.id, data, err)
	}
	if id != strconv.FormatUint(c.Revision, 10) {
		return fmt.Sprintf("%s: %s sent event %s with revision %d", v.watch.Name, m.id, id, c.Revision)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.watch.Add(check.Change{Revision: c.Revision, Key: c.Key, Value: string(c.Value)})
}
