package hostile

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"northstar/chaos/proc"
	"northstar/chaos/testenv"
)

// Each of those who are not attackers waits this long for an answer. A request without a good answer counts as long.
var probeTimeout = testenv.Slowdown() * 5 * time.Second

// Intervals of their requests.
const (
	writeInterval = 20 * time.Millisecond
	probeInterval = 100 * time.Millisecond
)

// latencies are the durations of one kind of request. Any goroutine may call the methods.
type latencies struct {
	mu     sync.Mutex
	took   []time.Duration // with those of requests that would have been made during a longer one
	made   int
	failed int
	last   error
}

// add notes a request, and those that would have been made meanwhile at an interval, which would have waited, too.
// Without them a long stall would count as one slow request.
func (l *latencies) add(d, interval time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	if err != nil {
		l.failed++
		l.last = err
		d = max(d, probeTimeout)
	}
	l.note(d, interval)
}

// unanswered notes a request that has no answer after so long, if that is more than the interval. Such a request does
// not count as made.
func (l *latencies) unanswered(d, interval time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d > interval {
		l.note(d, interval)
	}
}

// note adds a duration, and those of the requests that would have been made meanwhile. Called with the lock held.
func (l *latencies) note(d, interval time.Duration) {
	for l.took = append(l.took, d); d > interval; {
		d -= interval
		l.took = append(l.took, d)
	}
}

// reset forgets all requests so far.
func (l *latencies) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took, l.made, l.failed, l.last = nil, 0, 0, nil
}

// quantile returns the duration that a part q of the requests did not exceed.
func (l *latencies) quantile(q float64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(l.took))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// counts returns how many requests were made, how many failed, and the error of the last of those.
func (l *latencies) counts() (made, failed int, last error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made, l.failed, l.last
}

// bystanders use the cluster during an attack: a writer at each node, probes of each node, and an operator.
type bystanders struct {
	c         *cluster
	writes    latencies
	probes    latencies
	transfers latencies
	repeats   bool // a refused transfer is asked for again: on a busy machine a target may be behind for a moment
	asked     int  // calls for transfers
	elected   int  // how often the target of a transfer led already
}

// run writes and probes until ctx ends.
func (b *bystanders) run(ctx context.Context) {
	var all sync.WaitGroup
	for _, n := range b.c.Nodes {
		all.Go(func() { b.write(ctx, n) })
		all.Go(func() { b.probe(ctx, n) })
	}
	all.Wait()
}

// awaitEnds waits until a write and a probe have ended. Each does so within probeTimeout.
func (b *bystanders) awaitEnds(ctx context.Context) {
	for ; ctx.Err() == nil; wait(ctx, writeInterval) {
		writes, _, _ := b.writes.counts()
		probes, _, _ := b.probes.counts()
		if writes > 0 && probes > 0 {
			return
		}
	}
}

// write changes the value of one key again and again, every second time through the etcd API if there is one. Every
// tenth request has a new connection.
func (b *bystanders) write(ctx context.Context, n *proc.Node) {
	u := b.c.caller(b.c.writer, writerAddress)
	defer u.forget()
	value := []byte(randomText(256))
	b.pace(ctx, writeInterval, func(ctx context.Context, i int) error {
		if i%10 == 0 {
			u.forget()
		}
		method, path, body := http.MethodPut, "/v1/kv/bystander/"+n.ID, value
		if b.c.etcd != nil && i%2 == 0 {
			method, path = http.MethodPost, "/v3/kv/put"
			body = fmt.Appendf(nil, `{"key":%q,"value":%q}`, base64.StdEncoding.EncodeToString([]byte("bystander/"+n.ID)),
				base64.StdEncoding.EncodeToString(value))
		}
		_, err := u.do(ctx, n, method, path, body)
		return err
	}, &b.writes)
}

// probe asks for health and leader on new connections, now and then from an address of the attacker.
func (b *bystanders) probe(ctx context.Context, n *proc.Node) {
	own, attackers := b.c.caller("", probeAddress), b.c.caller("", address(0))
	b.pace(ctx, probeInterval, func(ctx context.Context, i int) error {
		u, path := own, "/livez"
		if i%4 == 3 {
			u = attackers
		}
		if i%2 == 0 {
			path = "/leader"
		}
		defer u.forget()
		_, err := u.do(ctx, n, http.MethodGet, path, nil)
		if path == "/leader" && err != nil && strings.Contains(err.Error(), `"code":4002`) {
			return nil // an answer: leadership is being moved
		}
		return err
	}, &b.probes)
}

// pace makes requests at an interval, one at a time, until ctx ends.
func (b *bystanders) pace(ctx context.Context, interval time.Duration,
	request func(ctx context.Context, i int) error, into *latencies,
) {
	for i := 0; ; i++ {
		begin := time.Now()
		limited, cancel := context.WithTimeout(ctx, probeTimeout)
		err := request(limited, i)
		cancel()
		took := time.Since(begin)
		if ctx.Err() != nil { // the suite has ended it
			into.unanswered(took, interval)
			return
		}
		into.add(took, interval, err)
		wait(ctx, interval-took)
	}
}

// transfer moves leadership to a node, as an operator with a new connection to the node under attack. After an election
// that node may lead already.
func (b *bystanders) transfer(ctx context.Context, through, to *proc.Node) error {
	u := b.c.caller(b.c.operator, operatorAddress)
	defer u.forget()
	body, err := json.Marshal(map[string]string{"target_leader_id": to.ID, "reason": "during an attack"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	begin := time.Now()
	for again := true; again; {
		b.asked++
		_, err = u.do(ctx, through, http.MethodPost, "/admin/transfer", body)
		if err != nil && strings.Contains(err.Error(), fmt.Sprintf("node %s leads already", to.ID)) {
			b.elected++
			err = nil
		}
		again = b.repeats && err != nil && strings.Contains(err.Error(), `"code":4003`) && ctx.Err() == nil
		if again {
			wait(ctx, probeInterval)
		}
	}
	b.transfers.add(time.Since(begin), probeTimeout, err)
	return err
}

// awaitRecords waits until the audit log has a number of transfers, and returns how many it has: without a leader a
// record waits on its node.
func (c *cluster) awaitRecords(ctx context.Context, want int) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for {
		if n, err = c.recorded(ctx); err == nil && n >= want || ctx.Err() != nil {
			return n, err
		}
		wait(ctx, probeInterval)
	}
}

func (c *cluster) recorded(ctx context.Context) (n int, err error) {
	u := c.caller(c.operator, operatorAddress)
	defer u.forget()
	var page struct {
		Items []struct {
			What string `json:"what"`
		} `json:"items"`
	}
	if err := u.get(ctx, c.Nodes[0], "/admin/audit?class=operators&limit=1000", &page); err != nil {
		return 0, err
	}
	for _, r := range page.Items {
		if strings.Contains(r.What, "/admin/transfer") {
			n++
		}
	}
	return n, nil
}

// position is a node's place in the log.
type position struct {
	Term      uint64 `json:"term"`
	LastIndex uint64 `json:"last_log_index"`
}

// positions returns the highest term and log index of all nodes.
func (c *cluster) positions(ctx context.Context) (highest position, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	u := c.caller("", probeAddress)
	defer u.forget()
	for _, n := range c.Nodes {
		var p position
		if err := u.get(ctx, n, "/status", &p); err != nil {
			return p, fmt.Errorf("status of %s: %w", n.ID, err)
		}
		highest.Term, highest.LastIndex = max(highest.Term, p.Term), max(highest.LastIndex, p.LastIndex)
	}
	return highest, nil
}
