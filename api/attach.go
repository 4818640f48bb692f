package api

import (
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// attachSession serves GET /v1/sessions/{id}/attach: the connection keeps the session alive.
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
	return c.s.attached.Serve(c, c.r, cluster.Connection{Attachment: cluster.Attachment{
		Session: c.param, Grace: time.Duration(grace) * time.Millisecond, Passive: !hold,
	}}, socketOf(c.r.Context()))
}

// postAttachReport serves POST /v1/sessions/attached, which nodes use to report their attached connections to the
// leader.
func postAttachReport(c *request, in apiv1.AttachReport) error {
	ctx, cancel := c.contextWithLimit(apiv1.DefaultTimeoutMS * time.Millisecond)
	defer cancel()
	out, err := c.s.attached.Receive(ctx, in)
	if err != nil {
		return err
	}
	return c.reply(out)
}

// leaveThisNode reports whether attached clients must attach to another node.
func (s *Server) leaveThisNode() bool {
	if s.draining.Load() {
		return true
	}
	m, ok := s.reads.View().Member(s.deps.Node.ID)
	return ok && m.Lifecycle == cluster.Draining
}
