package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
)

// streaming runs a test with a client that follows the leader n1 of three nodes by a stream.
func streaming(t *testing.T, test func(t *testing.T, fc *fakeCluster, c *Client)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fc := newFakeCluster(t, "n1", "n2", "n3")
		defer fc.close()
		fc.streams = true
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * leaderStreamDelay)
		test(t, fc, c)
	})
}

func (fc *fakeCluster) leaderStreams() map[string]int {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	n := map[string]int{}
	for name, x := range fc.nodes {
		if x.streams > 0 {
			n[name] = x.streams
		}
	}
	return n
}

// The leader's connections stay open, as those of a process that is being torn down, or of one that hangs. A write in
// flight goes to the next leader as soon as there is one, and a new write does not try the old one.
func TestLeaderStream_WriteGoesToNewLeader(t *testing.T) {
	streaming(t, func(t *testing.T, fc *fakeCluster, c *Client) {
		if n := fc.leaderStreams(); len(n) != 1 || n["n1"] > 0 {
			t.Errorf("streams at %v, want one at a node that does not lead", n)
		}
		fc.hang("n1")
		done := make(chan error)
		put := func(key string) { _, err := c.Put(context.Background(), key, nil, WriteOptions{}); done <- err }
		go put("a")
		synctest.Wait()
		began := time.Now()
		time.Sleep(7 * time.Millisecond)
		fc.elect("n2")
		if err := <-done; err != nil {
			t.Error(err)
		}
		go put("b")
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 10*time.Millisecond {
			t.Errorf("two writes took %v over a failover of 7ms", took)
		}
	})
}

// A write without a key is not repeated while an attempt may have been applied.
func TestLeaderStream_WriteWithoutKeyIsNotRepeated(t *testing.T) {
	streaming(t, func(t *testing.T, fc *fakeCluster, c *Client) {
		fc.hang("n1")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		done := make(chan error)
		go func() {
			_, err := c.Put(ctx, "a", nil, WriteOptions{NoIdempotencyKey: true})
			done <- err
		}()
		synctest.Wait()
		fc.elect("n2")
		if err := <-done; !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
	})
}

// There is one stream, at a node that does not lead; a broken one is opened again, less and less often.
func TestLeaderStream_Reconnects(t *testing.T) {
	streaming(t, func(t *testing.T, fc *fakeCluster, c *Client) {
		at := ""
		for name := range fc.leaderStreams() {
			at = name
		}
		fc.elect(at)
		time.Sleep(time.Second)
		n := fc.leaderStreams()
		if n[at] != 1 || len(n) != 2 {
			t.Errorf("streams at %v after %s was elected", n, at)
		}
		fc.mu.Lock()
		fc.streams = false // as older nodes
		for _, x := range fc.nodes {
			x.streams = 0
		}
		fc.mu.Unlock()
		fc.elect("n1")
		for range 20 {
			if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute / 2)
		}
		total := 0
		for _, x := range fc.leaderStreams() {
			total += x
		}
		if total < 5 || total > 40 {
			t.Errorf("%d attempts in 10 minutes", total)
		}
	})
}

// Streams that end with their first event, as at another address of the leader, are opened less and less often.
func TestLeaderStream_EndsImmediately(t *testing.T) {
	streaming(t, func(t *testing.T, fc *fakeCluster, c *Client) {
		fc.mu.Lock()
		fc.oneEvent = true
		for _, x := range fc.nodes {
			x.streams = 0
		}
		fc.mu.Unlock()
		fc.elect("n2")
		for range 20 {
			if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute / 2)
		}
		total := 0
		for _, n := range fc.leaderStreams() {
			total += n
		}
		if total < 5 || total > 40 {
			t.Errorf("%d streams in 10 minutes", total)
		}
	})
}

// A client that is not in use holds no stream.
func TestLeaderStream_EndsWhenIdle(t *testing.T) {
	streaming(t, func(t *testing.T, fc *fakeCluster, c *Client) {
		time.Sleep(2 * leaderStreamIdle)
		fc.elect("n2")
		fc.elect("n3") // what is read shows that the client is idle
		time.Sleep(time.Second)
		if c.followingLeader.Load() {
			t.Error("the stream goes on")
		}
		before := fc.leaderStreams()
		if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * leaderStreamDelay)
		after := fc.leaderStreams()
		if before["n1"]+before["n2"]+before["n3"] >= after["n1"]+after["n2"]+after["n3"] {
			t.Error("a client in use does not follow the leader")
		}
	})
}

// With one endpoint there is no second node.
func TestLeaderStream_OneEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fc := newFakeCluster(t, "n1")
		defer fc.close()
		fc.streams = true
		c := fc.client("n1")
		defer c.Close()
		for range 5 {
			if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := fc.leaderStreams(); len(n) > 0 {
			t.Errorf("streams at %v", n)
		}
	})
}

// The client's own keys are numbered, and tell the cluster which results it need not keep.
func TestNumberedKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fc := newFakeCluster(t, "n1")
		defer fc.close()
		c := fc.client("n1")
		defer c.Close()
		for range 3 {
			if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for i, r := range fc.requests("n1") {
			sender, number, lowest, ok := apiv1.ParseNumberedKey(r.Header.Get(apiv1.HeaderIdempotencyKey))
			if !ok || sender != c.senders.all[0].name || number != uint64(i)+1 || lowest != number {
				t.Errorf("request %d: %q", i, r.Header.Get(apiv1.HeaderIdempotencyKey))
			}
		}
	})
}
