package compat

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"

	"northstar/chaos/check"
)

var faultCount = flag.Int("faults", 8, "faults of TestRecipesUnderFaults; -seed selects them")

// TestRecipesUnderFaults runs the recipes of clientv3 while nodes are killed, stopped, cut off, and their disks stall.
// An election and a mutex have one holder at a time, whose writes are fenced by the revision of its key. No session
// ends before the deadline that its client counts. Transactions of STM lose no update.
func TestRecipesUnderFaults(t *testing.T) {
	f := startFaulty(t, *firstSeed)
	s := &scene{t: t, cluster: f, start: time.Now(), places: map[string]*place{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	for i := range 3 {
		for _, kind := range []string{"election", "mutex"} {
			w := &contender{scene: s, place: s.place("/" + kind), id: i, isMutex: kind == "mutex"}
			w.rand = rand.New(rand.NewPCG(*firstSeed, uint64(100+len(kind)*10+i)))
			w.client, w.renewals = s.dial()
			running.Go(func() { w.run(ctx) })
		}
		c, _ := s.dial()
		running.Go(func() { s.count(ctx, c, i) })
	}
	for range *faultCount {
		pause(ctx, time.Duration(100+f.rand.IntN(400))*time.Millisecond)
		t.Logf("%v: %s", time.Since(s.start).Round(time.Millisecond), f.inject())
	}
	stop()
	running.Wait()
	s.checkPlaces()
	s.checkCounters()
}

// scene is the clients and what they have seen.
type scene struct {
	t       *testing.T
	cluster *faultyCluster
	start   time.Time

	mu       sync.Mutex
	places   map[string]*place
	counted  map[string]string // acknowledged updates of counters: by their own key, which counter
	sessions int
}

// place is one election or one mutex.
type place struct {
	name    string
	tenures []check.Tenure
	writes  []check.FencedWrite
}

func (s *scene) place(name string) *place {
	if s.places[name] == nil {
		s.places[name] = &place{name: name}
	}
	return s.places[name]
}

func (s *scene) now() time.Duration { return time.Since(s.start) }

// dial returns a client of all nodes.
func (s *scene) dial() (*clientv3.Client, *renewals) {
	r := &renewals{t: s.t, until: map[int64]time.Time{}}
	c := newClientWith(s.t, []grpc.DialOption{grpc.WithChainStreamInterceptor(r.intercept)}, s.cluster.nodes...)
	s.t.Cleanup(func() { c.Close() })
	return c, r
}

// renewals are the keep-alives of a client. They tell until when a lease lives certainly: for its TTL from the answer,
// as clientv3 counts, but at most for TTL and grace from the request.
type renewals struct {
	t     *testing.T
	mu    sync.Mutex
	until map[int64]time.Time
}

const leaseGrace = 500 * time.Millisecond // etcd.lease-grace

func (r *renewals) intercept(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != pb.Lease_LeaseKeepAlive_FullMethodName {
		return s, err
	}
	return &renewalStream{ClientStream: s, of: r}, nil
}

// renewalStream notes when each request was sent: they are answered in order.
type renewalStream struct {
	grpc.ClientStream
	of   *renewals
	mu   sync.Mutex
	sent []time.Time
}

// SendMsg implements grpc.ClientStream.
func (s *renewalStream) SendMsg(m any) error {
	s.mu.Lock()
	s.sent = append(s.sent, time.Now())
	s.mu.Unlock()
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream.
func (s *renewalStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	s.mu.Lock()
	sent := s.sent[0]
	s.sent = s.sent[1:]
	s.mu.Unlock()
	s.of.answered(m.(*pb.LeaseKeepAliveResponse), sent)
	return nil
}

// answered notes an answer. A lease that has ended must have passed its deadline.
func (r *renewals) answered(a *pb.LeaseKeepAliveResponse, sent time.Time) {
	now := time.Now()
	if a.TTL == 0 {
		if early := r.deadline(a.ID).Sub(now); early > 0 {
			r.t.Errorf("lease %x has ended %v before its client's deadline", a.ID, early)
		}
		return
	}
	ttl := time.Duration(a.TTL) * time.Second
	until := now.Add(ttl)
	if most := sent.Add(ttl + leaseGrace); most.Before(until) {
		until = most
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if until.After(r.until[a.ID]) {
		r.until[a.ID] = until
	}
}

// deadline returns until when a lease lives certainly.
func (r *renewals) deadline(id int64) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.until[id]
}

// ended forgets a lease that its client ends itself.
func (r *renewals) ended(id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.until, id)
}

// contender is a client that holds a place now and then, with one session after the other.
type contender struct {
	*scene
	*place
	*renewals
	client  *clientv3.Client
	rand    *rand.Rand
	id      int
	isMutex bool
}

func (w *contender) run(ctx context.Context) {
	for ctx.Err() == nil {
		s, err := concurrency.NewSession(w.client, concurrency.WithTTL(1+w.rand.IntN(4)), concurrency.WithContext(ctx))
		if err != nil {
			pause(ctx, 50*time.Millisecond)
			continue
		}
		for range 1 + w.rand.IntN(4) {
			if !w.compete(ctx, s) {
				break
			}
		}
		if w.rand.IntN(2) == 0 {
			w.ended(int64(s.Lease()))
			_ = s.Close() // the outcome may be unknown
		} else {
			s.Orphan() // it ends by its TTL
		}
		w.scene.mu.Lock()
		w.sessions++
		w.scene.mu.Unlock()
	}
}

// compete takes the place once and holds it for a while. It reports whether the session may go on.
func (w *contender) compete(ctx context.Context, s *concurrency.Session) bool {
	lease := int64(s.Lease())
	limited, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	t := check.Tenure{Client: w.id, Session: fmt.Sprint(lease), RequestedAt: w.now()}
	key, token, release, err := w.acquire(limited, s)
	until := w.deadline(lease)
	if err != nil || !time.Now().Before(until) {
		return time.Now().Before(until)
	}
	t.Token, t.GrantedAt = uint64(token), w.now()
	for end := time.Now().Add(time.Duration(w.rand.IntN(1000)) * time.Millisecond); time.Now().Before(end); {
		if !time.Now().Before(w.deadline(lease)) {
			break
		}
		w.write(ctx, key, token)
		pause(ctx, time.Duration(w.rand.IntN(50))*time.Millisecond)
	}
	t.Until = min(w.now(), w.deadline(lease).Sub(w.start))
	w.scene.mu.Lock()
	w.tenures = append(w.tenures, t)
	w.scene.mu.Unlock()
	w.write(ctx, key, token) // as one that does not notice its end
	if w.rand.IntN(3) == 0 {
		return false
	}
	return release(limited) == nil
}

// acquire takes the place. It returns the holder's key and the revision that created it.
func (w *contender) acquire(ctx context.Context, s *concurrency.Session) (
	key string, revision int64, release func(context.Context) error, err error,
) {
	if !w.isMutex {
		e := concurrency.NewElection(s, w.name)
		err := e.Campaign(ctx, fmt.Sprint(w.id))
		return e.Key(), e.Rev(), e.Resign, err
	}
	m := concurrency.NewMutex(s, w.name)
	if err := m.Lock(ctx); err != nil {
		return "", 0, nil, err
	}
	got, err := w.client.Txn(ctx).If(m.IsOwner()).Then(clientv3.OpGet(m.Key())).Commit()
	if err != nil || !got.Succeeded {
		return "", 0, nil, fmt.Errorf("the mutex is lost: %w", err)
	}
	return m.Key(), got.Responses[0].GetResponseRange().Kvs[0].CreateRevision, m.Unlock, nil
}

// write writes under the condition that the holder's key is still the one of its tenure.
func (w *contender) write(ctx context.Context, key string, token int64) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	begin := w.now()
	got, err := w.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", token)).
		Then(clientv3.OpPut(w.name+"-written", fmt.Sprint(token))).Commit()
	if err != nil || !got.Succeeded {
		return
	}
	w.scene.mu.Lock()
	defer w.scene.mu.Unlock()
	w.writes = append(w.writes, check.FencedWrite{Client: w.id, Token: uint64(token), Begin: begin, End: w.now()})
}

// checkPlaces checks that each place had one holder at a time.
func (s *scene) checkPlaces() {
	for name, p := range s.places {
		for _, v := range check.CheckMutualExclusion(p.tenures, p.writes) {
			s.t.Errorf("%s: %v", name, v)
		}
		if len(p.tenures) == 0 || len(p.writes) == 0 {
			s.t.Errorf("%s: nobody has held it", name)
		}
		s.t.Logf("%s: %d tenures, %d fenced writes", name, len(p.tenures), len(p.writes))
	}
	s.t.Logf("%d sessions", s.sessions)
}

const counters = "/counter/"

// count counts with STM. Each transaction also writes a key of its own: so it is known later whether one with an
// unknown outcome was executed.
func (s *scene) count(ctx context.Context, c *clientv3.Client, worker int) {
	r := rand.New(rand.NewPCG(*firstSeed, uint64(1000+worker)))
	for n := 0; ctx.Err() == nil; n++ {
		own, counter := fmt.Sprintf("/counted/%d/%d", worker, n), counters+fmt.Sprint(r.IntN(3))
		limited, cancel := context.WithTimeout(ctx, 3*time.Second)
		_, err := concurrency.NewSTM(c, func(stm concurrency.STM) error {
			value, _ := strconv.Atoi(stm.Get(counter)) // "" is 0
			stm.Put(counter, fmt.Sprint(value+1))
			stm.Put(own, counter)
			return nil
		}, concurrency.WithAbortContext(limited))
		cancel()
		if err == nil {
			s.mu.Lock()
			if s.counted == nil {
				s.counted = map[string]string{}
			}
			s.counted[own] = counter
			s.mu.Unlock()
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// checkCounters compares the counters with the transactions that were executed.
func (s *scene) checkCounters() {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	c, _ := s.dial()
	executed, err := c.Get(ctx, "/counted/", clientv3.WithPrefix())
	if err != nil {
		s.t.Fatal(err)
	}
	want, own := map[string]int{}, map[string]bool{}
	for _, kv := range executed.Kvs {
		want[string(kv.Value)]++
		own[string(kv.Key)] = true
	}
	for key := range s.counted {
		if !own[key] {
			s.t.Errorf("%s was acknowledged and is lost", key)
		}
	}
	values, err := c.Get(ctx, counters, clientv3.WithPrefix())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, kv := range values.Kvs {
		if got, _ := strconv.Atoi(string(kv.Value)); got != want[string(kv.Key)] {
			s.t.Errorf("%s is %d after %d transactions", kv.Key, got, want[string(kv.Key)])
		}
	}
	if len(s.counted) == 0 {
		s.t.Error("no transaction was acknowledged")
	}
	s.t.Logf("%d transactions acknowledged, %d executed: %s", len(s.counted), len(executed.Kvs),
		strings.TrimSpace(fmt.Sprint(want)))
}
