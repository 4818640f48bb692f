package traffic

import (
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"northstar/chaos/check"
)

// leaseHolder uses one lease after the other, and writes while a key that is attached to the lease is what it was.
type leaseHolder struct {
	etcdUser
	key    string // of the holder
	under  string // the key that is written
	held   *RoleHistory
	writes int
}

// lockHolder takes a lock with one lease after the other, as etcd's elections do: the lock is a key that is attached to
// the lease, and writes under the lock compare the revision that created the key.
type lockHolder struct{ leaseHolder }

const (
	lockKey    = "lock"
	lockedKey  = "locked" // written under the lock
	leaseGrace = 500 * time.Millisecond
	leaseDrift = 0.05 // share by which the clock of a leader may be fast
)

// etcdLease is a lease, as its client knows it.
type etcdLease struct {
	id      int64
	ttl     time.Duration
	until   time.Time // it certainly lives until then
	renewed time.Time // when the last answer came
}

// extend notes that the lease was granted or renewed by a request of that time. clientv3 counts the TTL from the
// answer. An answer may take as long as the grace.
func (l *etcdLease) extend(sent time.Time) {
	l.renewed = time.Now()
	until := l.renewed.Add(l.ttl)
	if most := sent.Add(time.Duration(float64(l.ttl+leaseGrace) * (1 - leaseDrift))); most.Before(until) {
		until = most
	}
	if until.After(l.until) {
		l.until = until
	}
}

func (l *etcdLease) lives() bool { return time.Now().Before(l.until) }

func (h *lockHolder) run() {
	for h.Pause(h.cfg.ThinkTime.Draw(h.rand)) {
		if l := h.grant(); l != nil {
			h.use(l)
		}
	}
}

func (h *leaseHolder) grant() *etcdLease {
	sent, out := time.Now(), &pb.LeaseGrantResponse{}
	if h.ask(h.place(), pathEtcdGrant, &pb.LeaseGrantRequest{TTL: 1 + int64(h.rand.IntN(4))}, out) != nil {
		return nil // a lease that was granted ends by itself
	}
	l := &etcdLease{id: out.ID, ttl: time.Duration(out.TTL) * time.Second}
	l.extend(sent)
	return l
}

// lost reports that a lease has ended before its deadline.
func (h *leaseHolder) lost(l *etcdLease, how string) {
	if early := time.Until(l.until); early > 0 {
		h.violated(check.LeasesLive, "lease %x of etcd client %d had ended at %v, %v before its client's deadline: %s",
			l.id, h.id, h.now(), early, how)
	}
}

// keep renews a lease three times in its TTL.
func (h *leaseHolder) keep(l *etcdLease) {
	if time.Since(l.renewed) < l.ttl/3 {
		return
	}
	sent, out := time.Now(), &pb.LeaseKeepAliveResponse{}
	if h.ask(h.anyNode(), pathEtcdKeepAlive, &pb.LeaseKeepAliveRequest{ID: l.id}, out) != nil {
		return
	}
	if out.TTL == 0 {
		h.lost(l, "a keep-alive says so")
		return
	}
	l.extend(sent)
}

// use waits for the lock, holds it for a while, and releases it in one of three ways.
func (h *lockHolder) use(l *etcdLease) {
	t := check.Tenure{Client: h.id, Session: fmt.Sprint(l.id)}
	for {
		t.RequestedAt = h.now()
		if t.Token = h.acquire(l); t.Token != 0 {
			break
		}
		if !l.lives() || !h.Pause(time.Duration(h.rand.IntN(50))*time.Millisecond) {
			return
		}
		h.keep(l)
	}
	t.GrantedAt = h.now()
	h.hold(l, t.Token)
	h.end(l, t)
}

// hold writes for a while.
func (h *leaseHolder) hold(l *etcdLease, token uint64) {
	end := time.Now().Add(time.Duration(h.rand.IntN(1500)) * time.Millisecond)
	for time.Now().Before(end) && l.lives() {
		if h.write(token) {
			h.lost(l, "the holder's key is gone")
		}
		h.keep(l)
		if !h.Pause(time.Duration(h.rand.IntN(100)) * time.Millisecond) {
			break
		}
	}
}

// end ends a tenure in one of three ways, and records it. It reports whether the lease may live on.
func (h *leaseHolder) end(l *etcdLease, t check.Tenure) (lives bool) {
	t.Until = min(h.now(), l.until.Sub(h.cfg.Start))
	switch h.rand.IntN(3) {
	case 0:
		lives = h.release(t.Token) // otherwise it may still be executed
	case 1:
		_ = h.ask(h.place(), pathEtcdRevoke, &pb.LeaseRevokeRequest{ID: l.id}, &pb.LeaseRevokeResponse{})
	default:
		t.Until = h.awaitEnd(l, t.Token)
	}
	h.held.Won(t)
	h.write(t.Token) // as a client that does not know of its end
	return lives
}

// acquire tries to create the lock's key. It returns the revision that created the key, 0 if another client has it.
func (h *lockHolder) acquire(l *etcdLease) (token uint64) {
	at, out := h.place(), &pb.TxnResponse{}
	read := rangeOp(&pb.RangeRequest{Key: []byte(lockKey)})
	err := h.ask(at, pathEtcdTxn, &pb.TxnRequest{
		Compare: []*pb.Compare{compareCreate(lockKey, 0)},
		Success: []*pb.RequestOp{putOp(lockKey, fmt.Sprintf("%d-%x", h.id, l.id), l.id)},
		Failure: []*pb.RequestOp{read},
	}, out)
	if asEtcdError(err).is(rpctypes.ErrGRPCLeaseNotFound) {
		h.lost(l, err.Error())
	}
	if err != nil {
		return 0
	}
	if out.Succeeded {
		return uint64(out.Header.Revision)
	}
	items := out.Responses[0].GetResponseRange().Kvs
	h.etcd.saw(h.by("lock", at), out.Header.Revision, []string{lockKey}, items)
	if items[0].Lease == l.id { // by an attempt without an answer
		return uint64(items[0].CreateRevision)
	}
	return 0
}

// write writes under the condition that the holder's key has a create revision, and reports whether it has not.
func (h *leaseHolder) write(token uint64) (lost bool) {
	h.writes++
	begin, out := h.now(), &pb.TxnResponse{}
	err := h.ask(h.place(), pathEtcdTxn, &pb.TxnRequest{
		Compare: []*pb.Compare{compareCreate(h.key, token)},
		Success: []*pb.RequestOp{putOp(h.under, fmt.Sprintf("%d-%d", token, h.writes), 0)},
	}, out)
	if err == nil && out.Succeeded {
		w := check.FencedWrite{Client: h.id, Token: token, Begin: begin, End: h.now()}
		h.held.update(func(r *RoleHistory) { r.writes = append(r.writes, w) })
	}
	return err == nil && !out.Succeeded
}

// release deletes the holder's key, and reports whether an answer says so.
func (h *leaseHolder) release(token uint64) bool {
	return h.ask(h.place(), pathEtcdTxn, &pb.TxnRequest{
		Compare: []*pb.Compare{compareCreate(h.key, token)},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{
			RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(h.key)},
		}}},
	}, &pb.TxnResponse{}) == nil
}

// awaitEnd lets a lease end by its TTL, which must not be too early, and returns until when it held the lock.
func (h *leaseHolder) awaitEnd(l *etcdLease, token uint64) time.Duration {
	for h.Pause(time.Duration(5+h.rand.IntN(20)) * time.Millisecond) {
		at, out := h.place(), &pb.RangeResponse{}
		if h.ask(at, pathEtcdRange, &pb.RangeRequest{Key: []byte(h.key)}, out) != nil {
			continue
		}
		h.etcd.saw(h.by("lock", at), out.Header.Revision, []string{h.key}, out.Kvs)
		if len(out.Kvs) == 0 || uint64(out.Kvs[0].CreateRevision) != token {
			h.lost(l, "its key is gone")
			break
		}
	}
	return min(h.now(), l.until.Sub(h.cfg.Start))
}
