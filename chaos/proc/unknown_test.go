package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"northstar/client"
)

// counting increments one key with conditional writes, and makes sessions, through some nodes. If a write were done
// twice, or answered wrongly, the key would not count the answers with success. Any other answer fails the test.
type counting struct {
	t        *testing.T
	c        *Cluster
	added    atomic.Int64
	sessions atomic.Int64
	done     chan struct{}
	writers  sync.WaitGroup
}

const (
	countedKey  = "count"
	countedTime = "timeout_ms=60000" // of a request: as long as a fault may last on a busy machine
)

func startCounting(t *testing.T, c *Cluster, cl *client.Client, through ...*Node) *counting {
	k := &counting{t: t, c: c, done: make(chan struct{})}
	for _, n := range through {
		k.repeat(func() error { return k.addAt(n) })
		k.repeat(func() error { return k.addAt(n) })
		k.repeat(func() error { return k.createSession(n) })
	}
	k.repeat(func() error { return k.addBy(cl) })
	k.repeat(func() error { return k.addBy(cl) })
	return k
}

func (k *counting) repeat(write func() error) {
	k.writers.Go(func() {
		for {
			select {
			case <-k.done:
				return
			default:
			}
			if err := write(); err != nil {
				k.t.Error(err)
				return
			}
		}
	})
}

func (k *counting) stop() {
	close(k.done)
	k.writers.Wait()
}

// more waits until some more writes of each kind are answered.
func (k *counting) more() {
	added, sessions := k.added.Load()+100, k.sessions.Load()+20
	eventually(k.t, 2*soon, func() error {
		if k.added.Load() < added || k.sessions.Load() < sessions {
			return fmt.Errorf("%d of %d added, %d of %d sessions", k.added.Load(), added, k.sessions.Load(), sessions)
		}
		return nil
	})
}

// addAt increments the key at a node as a plain HTTP client does.
func (k *counting) addAt(n *Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	a, err := do(ctx, n, http.MethodGet, "/v1/kv/"+countedKey+"?"+countedTime, nil)
	if err != nil || a.Status != http.StatusOK {
		return fmt.Errorf("read at %s: %d %s %v", n.ID, a.Status, a.Body, err)
	}
	value, err := strconv.Atoi(string(a.Body))
	if err != nil {
		return err
	}
	a, err = do(ctx, n, http.MethodPut, "/v1/kv/"+countedKey+"?"+countedTime, []byte(strconv.Itoa(value+1)),
		"If-Match", fmt.Sprintf("\"%d\"", a.Revision))
	switch {
	case err != nil || a.Status != http.StatusOK && a.Status != http.StatusPreconditionFailed:
		return fmt.Errorf("write at %s: %d %s %v", n.ID, a.Status, a.Body, err)
	case a.Status == http.StatusOK:
		k.added.Add(1)
	}
	return nil
}

// addBy increments the key as an application with the Go client does.
func (k *counting) addBy(cl *client.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := cl.Get(ctx, countedKey, client.Linearizable)
	if err != nil {
		return fmt.Errorf("read by the client: %w", err)
	}
	value, err := strconv.Atoi(string(e.Value))
	if err != nil {
		return err
	}
	_, err = cl.Put(ctx, countedKey, []byte(strconv.Itoa(value+1)), client.WriteOptions{IfRevision: e.Revision})
	switch {
	case err == nil:
		k.added.Add(1)
	case !errors.Is(err, client.ErrConditionFailed):
		return fmt.Errorf("write by the client: %w", err)
	}
	return nil
}

func (k *counting) createSession(n *Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	a, err := do(ctx, n, http.MethodPost, "/v1/sessions?"+countedTime, []byte(`{"name":"counted","ttl_ms":3600000}`))
	if err != nil || a.Status != http.StatusOK {
		return fmt.Errorf("session at %s: %d %s %v", n.ID, a.Status, a.Body, err)
	}
	k.sessions.Add(1)
	return nil
}

// check compares what the cluster holds with the answers, and returns it.
func (k *counting) check(added, sessions int64) (int64, int64) {
	k.t.Helper()
	added, sessions = added+k.added.Load(), sessions+k.sessions.Load()
	if got := string(mustGet(k.t, k.c, countedKey).Body); got != strconv.FormatInt(added, 10) {
		k.t.Fatalf("the key counts %s, %d writes were answered with success", got, added)
	}
	found, after := int64(0), ""
	for more := true; more; more = after != "" {
		var page struct {
			Items []struct{ Name string }
			Next  string
		}
		eventually(k.t, soon, func() error {
			a, err := do(k.t.Context(), k.c.Nodes[0], http.MethodGet, "/v1/sessions?after="+after, nil)
			if err == nil && a.Status == http.StatusOK {
				page.Items, page.Next = nil, ""
				err = json.Unmarshal(a.Body, &page)
			} else if err == nil {
				err = fmt.Errorf("%d %s", a.Status, a.Body)
			}
			return err
		})
		found, after = found+int64(len(page.Items)), page.Next
	}
	if found != sessions {
		k.t.Fatalf("%d sessions, %d were answered with success", found, sessions)
	}
	return added, sessions
}

// leaderFault takes the leader away, and brings the node back.
type leaderFault struct {
	name  string
	begin func(*Node) error
	end   func(*Node) error
}

// countOver runs writers over faults of the leader, through the survivors and through a Go client with all nodes.
func countOver(t *testing.T, c *Cluster, faults []leaderFault) {
	t.Helper()
	mustPut(t, c, countedKey, "0")
	var endpoints []string
	for _, n := range c.Nodes {
		endpoints = append(endpoints, n.HTTP)
	}
	cl, err := client.New(client.Config{Endpoints: endpoints, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	added, sessions := int64(0), int64(0)
	for _, f := range faults {
		old := steady(t, c)
		k := startCounting(t, c, cl, others(c, old)...)
		k.more()
		if err := f.begin(old); err != nil {
			t.Fatal(err)
		}
		k.more()
		k.stop()
		if t.Failed() {
			t.Fatalf("%s of %s", f.name, old.ID)
		}
		if err := f.end(old); err != nil {
			t.Fatal(err)
		}
		leader(t, c)
		added, sessions = k.check(added, sessions)
	}
}

// A leader's death, hang or shutdown is no unknown outcome for a client of a surviving node, nor for the Go client, and
// nothing is done twice.
func TestNoUnknownOutcome(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--election-timeout-min", "500ms", "--election-timeout-max", "1s")
	start(t, c)
	kill := leaderFault{"kill", func(n *Node) error { n.Kill(); return nil }, c.StartNode}
	stop := leaderFault{
		"SIGSTOP", func(n *Node) error { return n.Signal(syscall.SIGSTOP) },
		func(n *Node) error { return n.Signal(syscall.SIGCONT) },
	}
	term := leaderFault{
		"SIGTERM", func(n *Node) error { return n.Signal(syscall.SIGTERM) },
		func(n *Node) error { n.Wait(); return c.StartNode(n) },
	}
	countOver(t, c, []leaderFault{kill, stop, term, stop, kill})
}

// The same for a leader that is cut off from the others.
func TestNoUnknownOutcome_Cut(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--insecure", "--election-timeout-min", "500ms", "--election-timeout-max", "1s")
	w := newNetwork(t, c)
	start(t, c)
	cut := leaderFault{"cut", w.Isolate, func(*Node) error { return w.Heal() }}
	countOver(t, c, []leaderFault{cut, cut, cut})
}
