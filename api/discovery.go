package api

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
)

func getLeader(c *request) error {
	st := c.s.reads.Status()
	if st.LeaderID == "" {
		return problem.NoLeader("no leader known (node %s)", c.s.deps.Node.ID)
	}
	c.Header().Set(apiv1.HeaderCluster, st.ClusterID)
	c.Header().Set(apiv1.HeaderGeneration, st.Generation.HeaderValue())
	return c.reply(apiv1.Leader{
		LeaderID:      string(st.LeaderID),
		LeaderAddress: c.s.httpAddress(st.LeaderID),
		RaftAddress:   st.LeaderRaftAddress,
		Term:          st.Term,
		ObservedBy:    string(c.s.deps.Node.ID),
	})
}

// watchLeader streams the leader that this node knows, at each change of it.
func watchLeader(c *request) error {
	var sent *forward.Leader
	return c.stream(func(ctx context.Context, e *stream.Events) error {
		for c.s.leader.Current() == sent {
			select {
			case <-sent.Changed.Done():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		sent = c.s.leader.Current()
		l := apiv1.Leader{LeaderID: string(sent.ID), Term: sent.Term, ObservedBy: string(c.s.deps.Node.ID)}
		if sent.ID != "" {
			l.LeaderAddress, l.RaftAddress = c.s.httpAddress(sent.ID), c.s.raftAddress(sent.ID)
		}
		data, err := json.Marshal(l)
		if err != nil {
			return err
		}
		return e.Event("", apiv1.EventLeader, data)
	})
}

func getStatus(c *request) error { return c.reply(c.s.status(time.Now())) }

func (s *Server) status(now time.Time) apiv1.Status {
	st, view, facts := s.reads.Status(), s.reads.View(), s.deps.Node
	place := cluster.Member{Priority: facts.Priority, Eligible: facts.Eligible, Zone: facts.Zone}
	if m, ok := view.Member(facts.ID); ok {
		place = m
	}
	out := apiv1.Status{
		NodeID:           string(facts.ID),
		ClusterID:        st.ClusterID,
		Generation:       st.Generation.Number,
		RecoveryID:       st.Generation.RecoveryID,
		Incarnation:      st.Incarnation,
		BootID:           facts.BootID,
		ClusterName:      facts.ClusterName,
		State:            string(st.Role),
		Term:             st.Term,
		LeaderID:         string(st.LeaderID),
		HTTPAddress:      facts.HTTPAddress,
		RaftAddress:      facts.RaftAddress,
		Suffrage:         string(st.Suffrage()),
		Priority:         place.Priority,
		Eligible:         place.Eligible,
		Zone:             place.Zone,
		Lifecycle:        string(s.lifecycle(st)),
		CommitIndex:      st.CommitIndex,
		AppliedIndex:     st.AppliedIndex,
		LastLogIndex:     st.LastLogIndex,
		LastContactMS:    contactMS(st),
		LeaseRemainingMS: st.LeaseRemaining.Milliseconds(),
		AutoFailover:     view.AutoFailover(now),
		Revision:         view.Revision(),
		Disk: apiv1.Disk{
			FsyncP99MS: ceilMS(st.Disk.FsyncP99), Stalled: st.Disk.Stalled,
			ReadOnly: st.Disk.ReadOnly,
		},
		Version:   facts.Version,
		StartedAt: facts.StartedAt.UTC(),
		Warnings:  []string{},

		ElectionObstacle: s.deps.ElectionObstacle(),
	}
	if s.deps.Silence != nil {
		out.Silence = s.deps.Silence()
	}
	if st.LeaderID != "" {
		out.LeaderAddress = s.httpAddress(st.LeaderID)
	}
	if st.DeadReason != "" {
		out.Warnings = append(out.Warnings, st.DeadReason)
	}
	if why := s.deps.SplitBrain.Refusing(); why != "" {
		out.Warnings = append(out.Warnings, "this node serves only stale reads and watches: "+why)
	}
	out.Warnings = append(out.Warnings, s.deps.Warnings()...)
	return out
}

// Draining reports whether this node shows itself as draining. It may be called by any goroutine.
func (s *Server) Draining() bool { return s.lifecycle(s.reads.Status()) == cluster.Draining }

// lifecycle returns this node's lifecycle, including draining, which only the API knows.
func (s *Server) lifecycle(st cluster.NodeStatus) cluster.Lifecycle {
	if s.draining() && st.Lifecycle != cluster.Dead {
		return cluster.Draining
	}
	return st.Lifecycle
}

// contactMS returns the age of the leader's last message; nil without one.
func contactMS(st cluster.NodeStatus) *int64 {
	switch {
	case st.Role == cluster.Leader:
		return new(int64)
	case st.LeaderContactAge < 0:
		return nil
	}
	return new(st.LeaderContactAge.Milliseconds())
}

func ceilMS(d time.Duration) int64 { return int64(math.Ceil(float64(d) / float64(time.Millisecond))) }

func unixNano(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// getMetrics serves GET /metrics. A scrape holds all of its text until the client has read it.
func getMetrics(c *request) error {
	if err := c.s.scrapes.take(c.holder(), 1); err != nil {
		return err
	}
	defer c.s.scrapes.give(c.holder(), 1)
	w := &recorder{callWriter: callWriter{header: http.Header{}}, status: http.StatusOK}
	c.s.deps.Metrics.Handler().ServeHTTP(w, c.r)
	if w.status != http.StatusOK {
		return problem.Busy("metrics: %s", strings.TrimSpace(string(w.body)))
	}
	if encoding := w.header["Content-Encoding"]; encoding != nil {
		c.Header()["Content-Encoding"] = encoding
	}
	return c.respond(w.status, w.header["Content-Type"], w.body)
}

func getOpenAPI(c *request) error { return c.replyJSON(c.s.document) }
