// Package attach serves attached connections as streams of keep-alive events and reports them to the leader. When a
// connection ends, its session ends immediately or after a grace. Package roles decides when a session is renewed.
package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"northstar/state"
)

// Renewals renews the sessions of this node's connections. Its methods may be called by any goroutine.
type Renewals interface {
	// Attach renews the session for the first time; Run renews it from then on until it is detached. CodeNoLeader:
	// nothing happened, unless the leader has not answered. The first renewal continues when ctx ends.
	Attach(ctx context.Context, c cluster.Connection) (cluster.AttachedSession, error)
	// GiveUp reports the end of a connection that Attach has failed for, if the leader may have recorded it.
	GiveUp(c cluster.Connection)
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
func (s *Server) Serve(w forward.Client, r *http.Request, c cluster.Connection, socket net.Conn) error {
	since := time.Now()
	c.Stream = s.newStream()
	c.Unacknowledged = func() bool { return unacknowledged(socket) }
	if s.Forward.ForwardToken {
		c.Credential = r.Header.Get("Authorization")
	}
	session, err := s.attach(r.Context(), w, c)
	if err != nil {
		return err
	}
	limitSilence(socket, session.TTL)
	e, err := stream.Start(w, s.Problem)
	out := keepAlives{e, c.Session, session.TTL, since, session.TTL*maxAge/2 + rand.N(session.TTL*maxAge/2)}
	for last := false; err == nil && !last; {
		select {
		case k := <-session.Events:
			last, err = out.write(k)
		case <-s.Stopping.Done():
			err, last = e.Draining(), true
		case <-r.Context().Done():
			err = r.Context().Err()
			if why := (*cluster.Error)(nil); errors.As(context.Cause(r.Context()), &why) {
				// The client is there: its session lives on for its TTL.
				err, last = e.Fail(why), true
			}
		}
	}
	// A client may close the connection after the last event.
	session.Detach(err != nil)
	return nil
}

// Hold records a connection of another protocol, which renews its session itself. detach must be called once, with
// whether the client is gone: the session then ends after c.Grace, unless another connection holds it.
func (s *Server) Hold(ctx context.Context, c cluster.Connection) (detach func(lost bool), err error) {
	c.Stream, c.Passive = s.newStream(), true
	session, err := s.attach(ctx, nil, c)
	return session.Detach, err
}

func (s *Server) newStream() string { return fmt.Sprintf("%.16s-%x", s.BootID, s.streams.Add(1)) }

// attach makes the first renewal, which proves that the session lives. client is nil for another protocol's connection.
func (s *Server) attach(
	ctx context.Context, client forward.Client, c cluster.Connection,
) (session cluster.AttachedSession, err error) {
	wait, recorded := s.Forward.NewWait(client, false), false
	defer wait.Release()
	defer func() {
		if err != nil && recorded {
			s.renewals.GiveUp(c)
		}
	}()
	for {
		if s.Leave() {
			return session, problem.Busy("node %s is draining: attach to another node", s.Forward.Self)
		}
		wait.Leader()
		session, err = s.renewals.Attach(ctx, c)
		recorded = recorded || errors.Is(err, errUnanswered) // perhaps
		if cluster.IsCode(err, cluster.CodeNoLeader) {
			if err = wait.Next(ctx, err); err == nil {
				continue
			}
		}
		return session, err
	}
}

// maxAge is for how many TTLs a connection renews its session. The client counts its deadline from its request, by
// elapsed_ms, which this node's clock measures. Clocks whose rates differ by 0.05 % differ by 5 % of the TTL then, and
// the client leaves 10 % for that.
const maxAge = 100

// keepAlives sends the events of one connection.
type keepAlives struct {
	to      *stream.Events
	session string
	ttl     time.Duration
	since   time.Time     // when this node received the request
	age     time.Duration // at which the stream ends; random, so that streams that began together do not end together
}

// write sends one event, and reports whether it was the last one. elapsed_ms is the time since this node received the
// request. A client adds it to the time at which it sent the request: the sum is not later than the renewal.
func (s *keepAlives) write(k cluster.KeepAlive) (last bool, err error) {
	elapsed := max(0, k.RenewedAt.Sub(s.since))
	switch {
	case k.Err != nil && k.Err.Code == cluster.CodeSessionEnded:
		return true, s.to.Fail(cluster.Errorf(cluster.CodeSessionEnded, "session %q has ended", s.session))
	case k.Err != nil:
		return true, s.to.Fail(k.Err)
	case k.CommentOnly:
		s.to.Comment()
		return false, s.to.Flush()
	case k.Draining, elapsed > maxAge*s.ttl: // without a leader, no event comes at the right age
		return true, s.to.Draining()
	}
	data := strconv.AppendInt([]byte(`{"ttl_ms":`), s.ttl.Milliseconds(), 10)
	data = strconv.AppendInt(append(data, `,"elapsed_ms":`...), elapsed.Milliseconds(), 10)
	if err := s.to.Event("", apiv1.EventKeepAlive, append(data, '}')); err != nil {
		return false, err
	}
	if elapsed >= s.age { // directly after a renewal: the client has all of its TTL to attach again
		return true, s.to.Draining()
	}
	return false, s.to.Flush()
}

// Sessions keeps the session timers while this node leads. Its methods may be called by any goroutine.
type Sessions interface {
	// RenewAttached renews sessions of attached connections. Passive connections are only recorded. CodeNoLeader:
	// nothing was renewed.
	RenewAttached(ctx context.Context, list []cluster.Attachment) (state.Renewed, error)
	// Detach ends the sessions of closed connections. After an error it must be repeated.
	Detach(ctx context.Context, list []cluster.Attachment) error
}

// Leader returns a context that ends when the leader or its term changes. While neither does, it is the same one.
func (s *Server) Leader() context.Context { return s.Forward.Leader.Current().Changed }

// LeaveThisNode reports whether clients must attach to another node.
func (s *Server) LeaveThisNode() bool { return s.Leave() }

// Renew reports live connections to the leader, which may be this node, and returns one result for each.
func (s *Server) Renew(
	ctx context.Context, credential string, list []cluster.Attachment,
) ([]cluster.AttachResult, error) {
	got, err := s.report(ctx, credential, list, nil)
	if err != nil {
		return nil, err
	}
	ttl := make(map[string]int64, len(got.Renewed))
	for _, kept := range got.Renewed {
		ttl[kept.SessionID] = kept.TTLMS
	}
	revoked := make(map[string]*cluster.Error, len(got.Revoked))
	for _, p := range got.Revoked {
		revoked[p.SessionID] = problem.RoleRevoked(p.SessionID, p.Role, p.Token)
	}
	out := make([]cluster.AttachResult, len(list))
	for i, a := range list {
		out[i].TTL = time.Duration(ttl[a.Session]) * time.Millisecond
		if err := revoked[a.Session]; err != nil && !a.Passive {
			out[i].Err = err
		} else if out[i].TTL == 0 {
			out[i].Err = problem.SessionEnded(a.Session)
		}
	}
	return out, nil
}

// Detach reports closed connections to the leader.
func (s *Server) Detach(ctx context.Context, credential string, list []cluster.Attachment) error {
	_, err := s.report(ctx, credential, nil, list)
	return err
}

// errUnanswered: the leader may have done what a report says.
var errUnanswered = errors.New("did not answer")

func (s *Server) report(
	ctx context.Context, credential string, live, closed []cluster.Attachment,
) (out apiv1.AttachReportResult, err error) {
	leader := s.Forward.Leader.Current()
	if leader.ID == s.Forward.Self {
		return s.apply(ctx, live, closed)
	}
	addr := ""
	if leader.ID != "" {
		addr = s.Forward.AddressOf(leader.ID)
	}
	if addr == "" {
		return out, problem.NoLeader("no leader known (node %s)", s.Forward.Self)
	}
	resp, err := s.Forward.Post(ctx, forward.Caller{Authorization: credential}, addr, apiv1.PathAttached,
		apiv1.AttachReport{Live: encode(live), Closed: encode(closed)})
	switch {
	case err != nil:
		return out, problem.NoLeader("leader %s at %s %w", leader.ID, addr, fmt.Errorf("%w: %w", errUnanswered, err))
	case resp.Status != http.StatusOK:
		return out, problem.NoLeader("leader %s answered with status %d", leader.ID, resp.Status)
	}
	if err := json.Unmarshal(resp.Body, &out); err != nil {
		return out, fmt.Errorf("leader %s at %s %w in JSON: %w", leader.ID, addr, errUnanswered, err)
	}
	return out, nil
}

// Receive applies another node's report on the leader.
func (s *Server) Receive(ctx context.Context, in apiv1.AttachReport) (apiv1.AttachReportResult, error) {
	live, err := decode("keep", in.Live)
	if err != nil {
		return apiv1.AttachReportResult{}, err
	}
	closed, err := decode("drop", in.Closed)
	if err != nil {
		return apiv1.AttachReportResult{}, err
	}
	return s.apply(ctx, live, closed)
}

func (s *Server) apply(ctx context.Context, live, closed []cluster.Attachment) (apiv1.AttachReportResult, error) {
	out := apiv1.AttachReportResult{Renewed: []apiv1.SessionCreated{}, Ended: []string{}}
	if len(live) > 0 {
		got, err := s.Sessions.RenewAttached(ctx, live)
		if err != nil {
			return out, err
		}
		for _, s := range got.Alive {
			out.Renewed = append(out.Renewed, apiv1.SessionCreated{SessionID: s.ID, TTLMS: s.TTL.Milliseconds()})
		}
		out.Ended = append(out.Ended, got.Ended...)
		out.Revoked = EncodeRevocations(got.Revoked)
	}
	if len(closed) > 0 {
		return out, s.Sessions.Detach(ctx, closed)
	}
	return out, nil
}

// EncodeRevocations returns the JSON form of revoked roles.
func EncodeRevocations(list []state.Revocation) (out []apiv1.Revocation) {
	for _, p := range list {
		out = append(out, apiv1.Revocation{SessionID: p.Session, Role: p.Role, Token: p.Token})
	}
	return out
}

const maxStreamID = 64

func decode(field string, list []apiv1.Attachment) ([]cluster.Attachment, error) {
	if len(list) > cluster.MaxAttachBatch {
		return nil, problem.BadRequest("%s: must be at most %d connections (got %d)", field, cluster.MaxAttachBatch, len(list))
	}
	out := make([]cluster.Attachment, len(list))
	for i, a := range list {
		if err := state.CheckSession(field, a.SessionID); err != nil {
			return nil, err
		}
		grace := time.Duration(a.GraceMS) * time.Millisecond
		if a.StreamID == "" || len(a.StreamID) > maxStreamID || grace < 0 || grace > state.MaxSessionTTL {
			return nil, problem.BadRequest("%s: stream_id or grace_ms of session %q is out of bounds", field,
				a.SessionID)
		}
		out[i] = cluster.Attachment{Session: a.SessionID, Stream: a.StreamID, Grace: grace, Passive: a.NoRenew}
	}
	return out, nil
}

func encode(list []cluster.Attachment) (out []apiv1.Attachment) {
	for _, a := range list {
		out = append(out, apiv1.Attachment{
			SessionID: a.Session, StreamID: a.Stream, GraceMS: a.Grace.Milliseconds(), NoRenew: a.Passive,
		})
	}
	return out
}
