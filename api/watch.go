package api

import (
	"context"
	"encoding/json"
	"strconv"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
	"northstar/state"
)

// watchKeys serves GET /v1/watch on any node, from this node's history.
func watchKeys(c *request) error {
	prefix, err := c.keyParam("prefix")
	if err != nil {
		return err
	}
	return c.follow(c.s.reads.Feed(), prefix, encodeChange)
}

// follow streams the changes of feed whose keys have prefix, from the revision that the client requests.
func (c *request) follow(feed *state.Feed, prefix string, encode func(*stream.Events, *state.Change) error) error {
	since, err := c.watchStart()
	if err != nil {
		return err
	}
	cursor, err := feed.Cursor(prefix, since)
	if err != nil {
		return err
	}
	c.Header()["X-Northstar-Revision"] = []string{strconv.FormatUint(since, 10)}
	return c.stream(func(ctx context.Context, e *stream.Events) error {
		changes, err := cursor.Next(ctx, watchBatchSize)
		if err != nil {
			return err
		}
		for i := range changes {
			if err := encode(e, &changes[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// watchBatchSize is the maximum number of changes in one batch: a slow client keeps them in memory.
const watchBatchSize = 16

// stream answers with the events that next adds, until the client is gone or this node is stopping.
func (c *request) stream(next func(context.Context, *stream.Events) error) error {
	e, err := stream.Start(c, c.s.problem)
	if err == nil {
		err = e.Run(c.r.Context(), c.s.stopping, func(ctx context.Context) error { return next(ctx, e) })
	}
	return c.ignoreWriteError(err)
}

// watchStart returns the revision after which the watch starts: of the last event that the client has, the requested
// one, or the newest.
func (c *request) watchStart() (uint64, error) {
	name, value := "Last-Event-ID", c.r.Header.Get("Last-Event-ID")
	if value == "" {
		name, value = "since", c.query.Get("since")
	}
	if value == "" {
		if c.query.Has("since") {
			return 0, problem.BadRequest("since: want a revision, got nothing")
		}
		return c.s.newestRevision(c.r.Context()), nil
	}
	rev, err := strconv.ParseUint(value, 10, 53)
	if err != nil {
		return 0, problem.BadRequest("%s: want a revision, got %q", name, value)
	}
	return rev, nil
}

// newestRevision returns at least the revision of every write acknowledged before the call. This node may not have
// applied all of them, and a watch from now on must not show them. If the leader does not respond, it is this node's
// revision.
func (s *Server) newestRevision(ctx context.Context) uint64 {
	own := s.reads.View().Revision()
	st := s.reads.Status()
	if st.Role == cluster.Leader || st.LeaderID == "" {
		return own
	}
	body, err := s.leadersView(ctx, st.LeaderID)
	if err != nil {
		s.logger.Debug("leader unreachable: starting the watch at this node's revision", "leader", st.LeaderID, "error",
			err)
		return own
	}
	var view apiv1.Cluster
	if err := json.Unmarshal(body, &view); err != nil {
		return own
	}
	return max(own, view.Revision)
}

// encodeChange appends one change of a key to a stream.
func encodeChange(e *stream.Events, ch *state.Change) error {
	id := strconv.FormatUint(ch.Revision, 10)
	return e.EventFunc(id, changeName(ch), func(b []byte) []byte {
		b = appendJSONString(append(b, `{"key":`...), ch.Key)
		b = appendBase64(append(b, `,"value":`...), ch.Value) // "" of a deleted key: always a string
		return append(append(append(b, `,"revision":`...), id...), '}')
	})
}

// changeName returns the name of the event for a change.
func changeName(ch *state.Change) string {
	if ch.Deleted {
		return apiv1.EventDelete
	}
	return apiv1.EventPut
}
