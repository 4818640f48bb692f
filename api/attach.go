package api

import (
	"fmt"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// attachSession serves GET /v1/sessions/{id}/attach: the session is held by this
// connection, and ends with it.
func attachSession(c *request) error {
	if err := state.CheckSession("id", c.param); err != nil {
		return err
	}
	grace, err := c.queryInt("grace_ms", 0, 0, state.MaxSessionTTL.Milliseconds())
	if err != nil {
		return err
	}
	hold := true
	if c.query.Has("hold") {
		if hold, err = c.queryBool("hold"); err != nil {
			return err
		}
	}
	a := c.s.attached.add(c, time.Duration(grace)*time.Millisecond, !hold)
	if err := c.s.attached.open(c.r.Context(), a); err != nil {
		return err
	}
	e, err := c.startSSE()
	if err == nil {
		err = e.streamKeepAlives(a)
	}
	// Whoever was told to move, or that the session has ended, may hang up.
	c.s.attached.close(a, err != nil)
	return c.ignoreWriteError(err)
}

// streamKeepAlives writes keep-alives until the client is gone, which is an error, or
// there is nothing to hold any more.
func (e *sseWriter) streamKeepAlives(a *attachment) error {
	for {
		select {
		case b := <-a.events:
			if err := e.writeKeepAlive(a, b); err != nil || b.isFinal() {
				return err
			}
		case <-e.c.s.stopping.Done():
			return e.writeKeepAlive(a, keepAliveEvent{draining: true})
		case <-e.c.r.Context().Done():
			return e.c.r.Context().Err()
		}
	}
}

// keepAliveEvent is what a connection is told.
type keepAliveEvent struct {
	renewed     time.Time // the session lives for its TTL from here on; zero: not renewed
	ended       bool
	revoked     state.Revocation // a role was taken from it: it is not renewed
	draining    bool             // this node is about to stop, or drained
	commentOnly bool             // nothing, but that the connection stands
}

// release says whether it is the last one.
func (b keepAliveEvent) isFinal() bool { return b.ended || b.revoked.Role != "" || b.draining }

// keepAliveEvent writes one keep-alive. elapsed_ms is counted on this node's clock from
// when it received the request: a client that adds it to when it sent the request
// has a time that is not after the renewal.
func (e *sseWriter) writeKeepAlive(a *attachment, b keepAliveEvent) error {
	switch {
	case b.ended:
		return e.writeProblem(cluster.Errorf(cluster.CodeSessionEnded, "session %q has ended", a.Session))
	case b.revoked.Role != "":
		return e.writeProblem(roleRevokedError(b.revoked))
	case b.draining:
		e.field("event", apiv1.EventDraining)
		e.field("data", "{}")
	case b.commentOnly:
		e.buf = append(e.buf, ':', '\n')
	default:
		e.field("event", apiv1.EventKeepAlive)
		data := strconv.AppendInt([]byte(`{"ttl_ms":`), a.ttl.Milliseconds(), 10)
		data = strconv.AppendInt(append(data, `,"elapsed_ms":`...), max(0, b.renewed.Sub(a.requestedAt)).Milliseconds(), 10)
		e.field("data", string(append(data, '}')))
	}
	e.buf = append(e.buf, '\n')
	return e.flush()
}

// postAttachReport serves POST /v1/sessions/attached, with which nodes tell the leader
// of the connections that they serve.
func postAttachReport(c *request) error {
	var in apiv1.AttachReport
	if _, err := c.decodeBody(&in); err != nil {
		return err
	}
	keep, err := parseAttachments("keep", in.Live)
	if err != nil {
		return err
	}
	drop, err := parseAttachments("drop", in.Closed)
	if err != nil {
		return err
	}
	ctx, cancel := c.contextWithLimit(apiv1.DefaultTimeoutMS * time.Millisecond)
	defer cancel()
	out := apiv1.AttachReportResult{Renewed: []apiv1.SessionCreated{}, Ended: []string{}}
	if len(keep) > 0 {
		got, err := c.s.deps.Sessions.RenewAttached(ctx, keep)
		if err != nil {
			return err
		}
		for _, s := range got.Alive {
			out.Renewed = append(out.Renewed, apiv1.SessionCreated{SessionID: s.ID, TTLMS: s.TTL.Milliseconds()})
		}
		out.Ended = append(out.Ended, got.Ended...)
		out.Revoked = encodeRevocations(got.Revoked)
	}
	if len(drop) > 0 {
		if err := c.s.deps.Sessions.Detach(ctx, drop); err != nil {
			return err
		}
	}
	return c.reply(out)
}

func parseAttachments(field string, list []apiv1.Attachment) ([]cluster.Attachment, error) {
	if len(list) > maxRenewBatch {
		return nil, badRequest("%s: want at most %d, got %d", field, maxRenewBatch, len(list))
	}
	out := make([]cluster.Attachment, len(list))
	for i, a := range list {
		if err := state.CheckSession(field, a.SessionID); err != nil {
			return nil, err
		}
		if a.StreamID == "" || len(a.StreamID) > maxStreamID || a.GraceMS < 0 || a.GraceMS > state.MaxSessionTTL.Milliseconds() {
			return nil, badRequest("%s: stream_id or grace_ms of session %q is out of bounds", field, a.SessionID)
		}
		out[i] = cluster.Attachment{Session: a.SessionID, Stream: a.StreamID, Grace: time.Duration(a.GraceMS) * time.Millisecond, Passive: a.NoRenew}
	}
	return out, nil
}

// maxStreamID bounds the bytes of a connection's name.
const maxStreamID = 64

func wireAttachments(list []cluster.Attachment) []apiv1.Attachment {
	out := make([]apiv1.Attachment, len(list))
	for i, a := range list {
		out[i] = apiv1.Attachment{SessionID: a.Session, StreamID: a.Stream, GraceMS: a.Grace.Milliseconds(), NoRenew: a.Passive}
	}
	return out
}

// errNodeDraining refuses a new connection.
func errNodeDraining(id cluster.NodeID) error {
	return busy("node %s is about to stop or drained: attach to another node", id)
}

func sessionNotFound(id string) error {
	return cluster.Errorf(cluster.CodeSessionEnded, "session %q does not exist: it has ended, or never began", id)
}

func streamID(boot string, n uint64) string { return fmt.Sprintf("%.16s-%x", boot, n) }
