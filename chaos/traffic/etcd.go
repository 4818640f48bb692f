package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"northstar/chaos/check"
	"northstar/cluster"
)

// Clients of the etcd API use its JSON gateway: its handlers are those of gRPC.

// Paths of the gateway.
const (
	pathEtcdRange     = "/v3/kv/range"
	pathEtcdTxn       = "/v3/kv/txn"
	pathEtcdCompact   = "/v3/kv/compaction"
	pathEtcdGrant     = "/v3/lease/grant"
	pathEtcdRevoke    = "/v3/lease/revoke"
	pathEtcdKeepAlive = "/v3/lease/keepalive"
	pathEtcdLeases    = "/v3/lease/leases"
	pathEtcdWatch     = "/v3/watch"
)

// etcdHistory is what clients of the etcd API have observed.
type etcdHistory struct {
	began chan struct{} // closed at the first answer to a call
	first sync.Once

	mu           sync.Mutex
	observations []check.Observation
	compacting   uint64 // highest revision of a compaction that was asked for
	compacted    uint64 // of one that was acknowledged
	watchers     []*Watcher
	locks        RoleHistory
	elections    RoleHistory
	mutexes      RoleHistory
	counted      map[string]bool // updates of counters that were acknowledged, by the keys of their own
}

// saw records keys as the state at a revision has them. Those that are not among the items are absent.
func (h *etcdHistory) saw(by string, at int64, keys []string, items []*mvccpb.KeyValue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range keys {
		s := check.Observation{By: by, At: uint64(at), Key: k}
		i := slices.IndexFunc(items, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == k })
		if i >= 0 {
			s.Value, s.Revision = string(items[i].Value), uint64(items[i].ModRevision)
		}
		h.observations = append(h.observations, s)
	}
}

// compactions returns the revisions of the newest compaction that was acknowledged, and that was asked for.
func (h *etcdHistory) compactions() (acknowledged, asked uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.compacted, h.compacting
}

// etcdError is an error that the etcd API has answered with.
type etcdError struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

func (e *etcdError) Error() string { return fmt.Sprintf("%v: %s", e.Code, e.Message) }

func (e *etcdError) is(err error) bool { return e != nil && e.Message == rpctypes.ErrorDesc(err) }

func asEtcdError(err error) *etcdError {
	e, _ := errors.AsType[*etcdError](err)
	return e
}

// etcdUser is a client of the etcd API.
type etcdUser struct {
	user
	id int
}

// ask calls a method of a node. The error is an *etcdError if the node has answered with one, or a *cluster.Error.
func (u etcdUser) ask(node int, path string, in, out proto.Message) error {
	ctx, cancel := context.WithTimeout(u.ctx, u.cfg.Timeout+answerGrace)
	defer cancel()
	body, err := protojson.Marshal(in)
	if err != nil {
		return err
	}
	n := u.cluster.Nodes()[node]
	n.HTTP = n.Etcd
	res, answer, err := u.machine.Do(ctx, n, Request{Method: "POST", Path: path, Body: body})
	e := asProblem(err)
	switch {
	case err != nil && (e == nil || e.Status == 0):
		return err
	case path == pathEtcdKeepAlive:
		return u.result(n, path, answer, out)
	case err == nil:
		u.etcd.first.Do(func() { close(u.etcd.began) })
		return protojson.Unmarshal(answer, out)
	}
	refusal := &etcdError{}
	if err := json.Unmarshal(answer, refusal); err != nil || refusal.Code == 0 {
		u.violated(check.OnlyDocumentedErrors, "%s at %s: %s: %s", path, n.ID, res.Status, answer)
	}
	return u.checked(n, path, refusal)
}

// result reads the first message of a stream.
func (u etcdUser) result(n Node, path string, answer []byte, out proto.Message) error {
	var message struct {
		Result json.RawMessage `json:"result"`
		Error  *etcdError      `json:"error"`
	}
	if len(answer) == 0 { // the node ended the stream before
		return cluster.Errorf(cluster.CodeOutcomeUnknown, "no answer")
	}
	if err := json.Unmarshal(answer, &message); err != nil {
		return err
	}
	if message.Error != nil {
		return u.checked(n, path, message.Error)
	}
	return protojson.Unmarshal(message.Result, out)
}

// checked reports an error that etcd's clients do not expect.
func (u etcdUser) checked(n Node, path string, e *etcdError) error {
	switch e.Code {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.OutOfRange, codes.FailedPrecondition:
		return e
	case codes.NotFound:
		if e.is(rpctypes.ErrGRPCLeaseNotFound) {
			return e
		}
	}
	u.violated(check.OnlyDocumentedErrors, "%s at %s: %v", path, n.ID, e)
	return e
}

// mayHaveHappened reports whether a write with that error may have been executed.
func mayHaveHappened(err error) bool {
	if e := asEtcdError(err); e != nil {
		return !e.is(rpctypes.ErrGRPCNoLeader) && e.Code != codes.ResourceExhausted &&
			e.Code != codes.FailedPrecondition && e.Code != codes.NotFound
	}
	return !notProposed(err)
}

// place draws a node: often the leader.
func (u etcdUser) place() int {
	if u.rand.IntN(2) == 0 {
		return u.cluster.Leader()
	}
	return u.anyNode()
}

func (u etcdUser) by(what string, node int) string {
	return fmt.Sprintf("%s of etcd client %d at %s, until %v,", what, u.id, u.cluster.Nodes()[node].ID, u.now())
}

// etcdAnswers waits for the first answer to a call of the etcd API. It returns false at Stop.
func (t *Traffic) etcdAnswers() bool {
	select {
	case <-t.etcd.began:
		return true
	case <-t.quit:
		return false
	}
}

// startEtcd starts the clients of the etcd API, but no watchers.
func (t *Traffic) startEtcd() {
	newUser := func(kind, id int) etcdUser { return etcdUser{t.newUser(uint64(kind + id)), 100 + id} }
	for i := range t.cfg.EtcdClients {
		c := &etcdClient{etcdUser: newUser(4000, i), seen: map[string]seenValue{}}
		t.running.Go(c.run)
	}
	for i := range t.cfg.EtcdHolders {
		h := &lockHolder{leaseHolder{
			etcdUser: newUser(4100, i), key: lockKey, under: lockedKey, held: &t.etcd.locks,
		}}
		t.running.Go(h.run)
	}
	for i := range t.cfg.EtcdContenders {
		t.running.Go(newContender(newUser(4300, i), i).run)
	}
	for i := range t.cfg.EtcdCounters {
		c := &counter{etcdUser: newUser(4400, i)}
		t.running.Go(c.run)
	}
	if t.cfg.EtcdClients > 0 {
		u := newUser(4200, 0)
		t.running.Go(u.compact)
	}
}

// compact compacts revisions that every watcher has received.
func (u etcdUser) compact() {
	for u.Pause(time.Duration(200+u.rand.IntN(2000)) * time.Millisecond) {
		h := &u.Traffic.etcd
		h.mu.Lock()
		at := ^uint64(0)
		for _, w := range h.watchers {
			at = min(at, w.LastRevision())
		}
		at -= min(at, uint64(u.rand.IntN(100)))
		if len(h.watchers) == 0 || at <= h.compacting {
			h.mu.Unlock()
			continue
		}
		h.compacting = at
		h.mu.Unlock()
		request := &pb.CompactionRequest{Revision: int64(at)}
		if u.ask(u.place(), pathEtcdCompact, request, &pb.CompactionResponse{}) == nil {
			h.mu.Lock()
			h.compacted = max(h.compacted, at)
			h.mu.Unlock()
		}
	}
}

// CheckEtcd checks what the clients of the etcd API saw, and that no lease outlives its clients. The clients and
// watchers must have ended. Leases may take the given time.
func (t *Traffic) CheckEtcd(within time.Duration) (violations []check.Violation) {
	h := &t.etcd
	if len(h.watchers) == 0 {
		return nil
	}
	for i := range t.cfg.Keys {
		keys := etcdSet(t.cluster.Key(i)).keys()
		violations = append(violations, check.CheckTogether(&h.watchers[0].watch, keys...)...)
	}
	violations = append(violations, check.CheckObservations(&h.watchers[0].watch, h.observations)...)
	for _, held := range []*RoleHistory{&h.locks, &h.elections, &h.mutexes} {
		violations = append(violations, held.Check(false)...)
	}
	m := t.cluster.Machine("leases")
	defer m.Close()
	u := etcdUser{user: user{t, m, t.cfg.Rand("leases", "", 0)}}
	last := "no node answers"
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		out := &pb.LeaseLeasesResponse{}
		if err := u.ask(u.anyNode(), pathEtcdLeases, &pb.LeaseLeasesRequest{}, out); err != nil {
			continue
		}
		if len(out.Leases) == 0 {
			return append(violations, u.checkCounters(deadline)...)
		}
		last = fmt.Sprintf("%d leases", len(out.Leases))
	}
	return append(violations, check.Violationf(check.LeasesLive, "%v after the last client: %s", within, last))
}
