// Package attach serves attached connections as streams of keep-alive events and reports them to the leader. When a
// connection ends, its session ends immediately or after a grace. Package roles decides when a session is renewed.
package attach

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
)

// Renewals renews the sessions of this node's connections. Its methods may be called by any goroutine.
type Renewals interface {
	// Attach renews the session for the first time; Run renews it from then on until it is detached. CodeNoLeader:
	// nothing happened. The first renewal continues when ctx ends.
	Attach(ctx context.Context, c cluster.Connection) (cluster.AttachedSession, error)
	// Run renews and ends sessions until ctx ends.
	Run(ctx context.Context) error
}

// Config are the dependencies of a Server. All are required.
type Config struct {
	BootID   string                 // part of the names of connections
	Renewals func(*Server) Renewals // which reports connections by the methods of Server
	Sessions Sessions
	Forward  *forward.Forwarder
	Stopping context.Context // ends when this node is stopping
	Leave    func() bool     // reports whether clients must attach to another node
	// Problem returns the problem document of an error that ends a stream.
	Problem func(*cluster.Error) apiv1.Problem
}

// Server serves attached connections.
type Server struct {
	Config
	renewals Renewals
	streams  atomic.Uint64
}

// New returns a Server.
func New(c Config) *Server {
	s := &Server{Config: c}
	s.renewals = c.Renewals(s)
	return s
}

// Run renews and ends sessions until ctx ends.
func (s *Server) Run(ctx context.Context) error { return s.renewals.Run(ctx) }

// Serve keeps the session of c alive until the connection of r ends or the session cannot be renewed. It sets the
// stream of c. Without a leader it waits as other requests do. socket is the connection, nil if unknown.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, c cluster.Connection, socket net.Conn) error {
	since := time.Now()
	c.Stream = fmt.Sprintf("%.16s-%x", s.BootID, s.streams.Add(1))
	c.Unacknowledged = func() bool { return unacknowledged(socket) }
	if s.Forward.ForwardToken {
		c.Credential = r.Header.Get("Authorization")
	}
	session, err := s.attach(r.Context(), c)
	if err != nil {
		return err
	}
	limitSilence(socket, session.TTL)
	e, err := stream.Start(w, s.Problem)
	for last := false; err == nil && !last; {
		select {
		case k := <-session.Events:
			err, last = write(e, c.Session, session.TTL, k, since), k.Last()
		case <-s.Stopping.Done():
			err, last = e.Draining(), true
		case <-r.Context().Done():
			err = r.Context().Err()
		}
	}
	// A client may close the connection after the last event.
	session.Detach(err != nil)
	return nil
}

// attach makes the first renewal, which proves that the session lives.
func (s *Server) attach(ctx context.Context, c cluster.Connection) (session cluster.AttachedSession, err error) {
	wait := s.Forward.NewWait(false)
	defer wait.Release()
	for {
		if s.Leave() {
			return session, problem.Busy("node %s is draining: attach to another node", s.Forward.Self)
		}
		wait.Leader()
		session, err = s.renewals.Attach(ctx, c)
		if cluster.IsCode(err, cluster.CodeNoLeader) {
			if err = wait.Next(ctx, err); err == nil {
				continue
			}
		}
		return session, err
	}
}

// write sends one event. elapsed_ms is the time since this node received the request. A client adds it to the time at
// which it sent the request: the sum is not later than the renewal.
func write(e *stream.Events, session string, ttl time.Duration, k cluster.KeepAlive, since time.Time) error {
	switch {
	case k.Err != nil && k.Err.Code == cluster.CodeSessionEnded:
		return e.Fail(cluster.Errorf(cluster.CodeSessionEnded, "session %q has ended", session))
	case k.Err != nil:
		return e.Fail(k.Err)
	case k.Draining:
		return e.Draining()
	case k.CommentOnly:
		e.Comment()
		return e.Flush()
	}
	data := strconv.AppendInt([]byte(`{"ttl_ms":`), ttl.Milliseconds(), 10)
	data = strconv.AppendInt(append(data, `,"elapsed_ms":`...), max(0, k.RenewedAt.Sub(since)).Milliseconds(), 10)
	if err := e.Event("", apiv1.EventKeepAlive, append(data, '}')); err != nil {
		return err
	}
	return e.Flush()
}
