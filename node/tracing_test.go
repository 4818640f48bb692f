package node

import (
	"bytes"
	"context"
	"encoding/hex"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/failover"
)

// span is a span as a collector receives it.
type span struct {
	node, name, status string
	trace, id, parent  []byte
	attributes         map[string]string
	start, end         uint64
}

// spanCollector is an OpenTelemetry collector.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []span
}

func (c *spanCollector) Export(
	_ context.Context, r *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range r.ResourceSpans {
		node := ""
		for _, a := range rs.Resource.Attributes {
			if a.Key == "service.instance.id" {
				node = a.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				attributes := map[string]string{}
				for _, a := range s.Attributes {
					attributes[a.Key] = a.Value.GetStringValue()
				}
				c.spans = append(c.spans, span{
					node: node, name: s.Name, status: s.Status.GetMessage(), trace: s.TraceId, id: s.SpanId,
					parent: s.ParentSpanId, attributes: attributes, start: s.StartTimeUnixNano, end: s.EndTimeUnixNano,
				})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// all returns the spans received until now for which keep returns true.
func (c *spanCollector) all(keep func(s span) bool) (found []span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if keep(s) {
			found = append(found, s)
		}
	}
	return found
}

// startCollector starts a collector that runs until the end of the test.
func startCollector(t *testing.T) (c *spanCollector, url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c = &spanCollector{}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // returns when it is stopped
	}()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return c, "http://" + listener.Addr().String()
}

// A collector receives a write through a follower, and the failover after the leader's end, each as one trace.
func TestTraces(t *testing.T) {
	t.Parallel()
	c, url := startCollector(t)
	nodes := newCluster(t, 3, func(i int, cfg *Config) {
		calm(i, cfg)
		cfg.Tracing.OTLP, cfg.Tracing.Sample = url, 0 // the client's decision counts
	})
	lead := startAll(t, nodes)
	follower := others(nodes, lead)[0]
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	eventually(t, "a traced write", func() bool {
		req, err := http.NewRequest(http.MethodPut, "http://"+follower.httpAddr+"/v1/kv/a", strings.NewReader("1"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Traceparent", "00-"+traceID+"-b7ad6b7169203331-01")
		resp, err := plain.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	want(t, plain, "PUT", "http://"+follower.httpAddr+"/v1/kv/b", "1", 200, "revision") // not sampled
	steps := []traceStep{
		{follower, "PUT /v1/kv/{key}"},
		{follower, "forward"},
		{lead, "PUT /v1/kv/{key}"},
		{lead, "propose"},
		{lead, "append"},
		{lead, "apply"},
	}
	var write []span
	eventually(t, "the collector has the write", func() bool {
		write = c.all(func(s span) bool { return hex.EncodeToString(s.trace) == traceID })
		return !slices.ContainsFunc(steps, func(step traceStep) bool { return !slices.ContainsFunc(write, step.is) })
	})
	checkWriteTrace(t, write, steps)
	if other := c.all(func(s span) bool { return hex.EncodeToString(s.trace) != traceID }); len(other) > 0 {
		t.Errorf("unsampled requests were sent: %+v", other)
	}

	lead.stop()
	var failover []span
	eventually(t, "the collector has the failover", func() bool {
		root := c.all(func(s span) bool { return s.name == "failover" })
		if len(root) > 0 {
			failover = c.all(func(s span) bool { return bytes.Equal(s.trace, root[0].trace) })
		}
		return len(failover) > 0
	})
	checkFailoverTrace(t, failover, lead.cfg.ID)
}

// traceParent is that of the client's span in these tests.
var traceParent = []byte{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}

// traceStep is a span of a node.
type traceStep struct {
	node *testNode
	name string
}

// is reports whether a span is one of the step.
func (step traceStep) is(s span) bool {
	return s.node == string(step.node.cfg.ID) && s.name == step.name
}

// checkWriteTrace checks that each step is below the one before, the last two both below the proposal.
func checkWriteTrace(t *testing.T, write []span, steps []traceStep) {
	t.Helper()
	parent := traceParent
	var propose span
	for _, step := range steps {
		i := slices.IndexFunc(write, func(s span) bool {
			return step.is(s) && bytes.Equal(s.parent, parent)
		})
		if i < 0 {
			t.Fatalf("no span %s of %s below %x:\n%+v", step.name, step.node.cfg.ID, parent, write)
		}
		switch step.name {
		case "propose":
			propose = write[i]
		case "append", "apply":
			if s := write[i]; s.start < propose.start || s.end > propose.end || s.end < s.start {
				t.Errorf("%s is not within the proposal: %+v, %+v", step.name, s, propose)
			}
		}
		if step.name != "append" {
			parent = write[i].id
		}
	}
}

// A write of an etcd client through a follower is one trace, as one of the native API is. Its stream is none.
func TestTraces_Etcd(t *testing.T) {
	t.Parallel()
	c, url := startCollector(t)
	nodes := newCluster(t, 3, func(i int, cfg *Config) {
		calm(i, cfg)
		withEtcd(i, cfg)
		cfg.Tracing.OTLP, cfg.Tracing.Sample = url, 0 // the client's decision counts
	})
	lead := startAll(t, nodes)
	follower := others(nodes, lead)[0]
	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn := follower.etcdClient()
	if _, err := pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte("a")}); err != nil { // not sampled
		t.Fatal(err)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+traceID+"-b7ad6b7169203331-01")
	streaming, end := context.WithCancel(ctx)
	defer end()
	watch, err := pb.NewWatchClient(conn).Watch(streaming)
	if err != nil {
		t.Fatal(err)
	}
	create := &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("a")}}
	if err := watch.Send(&pb.WatchRequest{RequestUnion: create}); err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	end()
	if _, err := pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	steps := []traceStep{
		{follower, "etcdserverpb.KV/Put"},
		{follower, "forward"},
		{lead, "leader call"},
		{lead, "propose"},
		{lead, "append"},
		{lead, "apply"},
	}
	var write []span
	eventually(t, "the collector has the write", func() bool {
		write = c.all(func(s span) bool { return hex.EncodeToString(s.trace) == traceID })
		return !slices.ContainsFunc(steps, func(step traceStep) bool { return !slices.ContainsFunc(write, step.is) })
	})
	checkWriteTrace(t, write, steps)
	calls := c.all(func(s span) bool { return strings.HasPrefix(s.name, "etcdserverpb.") })
	if len(calls) != 1 {
		t.Errorf("other calls were sent, too: %+v", calls)
	}
}

func checkFailoverTrace(t *testing.T, spans []span, old cluster.NodeID) {
	t.Helper()
	i := slices.IndexFunc(spans, func(s span) bool { return s.name == "failover" })
	root := spans[i]
	if root.node == string(old) || root.attributes["northstar.leader_id"] != root.node ||
		root.attributes["northstar.trigger"] == "" || len(root.parent) > 0 {
		t.Errorf("%+v", root)
	}
	end := root.start
	for _, name := range []string{"notice", "election", "serve"} {
		i := slices.IndexFunc(spans, func(s span) bool { return s.name == name && bytes.Equal(s.parent, root.id) })
		if i < 0 {
			t.Fatalf("no step %q: %+v", name, spans)
		}
		if s := spans[i]; s.start < end || s.end < s.start || s.end > root.end {
			t.Errorf("%s begins at %d and ends at %d, after %d, of %+v", name, s.start, s.end, end, root)
		} else {
			end = s.end
		}
	}
	if end != root.end {
		t.Errorf("the last step ends at %d: %+v", end, root)
	}
}

// A candidacy that is longer than the time without a leader is part of the failover.
func TestFailoverSteps(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for _, c := range []struct{ started, began, want time.Time }{
		{at(5), at(3), at(3)},
		{at(5), at(9), at(5)},
		{time.Time{}, at(9), at(9)},
	} {
		e := consensus.Election{StartedAt: c.started, LedAt: at(9)}
		if got := failoverSteps(e, failover.Timeline{}, c.began)[0]; got.Name != "notice" || !got.At.Equal(c.want) {
			t.Errorf("started at %v, without a leader since %v: %+v", c.started, c.began, got)
		}
	}
}

// A collector that cannot be reached costs a warning, and nothing else.
func TestTraces_WithoutCollector(t *testing.T) {
	t.Parallel()
	free := freeAddresses(t, 1)[0]
	n := newCluster(t, 1, func(_ int, cfg *Config) { cfg.Tracing.OTLP = "http://" + free })[0]
	startAll(t, []*testNode{n})
	eventually(t, "a warning", func() bool { // writes are traced once the tracer runs
		want(t, plain, "PUT", "http://"+n.httpAddr+"/v1/kv/a", "1", 200, "revision")
		return strings.Contains(n.log.String(), "cannot send spans")
	})
	want(t, plain, "PUT", "http://"+n.httpAddr+"/v1/kv/a", "1", 200, "revision")
}
