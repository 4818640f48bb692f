package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// getKey serves GET /v1/kv/{key}.
func getKey(c *request) error {
	if err := state.CheckKey(c.param); err != nil {
		return err
	}
	return c.read(func(v *state.View) error {
		item, ok := v.Get(c.param)
		if !ok {
			return statusError(http.StatusNotFound, "key: %q does not exist", c.param)
		}
		tag := etag(item.Revision)
		h := c.Header()
		h["Etag"] = []string{tag}
		h["X-Northstar-Revision"] = []string{tag[1 : len(tag)-1]}
		if noneMatch(c.r.Header.Values("If-None-Match"), tag) {
			h["Cache-Control"] = noStore
			c.WriteHeader(http.StatusNotModified)
			return nil
		}
		c.setHeaders(typeBinary, len(item.Value))
		c.WriteHeader(http.StatusOK)
		_, err := c.Write(item.Value)
		return c.ignoreWriteError(err)
	})
}

// read runs answer on a view that is as fresh as ?consistency= asks for, here
// or at the leader.
func (c *request) read(answer func(*state.View) error) error {
	ctx, cancel, err := c.contextWithTimeoutParam()
	if err != nil {
		return err
	}
	defer cancel()
	barrier := c.s.cluster.ReadBarrier
	switch level := c.query.Get("consistency"); {
	case !c.query.Has("consistency"), level == apiv1.Linearizable:
	case level == apiv1.Lease:
		barrier = c.s.cluster.LeaseReadBarrier
	case level == apiv1.Stale:
		c.setStaleness()
		return answer(c.s.cluster.View())
	default:
		return badRequest("consistency: want %s, %s or %s, got %q", apiv1.Linearizable, apiv1.Lease, apiv1.Stale, level)
	}
	err = c.serveOnLeader(ctx, leaderRequest{idempotent: true, local: barrier})
	if err == errResponseWritten {
		return nil
	}
	if err != nil {
		return err
	}
	return answer(c.s.cluster.View())
}

// setStaleness says how old a stale answer may be: the age of the last word
// from the leader, or, where there was none, of the process.
func (c *request) setStaleness() {
	st := c.s.cluster.Status()
	age := st.LeaderContactAge
	switch {
	case st.Role == cluster.Leader:
		age = 0
	case age < 0:
		age = time.Since(c.s.deps.Node.StartedAt)
	}
	c.Header()[canonicalLastContact] = []string{strconv.FormatInt(age.Milliseconds(), 10)}
}

var canonicalLastContact = http.CanonicalHeaderKey(apiv1.HeaderLastContact)

// putKey serves PUT /v1/kv/{key}.
func putKey(c *request) error {
	ctx, cancel, err := c.contextWithTimeoutParam()
	if err != nil {
		return err
	}
	defer cancel()
	w, err := c.keyWrite()
	if err != nil {
		return err
	}
	session := c.query.Get("ttl_session")
	if session == "" && c.query.Has("ttl_session") { // a variable that was never set: not a key for good
		return badRequest("ttl_session: want the ID of a session, got nothing")
	}
	if w.body, err = c.value(ctx); err != nil {
		return err
	}
	defer c.s.bodyBytes.Add(-int64(len(w.body)))
	w.command.Kind = state.KindPut
	w.command.Put = &state.Put{
		Key: c.param, Value: w.body, IfRevision: w.ifRevision, IfAbsent: w.ifAbsent, IfPresent: w.ifPresent,
		Session: session,
	}
	return c.write(ctx, w, func(r state.Result) error {
		body := make([]byte, 0, 64+len(c.param))
		body = appendJSONString(append(body, `{"key":`...), c.param)
		body = strconv.AppendUint(append(body, `,"revision":`...), r.Revision, 10)
		body = strconv.AppendBool(append(body, `,"created":`...), r.Created)
		return c.replyRevision(append(body, "}\n"...), r.Revision)
	})
}

// deleteKey serves DELETE /v1/kv/{key}.
func deleteKey(c *request) error {
	ctx, cancel, err := c.contextWithTimeoutParam()
	if err != nil {
		return err
	}
	defer cancel()
	w, err := c.keyWrite()
	if err != nil {
		return err
	}
	if w.ifAbsent {
		return badRequest("If-None-Match: a key that must not exist cannot be deleted")
	}
	w.command.Kind = state.KindDelete
	w.command.Delete = &state.Delete{Key: c.param, IfRevision: w.ifRevision, IfPresent: w.ifPresent}
	return c.write(ctx, w, func(r state.Result) error {
		body := make([]byte, 0, 48+len(c.param))
		body = appendJSONString(append(body, `{"key":`...), c.param)
		body = strconv.AppendUint(append(body, `,"revision":`...), r.Revision, 10)
		return c.replyRevision(append(body, "}\n"...), r.Revision)
	})
}

func (c *request) replyRevision(body []byte, revision uint64) error {
	tag := etag(revision)
	h := c.Header()
	h["Etag"] = []string{tag}
	h["X-Northstar-Revision"] = []string{tag[1 : len(tag)-1]}
	return c.replyJSON(body)
}

// keyWrite is a write to one key.
type keyWrite struct {
	conditions
	command state.Command
	body    []byte
}

// keyWrite reads everything of a write but its body.
func (c *request) keyWrite() (keyWrite, error) {
	if err := state.CheckKey(c.param); err != nil {
		return keyWrite{}, err
	}
	if err := c.checkContentEncoding(); err != nil {
		return keyWrite{}, err
	}
	cond, err := parseConditions(c.r.Header)
	if err != nil {
		return keyWrite{}, err
	}
	w := keyWrite{conditions: cond}
	w.command.Fence, err = parseFence(c.r.Header)
	return w, err
}

// write proposes w at the leader, and hands the result to answer if that is
// here.
func (c *request) write(ctx context.Context, w keyWrite, answer func(state.Result) error) error {
	var err error
	if w.command.Idempotency, err = c.idempotency(w); err != nil {
		return err
	}
	var result state.Result
	err = c.serveOnLeader(ctx, leaderRequest{
		write:      true,
		idempotent: w.command.Idempotency != nil,
		body:       w.body,
		local: func(ctx context.Context) error {
			w.command.Now = time.Now().UnixNano()
			var err error
			result, err = c.proposeHere(ctx, w.command)
			return err
		},
	})
	if err == errResponseWritten {
		return nil
	}
	if err != nil {
		return err
	}
	if result.Err != nil {
		return result.Err
	}
	return answer(result)
}

// value reads the body of a put, within the bounds of one value, of all bodies
// together, and of the request's time.
func (c *request) value(ctx context.Context) ([]byte, error) {
	tooLarge := statusError(http.StatusRequestEntityTooLarge, "value: want at most %d bytes", apiv1.MaxValueBytes)
	length := c.r.ContentLength
	switch {
	case length == 0:
		return nil, nil
	case length > apiv1.MaxValueBytes:
		return nil, tooLarge
	}
	reserve := length
	if length < 0 {
		reserve = apiv1.MaxValueBytes + 1
	}
	if c.s.bodyBytes.Add(reserve) > c.s.limits.RequestBytes {
		c.s.bodyBytes.Add(-reserve)
		return nil, busy("this node holds %d bytes of requests already", c.s.limits.RequestBytes)
	}
	deadline, _ := ctx.Deadline()
	err := http.NewResponseController(c.ResponseWriter).SetReadDeadline(deadline)
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		c.s.bodyBytes.Add(-reserve)
		return nil, err
	}
	var body []byte
	if length >= 0 {
		body = make([]byte, length)
		_, err = io.ReadFull(c.r.Body, body)
	} else {
		body, err = io.ReadAll(io.LimitReader(c.r.Body, apiv1.MaxValueBytes+1))
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.bodyTimedOut = true
		err = badRequest("body: did not arrive within timeout_ms")
	case err != nil:
		err = badRequest("body: cannot be read: %w", err)
	case len(body) > apiv1.MaxValueBytes:
		err = tooLarge
	}
	if err != nil {
		c.s.bodyBytes.Add(-reserve)
		return nil, err
	}
	c.s.bodyBytes.Add(int64(len(body)) - reserve) // the rest is given back by the caller
	return body, nil
}

func etag(revision uint64) string {
	b := make([]byte, 0, 24)
	b = append(b, '"')
	b = strconv.AppendUint(b, revision, 10)
	return string(append(b, '"'))
}

// appendJSONString appends s, which is valid UTF-8, as a JSON string.
func appendJSONString(b []byte, s string) []byte {
	for i := range len(s) {
		if ch := s[i]; ch < ' ' || ch == '"' || ch == '\\' || ch >= 0x7f {
			quoted, err := json.Marshal(s)
			if err != nil {
				panic(err) // a string always can be
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
