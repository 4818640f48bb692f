package traffic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/encoding/protojson"

	"northstar/chaos/check"
)

// contender competes for an election or a mutex by the requests of clientv3's package concurrency: a key of its own
// below a prefix, with the lease of its session, and a watch of the newest key before it. The oldest key is the holder.
type contender struct {
	leaseHolder
	prefix  string
	isMutex bool
}

// newContender returns a contender: every second one competes for the mutex.
func newContender(u etcdUser, i int) *contender {
	c := &contender{leaseHolder: leaseHolder{etcdUser: u, held: &u.Traffic.etcd.elections}, prefix: "election/"}
	if c.isMutex = i%2 == 1; c.isMutex {
		c.prefix, c.held = "mutex/", &u.Traffic.etcd.mutexes
	}
	c.under = c.prefix[:len(c.prefix)-1] + "-written"
	return c
}

func (c *contender) run() {
	for c.Pause(c.cfg.ThinkTime.Draw(c.rand)) {
		for l := c.grant(); l != nil; {
			if !c.compete(l) || !l.lives() || c.rand.IntN(3) == 0 || !c.Pause(c.cfg.ThinkTime.Draw(c.rand)) {
				break // the lease ends by itself
			}
			c.keep(l)
		}
	}
}

// compete takes the place once and holds it for a while. It reports whether the lease may live on.
func (c *contender) compete(l *etcdLease) (lives bool) {
	c.key = fmt.Sprintf("%s%x", c.prefix, l.id)
	t := check.Tenure{Client: c.id, Session: fmt.Sprint(l.id), RequestedAt: c.now()}
	for t.Token == 0 {
		t.Token = c.join(l)
		if t.Token == 0 && (!l.lives() || !c.Pause(time.Duration(c.rand.IntN(50))*time.Millisecond)) {
			return false
		}
		c.keep(l)
	}
	if !c.awaitTurn(l, t.Token) {
		return false
	}
	t.GrantedAt = c.now()
	if t.GrantedAt >= l.until.Sub(c.cfg.Start) {
		return false
	}
	c.checkFirst(l)
	c.hold(l, t.Token)
	c.checkFirst(l)
	return c.end(l, t)
}

// all is a range of the keys of the prefix.
func (c *contender) all(order pb.RangeRequest_SortOrder) *pb.RangeRequest {
	end := c.prefix[:len(c.prefix)-1] + string(rune(c.prefix[len(c.prefix)-1]+1))
	return &pb.RangeRequest{
		Key: []byte(c.prefix), RangeEnd: []byte(end), SortTarget: pb.RangeRequest_CREATE, SortOrder: order, Limit: 1,
	}
}

// join creates the client's key. It returns the revision that created the key, 0 if that is not known.
func (c *contender) join(l *etcdLease) (token uint64) {
	at, out := c.place(), &pb.TxnResponse{}
	own, first := rangeOp(&pb.RangeRequest{Key: []byte(c.key)}), rangeOp(c.all(pb.RangeRequest_ASCEND))
	t := &pb.TxnRequest{
		Compare: []*pb.Compare{compareCreate(c.key, 0)},
		Success: []*pb.RequestOp{putOp(c.key, fmt.Sprint(c.id), l.id)}, Failure: []*pb.RequestOp{own},
	}
	if c.isMutex {
		t.Success, t.Failure = append(t.Success, first), append(t.Failure, first)
	}
	err := c.ask(at, pathEtcdTxn, t, out)
	if asEtcdError(err).is(rpctypes.ErrGRPCLeaseNotFound) {
		c.lost(l, err.Error())
	}
	if err != nil {
		return 0
	}
	if out.Succeeded {
		return uint64(out.Header.Revision)
	}
	items := out.Responses[0].GetResponseRange().Kvs // of an attempt without an answer
	c.etcd.saw(c.by("contender", at), out.Header.Revision, []string{c.key}, items)
	return uint64(items[0].CreateRevision)
}

// awaitTurn waits until no key is before the client's own. It reports whether the lease lives.
func (c *contender) awaitTurn(l *etcdLease, token uint64) bool {
	for l.lives() {
		before, out := c.all(pb.RangeRequest_DESCEND), &pb.RangeResponse{}
		before.MaxCreateRevision = int64(token) - 1
		if err := c.ask(c.place(), pathEtcdRange, before, out); err != nil {
			if !c.Pause(time.Duration(c.rand.IntN(50)) * time.Millisecond) {
				return false
			}
			c.keep(l)
			continue
		}
		if len(out.Kvs) == 0 {
			return l.lives()
		}
		if !c.awaitDeletion(l, string(out.Kvs[0].Key), out.Header.Revision) {
			return false
		}
	}
	return false
}

// awaitDeletion watches a key from a revision on until it is deleted, or the stream ends, and renews the lease
// meanwhile. It returns false when the client must stop.
func (c *contender) awaitDeletion(l *etcdLease, key string, from int64) bool {
	ctx, cancel := context.WithTimeout(c.ctx, streamTimeout)
	node, ended := c.cluster.Nodes()[c.anyNode()], make(chan struct{})
	go func() {
		defer close(ended)
		c.followDeletion(ctx, node, key, from)
	}()
	defer func() { cancel(); <-ended }()
	for l.lives() {
		select {
		case <-ended:
			return true
		case <-c.quit:
			return false
		case <-time.After(l.ttl / 3):
			c.keep(l)
		}
	}
	return true
}

// followDeletion returns when a node has sent the deletion of a key, or the stream has ended.
func (c *contender) followDeletion(ctx context.Context, node Node, key string, from int64) {
	body, err := protojson.Marshal(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte(key), StartRevision: from},
	}})
	if err != nil {
		c.violated(check.OnlyDocumentedErrors, "%v", err)
		return
	}
	url := "http://" + node.Etcd + pathEtcdWatch
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		c.violated(check.OnlyDocumentedErrors, "%v", err)
		return
	}
	res, err := c.machine.Client.Do(req)
	if err != nil {
		return
	}
	defer func() { _ = res.Body.Close() }()
	for in := json.NewDecoder(res.Body); ; {
		var message struct {
			Result json.RawMessage `json:"result"`
		}
		r := &pb.WatchResponse{}
		if in.Decode(&message) != nil || message.Result == nil {
			return
		}
		if err := protojson.Unmarshal(message.Result, r); err != nil || r.Canceled {
			c.violated(check.WatchOrder, "a watch of %s from revision %d at %s: %v, %v", key, from, node.ID, r, err)
			return
		}
		for _, e := range r.Events {
			if e.Kv.ModRevision < from {
				c.violated(check.WatchOrder, "a watch of %s from revision %d at %s: %v", key, from, node.ID, e)
			}
			if e.Type == mvccpb.DELETE {
				return
			}
		}
	}
}

// checkFirst asks who holds the place, as Election.Leader does: the client, while its lease certainly lives.
func (c *contender) checkFirst(l *etcdLease) {
	at, out := c.place(), &pb.RangeResponse{}
	if c.ask(at, pathEtcdRange, c.all(pb.RangeRequest_ASCEND), out) != nil || !l.lives() {
		return
	}
	if len(out.Kvs) == 0 || string(out.Kvs[0].Key) != c.key {
		c.violated(check.OneHolder, "%s holds %s, and finds at revision %d: %v", c.by("contender", at), c.key,
			out.Header.Revision, out.Kvs)
	}
}
