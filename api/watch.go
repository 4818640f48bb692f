package api

import (
	"context"
	"encoding/json"
	"strconv"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// watchKeys serves GET /v1/watch, on any node, from the history that this node
// keeps for all watchers.
func watchKeys(c *request) error {
	prefix, err := c.keyParam("prefix")
	if err != nil {
		return err
	}
	return c.follow(c.s.cluster.Feed(), prefix, (*sseWriter).change)
}

// follow streams the changes of feed whose keys begin with prefix, each encoded
// by encode, from the revision that the client asks for.
func (c *request) follow(feed *state.Feed, prefix string, encode func(*sseWriter, *state.Change) error) error {
	since, err := c.watchStart()
	if err != nil {
		return err
	}
	cursor, err := feed.Cursor(prefix, since)
	if err != nil {
		return err
	}
	c.Header()["X-Northstar-Revision"] = []string{strconv.FormatUint(since, 10)}
	e, err := c.startSSE()
	if err != nil {
		return c.ignoreWriteError(err)
	}
	return e.stream(func(ctx context.Context) error {
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

// watchStart is the revision after which to watch: what the client saw last,
// what it asks for, or now.
func (c *request) watchStart() (uint64, error) {
	name, value := "Last-Event-ID", c.r.Header.Get("Last-Event-ID")
	if value == "" {
		name, value = "since", c.query.Get("since")
	}
	if value == "" {
		if c.query.Has("since") {
			return 0, badRequest("since: want a revision, got nothing")
		}
		return c.s.newestRevision(c.r.Context()), nil
	}
	rev, err := strconv.ParseUint(value, 10, 53)
	if err != nil {
		return 0, badRequest("%s: want a revision, got %q", name, value)
	}
	return rev, nil
}

// newestRevision is at least the revision of every write that was acknowledged
// before the call: this node may have yet to apply some, and a watch from now on
// must not show them. Where the leader does not answer it is what this node knows.
func (s *Server) newestRevision(ctx context.Context) uint64 {
	own := s.cluster.View().Revision()
	st := s.cluster.Status()
	if st.Role == cluster.Leader || st.LeaderID == "" {
		return own
	}
	body, err := s.leadersView(ctx, st.LeaderID)
	if err != nil {
		s.logger.Debug("leader does not say its revision: watching from this node's", "leader", st.LeaderID, "error", err)
		return own
	}
	var view apiv1.Cluster
	if err := json.Unmarshal(body, &view); err != nil {
		return own
	}
	return max(own, view.Revision)
}

// change encodes one change.
func (e *sseWriter) change(ch *state.Change) error {
	id := strconv.FormatUint(ch.Revision, 10)
	e.field("id", id)
	if ch.Deleted {
		e.field("event", apiv1.EventDelete)
	} else {
		e.field("event", apiv1.EventPut)
	}
	e.buf = appendJSONString(append(e.buf, `data: {"key":`...), ch.Key)
	e.buf = append(e.buf, `,"value":`...)
	e.buf = appendBase64(e.buf, ch.Value) // "" of a deleted key: always a string
	e.buf = append(e.buf, `,"revision":`...)
	e.buf = append(e.buf, id...)
	e.buf = append(e.buf, "}\n"...)
	return e.endEvent()
}
