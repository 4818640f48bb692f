package traffic

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"northstar/chaos/check"
)

// counter increases two of a few counters in one transaction after the other, by the requests of clientv3's STM: the
// first read tells the revision at which the second one reads, from any node, and the write compares what was read.
// Each transaction also writes a key of its own, so it is known later which were executed.
type counter struct {
	etcdUser
	n int
}

const (
	counters      = 3
	counterPrefix = "counter/"
	countedPrefix = "counted/" // of the transactions' own keys; their values name the two counters
)

func (c *counter) run() {
	for c.Pause(c.cfg.ThinkTime.Draw(c.rand)) {
		c.increase()
	}
}

// increase makes one transaction, and repeats it while others change the counters. The outcome may stay unknown.
func (c *counter) increase() {
	a := c.rand.IntN(counters)
	keys := []string{counterPrefix + fmt.Sprint(a), counterPrefix + fmt.Sprint((a+1)%counters)}
	own := fmt.Sprintf("%s%d-%d", countedPrefix, c.id, c.n)
	c.n++
	at, first := c.place(), &pb.TxnResponse{}
	if c.ask(at, pathEtcdTxn, readOf(keys[0], 0), first) != nil {
		return
	}
	revision := first.Header.Revision
	items := first.Responses[0].GetResponseRange().Kvs
	c.etcd.saw(c.by("counter", at), revision, keys[:1], items)
	at, second := c.anyNode(), &pb.TxnResponse{}
	if c.ask(at, pathEtcdTxn, readOf(keys[1], revision), second) != nil {
		return
	}
	others := second.Responses[0].GetResponseRange().Kvs
	c.etcd.saw(c.by("counter", at), revision, keys[1:], others)
	for items = append(items, others...); ; {
		t := &pb.TxnRequest{Success: []*pb.RequestOp{putOp(own, strings.Join(keys, " "), 0)}}
		for _, k := range keys {
			value, mod := valueOf(items, k)
			t.Compare = append(t.Compare, compareMod(k, mod))
			t.Success = append(t.Success, putOp(k, strconv.Itoa(value+1), 0))
			t.Failure = append(t.Failure, rangeOp(&pb.RangeRequest{Key: []byte(k)}))
		}
		out := &pb.TxnResponse{}
		at = c.place()
		if c.ask(at, pathEtcdTxn, t, out) != nil {
			return
		}
		if out.Succeeded {
			c.etcd.acknowledge(own)
			return
		}
		items = nil
		for _, r := range out.Responses {
			items = append(items, r.GetResponseRange().Kvs...)
		}
		c.etcd.saw(c.by("counter", at), out.Header.Revision, keys, items)
		if !c.Pause(time.Duration(c.rand.IntN(10)) * time.Millisecond) {
			return
		}
	}
}

// readOf returns a transaction that reads a key, of the present or a revision.
func readOf(key string, revision int64) *pb.TxnRequest {
	r := &pb.RangeRequest{Key: []byte(key), Revision: revision, Serializable: revision > 0}
	return &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(r)}}
}

// valueOf returns the value and the revision of a counter, 0 and 0 if it is not among the items.
func valueOf(items []*mvccpb.KeyValue, key string) (value int, revision uint64) {
	for _, kv := range items {
		if string(kv.Key) == key {
			value, _ = strconv.Atoi(string(kv.Value))
			return value, uint64(kv.ModRevision)
		}
	}
	return 0, 0
}

// acknowledge records an update of counters that was acknowledged.
func (h *etcdHistory) acknowledge(own string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.counted == nil {
		h.counted = map[string]bool{}
	}
	h.counted[own] = true
}

// checkCounters compares the counters with the updates that were executed: all acknowledged ones are among them.
func (u etcdUser) checkCounters(deadline time.Time) (violations []check.Violation) {
	if u.cfg.EtcdCounters == 0 {
		return nil
	}
	got := &pb.TxnResponse{}
	t := &pb.TxnRequest{}
	for _, prefix := range []string{countedPrefix, counterPrefix} {
		end := prefix[:len(prefix)-1] + "0" // the byte after the slash
		t.Success = append(t.Success, rangeOp(&pb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(end)}))
	}
	for u.ask(u.anyNode(), pathEtcdTxn, t, got) != nil {
		if time.Now().After(deadline) {
			return append(violations, check.Violationf(check.Liveness, "no node answers a read of counters"))
		}
		time.Sleep(100 * time.Millisecond) // virtual in a simulation
	}
	want, executed := map[string]int{}, map[string]bool{}
	for _, kv := range got.Responses[0].GetResponseRange().Kvs {
		executed[string(kv.Key)] = true
		for k := range strings.FieldsSeq(string(kv.Value)) {
			want[k]++
		}
	}
	for i := range counters {
		k := counterPrefix + fmt.Sprint(i)
		if value, _ := valueOf(got.Responses[1].GetResponseRange().Kvs, k); value != want[k] {
			violations = append(violations, check.Violationf(check.AtomicTransactions,
				"%s is %d after %d transactions", k, value, want[k]))
		}
	}
	h := &u.Traffic.etcd
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, own := range slices.Sorted(maps.Keys(h.counted)) {
		if !executed[own] {
			violations = append(violations, check.Violationf(check.AtomicTransactions,
				"%s was acknowledged and is lost", own))
		}
	}
	return violations
}
