package traffic

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protojson"

	"northstar/chaos/check"
)

// startEtcdWatchers starts the watchers of all keys over the etcd API.
func (t *Traffic) startEtcdWatchers(since uint64) {
	for i := range t.cfg.EtcdWatchers {
		name := fmt.Sprintf("etcd-w%d", i+1)
		m := t.cluster.Machine(name)
		w := t.AddWatcher(name, since, user{t, m, t.cfg.Rand(name, "watcher", 0)}.followEtcd)
		w.close = m.Close
		t.etcd.mu.Lock()
		t.etcd.watchers = append(t.etcd.watchers, w)
		t.etcd.mu.Unlock()
	}
}

// progressPause is between two requests for progress on one stream.
const progressPause = 200 * time.Millisecond

// followEtcd follows one stream of a node.
func (u user) followEtcd(ctx context.Context, w *Watcher) string {
	node := u.cluster.Nodes()[u.anyNode()]
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	all := []byte{0}
	create := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: all, RangeEnd: all, StartRevision: int64(w.Resume() + 1), PrevKv: true,
	}}}
	first, err := protojson.Marshal(create)
	if err != nil {
		return err.Error()
	}
	body, requests := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+node.Etcd+pathEtcdWatch, body)
	if err != nil {
		return err.Error()
	}
	ended := make(chan struct{})
	go func() { // a write fails when the request has ended
		defer close(ended)
		_, err := requests.Write(first)
		for err == nil {
			if _, err = io.WriteString(requests, `{"progress_request":{}}`); err != nil {
				return
			}
			select {
			case <-time.After(progressPause):
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
	}()
	defer func() {
		cancel()
		_ = body.Close()
		<-ended
	}()
	res, err := u.machine.Client.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return ""
	}
	return u.readEtcd(w, node.ID, res.Body)
}

// readEtcd reads the messages of a stream.
func (u user) readEtcd(w *Watcher, node string, stream io.Reader) string {
	s := etcdStream{w: w, node: node, etcd: &u.etcd}
	for in := json.NewDecoder(stream); ; {
		var message struct {
			Result json.RawMessage `json:"result"`
		}
		if err := in.Decode(&message); err != nil || message.Result == nil {
			return "" // the end of the stream, or an error that ends it
		}
		r := &pb.WatchResponse{}
		if err := protojson.Unmarshal(message.Result, r); err != nil {
			return fmt.Sprintf("%s: %s sent %s: %v", w.watch.Name, node, message.Result, err)
		}
		if why := s.message(r); why != "" {
			return fmt.Sprintf("%s: %s: %s: %v", w.watch.Name, node, why, r)
		}
	}
}

// etcdStream is one stream of a watcher.
type etcdStream struct {
	w       *Watcher
	node    string
	etcd    *etcdHistory
	created bool
	highest int64 // revision in a header
	synced  int64 // revision in a message of progress
}

// message takes a message and returns what is wrong with it.
func (s *etcdStream) message(r *pb.WatchResponse) string {
	switch {
	case r.Canceled:
		return "the watch is canceled"
	case r.Created == s.created:
		return "not exactly one message says that the watch is created, and it is the first one"
	case r.Header.Revision < s.highest:
		return fmt.Sprintf("the revision in headers has been %d", s.highest)
	}
	s.created, s.highest = true, r.Header.Revision
	if !r.Created && len(r.Events) == 0 {
		s.synced = r.Header.Revision
	}
	for i, e := range r.Events {
		at := e.Kv.ModRevision
		if at <= s.synced || at > r.Header.Revision {
			return fmt.Sprintf("an event of revision %d, after progress to %d", at, s.synced)
		}
		c := check.Change{Revision: uint64(at), Key: string(e.Kv.Key), Value: string(e.Kv.Value)}
		c.More = i+1 < len(r.Events) && r.Events[i+1].Kv.ModRevision == at
		if why := s.w.Add(c); why != "" {
			return why
		}
		var before []*mvccpb.KeyValue
		if e.PrevKv != nil {
			before = append(before, e.PrevKv)
		}
		s.etcd.saw("prev_kv of "+s.w.watch.Name, at-1, []string{c.Key}, before)
	}
	return ""
}
