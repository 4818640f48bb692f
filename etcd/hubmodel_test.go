package etcd

import (
	"context"
	"io"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"pgregory.net/rapid"

	"northstar/state"
)

// calledStream is a stream of watches that calls a function for each message.
type calledStream struct {
	grpc.ServerStream
	send func(*pb.WatchResponse)
}

func (c *calledStream) Recv() (*pb.WatchRequest, error) { return nil, io.EOF }

func (c *calledStream) Send(r *pb.WatchResponse) error {
	c.send(r)
	return nil
}

func (c *calledStream) SendMsg(m any) error {
	message, sent := uncounted(m)
	defer sent()
	return c.Send(message.(*pb.WatchResponse))
}

// watchesOf returns a stream of watches that the test serves.
func watchesOf(t *testing.T, s *Server, send func(*pb.WatchResponse)) *watchStream {
	n := s.deps.Node.(*fakeNode)
	ctx := context.WithValue(t.Context(), callKey{}, Call(fakeCall{t.Context(), n}))
	return newWatchStream(ctx, s, &calledStream{send: send}, &n.watches)
}

// watchModel is a node with streams of watches that the test serves step by step, and what their clients got.
type watchModel struct {
	t       *testing.T
	rt      *rapid.T
	node    *fakeNode
	server  *Server
	streams []*modelStream
	changes []state.Change
	ended   bool // nothing changes any more
}

type modelStream struct {
	*watchStream
	watches map[int64]*modelWatch
}

type modelWatch struct {
	key, end string
	from     uint64 // revision of the first change that it is to show
	sent     []uint64
	canceled bool
}

// change writes a key, and sometimes has the hub look at it.
func (m *watchModel) change() {
	key := rapid.SampledFrom([]string{"a", "ab", "b"}).Draw(m.rt, "key")
	r := m.node.apply(m.t, put(key, "v"))[0]
	m.changes = append(m.changes, state.Change{Key: key, Revision: r.Revision})
	if rapid.Bool().Draw(m.rt, "advance") {
		m.server.hub.advance()
	}
}

// due returns the revisions of the changes that a watch must have shown up to a revision.
func (m *watchModel) due(w *modelWatch, upTo uint64) (revisions []uint64) {
	for i := range m.changes {
		if c := &m.changes[i]; c.Revision >= w.from && c.Revision <= upTo && c.In(w.key, w.end) {
			revisions = append(revisions, c.Revision)
		}
	}
	return revisions
}

// got checks a message. Sometimes the node goes on before its sender does.
func (m *watchModel) got(s *modelStream, r *pb.WatchResponse) {
	revision := uint64(r.Header.Revision)
	w := s.watches[r.WatchId]
	switch {
	case r.WatchId == noWatch:
		for id, w := range s.watches {
			if !w.canceled && !slices.Equal(w.sent, m.due(w, revision)) {
				m.rt.Errorf("progress at %d, and watch %d has shown %v of %v", revision, id, w.sent, m.due(w, revision))
			}
		}
	case w == nil || w.canceled:
		m.rt.Errorf("a message of a watch that is not there: %s", describeResponse(r))
	case r.Canceled:
		w.canceled = true
	case r.Created:
		if w.from == 0 {
			w.from = revision + 1
		}
	case len(r.Events) == 0 && !slices.Equal(w.sent, m.due(w, revision)):
		m.rt.Errorf("progress at %d of a watch that has shown %v of %v", revision, w.sent, m.due(w, revision))
	}
	for _, e := range r.Events {
		w.sent = append(w.sent, uint64(e.Kv.ModRevision))
	}
	if !m.ended && rapid.Bool().Draw(m.rt, "meanwhile") {
		m.change()
	}
}

// create starts a watch of a stream.
func (m *watchModel) create(s *modelStream) error {
	keys := rapid.SampledFrom([][2]string{{"a"}, {"b"}, {"a", "b"}, {"a", "c"}, {"\x00", "\x00"}}).Draw(m.rt, "keys")
	w := &modelWatch{key: keys[0], end: keys[1]}
	if rapid.Bool().Draw(m.rt, "start") {
		w.from = rapid.Uint64Range(2, m.node.View().Revision()+3).Draw(m.rt, "from")
	}
	id := int64(len(s.watches) + 1)
	s.watches[id] = w
	return s.handle(createWatch(&pb.WatchCreateRequest{
		Key: []byte(w.key), RangeEnd: []byte(w.end), StartRevision: int64(w.from), WatchId: id, ProgressNotify: true,
	}))
}

// act does one thing that a client or the clock may have a stream do.
func (m *watchModel) act(s *modelStream) (err error) {
	switch rapid.SampledFrom([]string{"create", "cancel", "progress", "tick", "step", "step"}).Draw(m.rt, "act") {
	case "create":
		err = m.create(s)
	case "cancel":
		err = s.handle(cancelWatch(rapid.Int64Range(1, 8).Draw(m.rt, "id")))
	case "progress":
		err = s.handle(requestProgress())
	case "tick":
		err = s.tick()
	case "step":
		_, err = s.step()
	}
	return err
}

// TestWatchesShowEachChangeOnce: each watch shows each change of its keys, once and in order, while its stream and the
// hub take turns in any order. No progress is ahead of what a watch has shown.
func TestWatchesShowEachChangeOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := newFakeNode(t)
		m := &watchModel{t: t, rt: rt, node: n, server: New(testDeps(n))}
		defer m.server.grpc.Stop()
		for range 2 {
			s := &modelStream{watches: map[int64]*modelWatch{}}
			s.watchStream = watchesOf(t, m.server, func(r *pb.WatchResponse) { m.got(s, r) })
			m.streams = append(m.streams, s)
		}
		for range rapid.IntRange(1, 40).Draw(rt, "acts") {
			if rapid.Bool().Draw(rt, "change") {
				m.change()
			} else if err := m.act(rapid.SampledFrom(m.streams).Draw(rt, "stream")); err != nil {
				rt.Fatal(err)
			}
		}
		m.finish()
	})
}

// finish checks that the streams show the rest.
func (m *watchModel) finish() {
	m.ended = true
	m.server.hub.advance()
	for _, s := range m.streams {
		for more := true; more; {
			var err error
			if more, err = s.step(); err != nil {
				m.rt.Fatal(err)
			}
			m.server.hub.advance()
			more = more || len(s.wake) > 0
			for len(s.wake) > 0 {
				<-s.wake
			}
		}
	}
	for _, s := range m.streams {
		for id, w := range s.watches {
			due := m.due(w, m.node.View().Revision())
			if w.canceled && len(w.sent) <= len(due) {
				due = due[:len(w.sent)]
			}
			if !slices.Equal(w.sent, due) {
				m.rt.Errorf("watch %d has shown %v, want %v", id, w.sent, due)
			}
		}
	}
}
