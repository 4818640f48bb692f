package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
	"northstar/state"
)

// Reads is this node's applied state, with barriers that make it recent enough. Methods may be called by any
// goroutine; their errors are *cluster.Error.
type Reads interface {
	// ReadBarrier returns once View holds every write acknowledged before the call.
	ReadBarrier(ctx context.Context) error
	// LeaseReadBarrier is ReadBarrier without a round of messages while a lease is valid.
	LeaseReadBarrier(ctx context.Context) error
	View() *state.View
	Feed() *state.Feed
	RoleFeed() *state.Feed
	NodeFeed() *state.Feed
	// Status is cheap.
	Status() cluster.NodeStatus
	// Peers returns the state of the other servers.
	Peers() []cluster.PeerStatus
}

func getKey(c *request) error {
	if err := state.CheckKey(c.param); err != nil {
		return err
	}
	return c.readKeys(c.writeValue)
}

// writeValue answers with the value of a key in v, or in a later view if it has to wait for other answers.
func (c *request) writeValue(v *state.View) error {
	for {
		item, ok := v.Get(c.param)
		if !ok {
			return problem.Status(http.StatusNotFound, "key: %q does not exist", c.param)
		}
		tag := etag(item.Revision)
		h := c.Header()
		h["Etag"] = []string{tag}
		h["X-Northstar-Revision"] = []string{tag[1 : len(tag)-1]}
		if noneMatch(c.r.Header["If-None-Match"], tag) {
			h["Cache-Control"] = noStore
			c.WriteHeader(http.StatusNotModified)
			return nil
		}
		size := len(item.Value)
		err := c.takeAnswer(size)
		if err == nil {
			return c.respond(http.StatusOK, typeBinary, item.Value)
		}
		delete(h, "Etag")
		delete(h, "X-Northstar-Revision")
		v, item = nil, state.Item{} // nothing old stays in memory meanwhile
		if err := c.awaitAnswer(c.ctx, size, err); err != nil {
			return err
		}
		v = c.s.reads.View()
	}
}

// read runs answer on a view that satisfies ?consistency=, here or at the leader.
func (c *request) read(answer func(*state.View) error) error {
	return c.readAfter(c.s.reads.ReadBarrier, answer)
}

// readKeys is read for what every node can answer.
func (c *request) readKeys(answer func(*state.View) error) error {
	return c.readAfter(c.keyBarrier, answer)
}

// keyBarrier is the read barrier for keys. A node that does not lead asks the leader for the read index only. Without
// an answer the whole request goes to the leader.
func (c *request) keyBarrier(ctx context.Context) error {
	leader := c.s.leader.Current().ID
	if leader != "" && leader != c.s.deps.Node.ID && c.s.deps.Call != nil && !c.forwarded && !c.redirect {
		if c.s.calls.TryReadIndex(ctx) == nil {
			return nil
		}
	}
	return c.s.reads.ReadBarrier(ctx)
}

func (c *request) readAfter(barrier func(context.Context) error, answer func(*state.View) error) error {
	level := c.query.Get("consistency")
	maxStale, err := c.maxStale(level)
	switch {
	case err != nil:
		return err
	case !c.query.Has("consistency"), level == apiv1.Linearizable:
	case level == apiv1.Lease:
		barrier = c.s.reads.LeaseReadBarrier
	case level == apiv1.Stale:
		st := c.s.reads.Status()
		if maxStale >= 0 && !currentWithin(st, maxStale) {
			break
		}
		if err := st.CheckCaughtUp(); err != nil {
			return err
		}
		c.s.calls.NoteLocalRead()
		c.setStaleness(st)
		return answer(c.s.reads.View())
	default:
		return problem.BadRequest("consistency: must be %s, %s or %s (got %q)", apiv1.Linearizable, apiv1.Lease,
			apiv1.Stale, level)
	}
	err = c.onLeader(c.ctx, forward.Request{Idempotent: true, Local: barrier})
	var refusal *cluster.Error
	switch {
	case err == nil:
		return answer(c.s.reads.View())
	case maxStale >= 0 && errors.As(err, &refusal) && refusal.Code == cluster.CodeNoLeader:
		tooStale := *refusal
		tooStale.Detail = fmt.Sprintf("max_stale_ms: this node's state may be older than %d ms, and no leader answers: %s",
			maxStale.Milliseconds(), refusal.Detail)
		return &tooStale
	}
	return err
}

// noneMatch reports whether If-None-Match names tag, or "*". It is weak, because a compressing proxy weakens tags.
func noneMatch(values []string, tag string) bool {
	for _, v := range values {
		for one := range strings.SplitSeq(v, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// maxListBytes limits the values of one page. A page may be shorter than ?limit=, and names the next one.
const maxListBytes = 4 << 20

func listKeys(c *request) error {
	limit, err := c.queryLimit(apiv1.MaxListLimit)
	if err != nil {
		return err
	}
	prefix, err := c.keyParam("prefix")
	if err != nil {
		return err
	}
	after, err := c.keyParam("after")
	if err != nil {
		return err
	}
	return c.readKeys(func(v *state.View) error {
		for {
			items, next := listPage(v, prefix, after, limit)
			revision, size := v.Revision(), pageBytes(items)
			err := c.takeAnswer(size)
			if err == nil {
				return c.writeKeys(revision, items, next)
			}
			v, items = nil, nil // nothing old stays in memory meanwhile
			if err := c.awaitAnswer(c.ctx, size, err); err != nil {
				return err
			}
			v = c.s.reads.View()
		}
	})
}

// listPage returns a page of at most limit items and maxListBytes.
func listPage(v *state.View, prefix, after string, limit int) (items []state.Item, next string) {
	items, next = v.List(prefix, after, limit)
	size := 0
	for i, it := range items {
		if size += len(it.Value); i > 0 && size > maxListBytes {
			clear(items[i:])
			return items[:i], items[i-1].Key
		}
	}
	return items, next
}

// itemBytes is what an item of a page takes besides its key and its value.
const itemBytes = 128

func pageBytes(items []state.Item) (size int) {
	for _, it := range items {
		size += itemBytes + len(it.Key) + len(it.Value)
	}
	return size
}

// keyParam reads a parameter that is a key or the prefix of one.
func (c *request) keyParam(name string) (string, error) {
	v := c.query.Get(name)
	if len(v) > apiv1.MaxKeyBytes {
		return "", problem.BadRequest("%s: must be at most %d bytes (got %d)", name, apiv1.MaxKeyBytes, len(v))
	}
	if !utf8.ValidString(v) {
		return "", problem.BadRequest("%s: not valid UTF-8", name)
	}
	return v, nil
}

// writeKeys answers with apiv1.List. It forgets each item when it is written.
func (c *request) writeKeys(revision uint64, items []state.Item, next string) error {
	w := listWriter{c: c}
	w.buf = strconv.AppendUint(append(w.buf, `{"revision":`...), revision, 10)
	w.buf = append(w.buf, `,"items":[`...)
	for i, it := range items {
		items[i] = state.Item{}
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.buf = appendJSONString(append(w.buf, `{"key":`...), it.Key)
		w.buf = append(w.buf, `,"value":"`...)
		if !w.base64(it.Value) {
			return c.ignoreWriteError(w.err)
		}
		w.buf = strconv.AppendUint(append(w.buf, `","revision":`...), it.Revision, 10)
		w.buf = strconv.AppendUint(append(w.buf, `,"create_revision":`...), it.CreateRevision, 10)
		w.buf = strconv.AppendUint(append(w.buf, `,"version":`...), it.Version, 10)
		w.buf = append(w.buf, '}')
	}
	return w.end(next)
}

// watchKeys serves GET /v1/watch on any node, from this node's history.
func watchKeys(c *request) error {
	prefix, err := c.keyParam("prefix")
	if err != nil {
		return err
	}
	return c.follow(c.s.reads.Feed(), prefix, encodeChange)
}

// follow streams the changes of feed whose keys have prefix, from the revision that the client requests.
func (c *request) follow(feed *state.Feed, prefix string, encode func(*stream.Events, *state.Change) error) error {
	since, err := c.watchStart()
	if err != nil {
		return err
	}
	cursor, err := feed.Cursor(prefix, since)
	if err != nil {
		return err
	}
	c.Header()["X-Northstar-Revision"] = []string{strconv.FormatUint(since, 10)}
	watch, done := c.s.watchers.add()
	defer done()
	return c.stream(func(ctx context.Context, e *stream.Events) error {
		watch.before.Store(0) // what was added has been sent
		before := *cursor
		changes, err := cursor.Next(ctx, watchBatchSize)
		if err != nil { // nothing matched since: a watch that continues elsewhere needs no history up to here
			e.Progress(cursor.Seen())
			return err
		}
		watch.before.Store(changes[0].Revision - 1)
		size := changedBytes(changes)
		if err := c.takeAnswer(size); err != nil {
			*cursor, changes = before, nil // nothing old stays in memory meanwhile
			return c.awaitAnswer(ctx, size, nil)
		}
		defer c.giveAnswer()
		for i := range changes {
			if err := encode(e, &changes[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func changedBytes(changes []state.Change) (size int) {
	for i := range changes {
		size += len(changes[i].Key) + len(changes[i].Value)
		if prev := changes[i].Prev; prev != nil { // it stays in memory with the change
			size += len(prev.Value)
		}
	}
	return size
}

// watchBatchSize is the maximum number of changes in one batch: a slow client keeps them in memory.
const watchBatchSize = 16

// stream answers with the events that next adds, until the client is gone or this node is stopping.
func (c *request) stream(next func(context.Context, *stream.Events) error) error {
	e, err := stream.Start(c, c.s.problem)
	if err == nil {
		err = e.Run(c.r.Context(), c.s.stopping, func(ctx context.Context) error { return next(ctx, e) })
	}
	return c.ignoreWriteError(err)
}

// watchStart returns the revision after which a watch starts: the client's last, the requested one, or the newest.
func (c *request) watchStart() (uint64, error) {
	name, value := "Last-Event-ID", c.r.Header.Get("Last-Event-ID")
	if value == "" {
		name, value = "since", c.query.Get("since")
	}
	if value == "" {
		if c.query.Has("since") {
			return 0, problem.BadRequest("since: must be a revision (got nothing)")
		}
		// A state that lacks entries of this node's own log would show old changes as new ones.
		if err := c.s.reads.Status().CheckCaughtUp(); err != nil {
			return 0, err
		}
		return c.newestRevision(), nil
	}
	rev, err := strconv.ParseUint(value, 10, 53)
	if err != nil {
		return 0, problem.BadRequest("%s: must be a revision (got %q)", name, value)
	}
	return rev, nil
}

// newestRevision returns at least the revision of every write acknowledged before the call: a watch from now on must
// not show them. If the leader does not respond, it is this node's revision.
func (c *request) newestRevision() uint64 {
	ctx, cancel := context.WithTimeout(c.r.Context(), 2*c.s.deps.TimeoutMax)
	defer cancel()
	err := c.keyBarrier(ctx)
	own, leader := c.s.reads.View().Revision(), c.s.reads.Status().LeaderID
	if err == nil || leader == "" {
		return own
	}
	// This node may be behind. A response that others wait for may be older than this call.
	body, err := c.fetchView(ctx, leader)
	if err != nil {
		c.s.logger.Debug("leader unreachable: starting the watch at this node's revision", "leader", leader, "error", err)
		return own
	}
	var view apiv1.Cluster
	if err := json.Unmarshal(body, &view); err != nil {
		return own
	}
	return max(own, view.Revision)
}

// encodeChange adds a change. The changes of one transaction share a revision: only the last one has it as its id, so
// that a client which continues after an id misses none of them.
func encodeChange(e *stream.Events, ch *state.Change) error {
	var room [256]byte
	revision := strconv.FormatUint(ch.Revision, 10)
	id := ""
	if ch.Last {
		id = revision
	}
	head := append(appendJSONString(append(room[:0], `{"key":`...), ch.Key), `,"value":"`...)
	tail := append(append([]byte(`","revision":`), revision...), '}')
	return e.LargeEvent(id, changeName(ch), head, ch.Value, tail)
}

func changeName(ch *state.Change) string {
	if ch.Deleted {
		return apiv1.EventDelete
	}
	return apiv1.EventPut
}
