package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"northstar/cluster"
)

// closeTimeout limits the wait for the goroutines of closed connections.
const closeTimeout = 2 * time.Second

// Run takes part in the cluster until ctx ends, which is not an error, or until the node cannot continue. A
// *Problem is a configuration that does not fit the data directory. ErrRestart asks for another New with the
// same configuration. When Run returns, everything it started has ended and the data directory is closed. Run
// does not transfer leadership: call Drain before. Call Run once.
//
// It stops in this order:
//
//  1. HTTP, so that no client gets a response from a half-stopped node;
//  2. tasks that watch the cluster or query it;
//  3. consensus, with its leader tasks, Raft and the storage;
//  4. peer traffic: Raft needs it until the end.
func (n *Node) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	peers := newTaskGroup(g, ctx, n.transport.Run)
	raft := newTaskGroup(g, ctx, n.consensus.Run)
	serving := newTaskGroup(g, ctx, n.serve, n.serveEtcd)
	n.logStart()
	tasks := newTaskGroup(g, ctx, n.tasks()...)
	g.Go(func() error {
		<-ctx.Done()
		for _, s := range []*taskGroup{serving, tasks, raft, peers} {
			s.cancel()
			<-s.done
		}
		n.crashSocket.Close()
		return nil
	})
	err := g.Wait()
	n.eventLog.Append(cluster.Event{Type: "node", Message: "this node has stopped"})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return configProblem(err)
}

func (n *Node) logStart() {
	b := ReadBuild()
	n.log.Info("node is running", "version", b.Version, "http", n.httpAddr, "raft", n.raftAddr, "data_dir",
		n.cfg.DataDir,
		"boot_id", n.boot)
	n.eventLog.Append(cluster.Event{Type: "node", Message: "this node has started", Fields: map[string]any{
		"version": b.Version, "boot_id": n.boot, "http_address": n.httpAddr, "raft_address": n.raftAddr,
	}})
	n.env.Notify("READY=1")
}

// tasks returns what runs beside consensus and HTTP.
func (n *Node) tasks() []func(context.Context) error {
	tasks := []func(context.Context) error{
		n.api.Run,
		n.failover.Run, n.restartWhenRequested,
		n.splitBrain.Run,
		n.audit.Run,
		func(ctx context.Context) error { return recordEvents(ctx, n.eventLog, n.snapshotState) },
	}
	if n.joiner != nil {
		tasks = append(tasks, n.joiner.run)
	}
	if n.tracer != nil {
		tasks = append(tasks, n.tracer.Run)
	}
	if n.debugListener != nil {
		tasks = append(tasks, n.serveDebug)
	}
	if n.env.WatchdogInterval > 0 {
		tasks = append(tasks, n.watchdog)
	}
	return tasks
}

// restartDrainTimeout limits requests in flight, such as the recovery request that caused the restart.
const restartDrainTimeout = 10 * time.Second

// restartWhenRequested ends Run once requests in flight have been answered.
func (n *Node) restartWhenRequested(ctx context.Context) error {
	select {
	case <-n.restartRequested:
	case <-ctx.Done():
		return nil
	}
	n.eventLog.Append(cluster.Event{
		Type:    "node",
		Message: "archiving local data and restarting as a member of the new generation",
	})
	n.api.Drain()
	ctx, cancel := context.WithTimeout(ctx, restartDrainTimeout)
	defer cancel()
	var leaving sync.WaitGroup
	leaving.Go(func() { n.drainEtcd(ctx) })
	if err := n.http.Shutdown(ctx); err != nil {
		n.log.Warn("aborting in-flight requests", "error", err)
	}
	leaving.Wait()
	return ErrRestart
}

// requestRestart makes restartWhenRequested end Run.
func (n *Node) requestRestart() {
	select {
	case n.restartRequested <- struct{}{}:
	default:
	}
}

// taskGroup is a group of goroutines with its own context, so that groups stop one after another.
type taskGroup struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when all goroutines have ended
}

func newTaskGroup(g *errgroup.Group, ctx context.Context, parts ...func(context.Context) error) *taskGroup {
	s := &taskGroup{done: make(chan struct{})}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	for _, part := range parts {
		all.Add(1)
		g.Go(func() error {
			defer all.Done()
			return part(ctx)
		})
	}
	g.Go(func() error {
		all.Wait()
		close(s.done)
		return nil
	})
	return s
}

// serve answers HTTP until ctx ends, or until Drain shuts the server down.
func (n *Node) serve(ctx context.Context) error {
	var secure *tls.Config
	if n.tls != nil {
		// net/http speaks HTTP/2 only on a *tls.Conn, which those of the API's listener are not.
		secure = n.tls.ServerConfig(false, "http/1.1")
	}
	listener := n.api.Listener(n.httpListener, secure)
	undo := context.AfterFunc(ctx, func() { _ = n.http.Close() })
	defer undo()
	err := n.http.Serve(listener)
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	<-ctx.Done()
	_ = n.http.Close()
	n.conns.await(closeTimeout)
	return nil
}

// watchdog notifies the service manager while consensus makes progress.
func (n *Node) watchdog(ctx context.Context) error {
	tick := time.NewTicker(n.env.WatchdogInterval)
	defer tick.Stop()
	for {
		alive, cancel := context.WithTimeout(ctx, n.env.WatchdogInterval)
		if err := n.transport.Raft().CheckMainLoop(alive); err == nil {
			n.env.Notify("WATCHDOG=1")
		} else if ctx.Err() == nil {
			n.log.Warn("the consensus loop makes no progress", "error", err)
		}
		cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// trackConn is the ConnState of the HTTP server.
func (n *Node) trackConn(_ net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		n.conns.add(1)
	case http.StateClosed, http.StateHijacked:
		n.conns.add(-1)
	}
}

// connCount counts connections whose goroutine has not ended.
type connCount struct {
	mu   sync.Mutex
	open int
	none chan struct{} // closed when none is open; nil: no caller waits
}

func (c *connCount) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += n
	if c.open == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// await waits until none is open, at most for d. One caller waits at a time.
func (c *connCount) await(d time.Duration) {
	none := make(chan struct{})
	c.mu.Lock()
	c.none = none
	c.mu.Unlock()
	c.add(0)
	select {
	case <-none:
	case <-time.After(d):
	}
}
