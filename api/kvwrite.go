package api

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/state"
)

func putKey(c *request) error {
	w, err := c.keyWrite(state.KindPut)
	if err != nil {
		return err
	}
	session := c.query.Get("ttl_session")
	// an unset variable of a script: must not create a key without a session
	if session == "" && c.query.Has("ttl_session") {
		return problem.BadRequest("ttl_session: must be the ID of a session (got nothing)")
	}
	if c.body, err = c.value(); err != nil {
		return err
	}
	w.command.Put = &state.Put{
		Key: c.param, Value: c.body, IfRevision: w.ifRevision, IfAbsent: w.ifAbsent, IfPresent: w.ifPresent,
		Session: session,
	}
	return c.writeKey(w)
}

// deleteKey ignores a body, as the value of a key that a client sends with every call. One that says that it is JSON is
// refused if it has a key.
func deleteKey(c *request) error {
	if media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err == nil && media == apiv1.TypeJSON {
		if err := c.decodeBody(&emptyBody{}); err != nil {
			return err
		}
	}
	w, err := c.keyWrite(state.KindDelete)
	if err != nil {
		return err
	}
	if w.ifAbsent {
		return problem.BadRequest("If-None-Match: a key that must not exist cannot be deleted")
	}
	w.command.Delete = &state.Delete{Key: c.param, IfRevision: w.ifRevision, IfPresent: w.ifPresent}
	return c.writeKey(w)
}

type keyWrite struct {
	conditions
	command state.Command
}

// keyWrite reads a write except its body.
func (c *request) keyWrite(kind state.Kind) (keyWrite, error) {
	w := keyWrite{command: state.Command{Kind: kind}}
	if err := state.CheckKey(c.param); err != nil {
		return w, err
	}
	if err := c.checkContentEncoding(); err != nil {
		return w, err
	}
	var err error
	if w.conditions, err = parseConditions(c.r.Header); err == nil {
		w.command.Fence, err = parseFence(c.r.Header)
	}
	return w, err
}

// writeKey proposes w and writes the response.
func (c *request) writeKey(w keyWrite) error {
	var err error
	if w.command.Idempotency, err = c.idempotency(w); err != nil {
		return err
	}
	r, err := c.propose(w.command, w.command.Idempotency != nil)
	if err != nil {
		return err
	}
	body := make([]byte, 0, 64+len(c.param))
	body = appendJSONString(append(body, `{"key":`...), c.param)
	body = strconv.AppendUint(append(body, `,"revision":`...), r.Revision, 10)
	if w.command.Put != nil {
		body = strconv.AppendBool(append(body, `,"created":`...), r.Created)
	}
	tag := etag(r.Revision)
	h := c.Header()
	h["Etag"] = []string{tag}
	h["X-Northstar-Revision"] = []string{tag[1 : len(tag)-1]}
	return c.replyJSON(append(body, "}\n"...))
}

// value reads the body of a put, within the limits of one value, of all bodies together, and of the request's time.
func (c *request) value() (body []byte, err error) {
	length := c.r.ContentLength
	switch {
	case length == 0:
		return nil, nil
	case length > apiv1.MaxValueBytes:
		return nil, problem.Status(http.StatusRequestEntityTooLarge, "value: must be at most %d bytes (got %d)",
			apiv1.MaxValueBytes, length)
	}
	if err := c.takeBody(apiv1.MaxValueBytes); err != nil {
		return nil, err
	}
	deadline, _ := c.ctx.Deadline()
	err = c.receiveBody(deadline, "timeout_ms", func() (err error) {
		if length >= 0 {
			body = make([]byte, length)
			_, err = io.ReadFull(c.r.Body, body)
		} else {
			body, err = io.ReadAll(io.LimitReader(c.r.Body, apiv1.MaxValueBytes+1))
		}
		return err
	})
	c.keepBody(len(body))
	switch {
	case err != nil:
		return nil, err
	case len(body) > apiv1.MaxValueBytes: // in chunks: how much would follow is not known
		return nil, problem.Status(http.StatusRequestEntityTooLarge, "value: must be at most %d bytes",
			apiv1.MaxValueBytes)
	}
	return body, nil
}

func (c *request) checkContentEncoding() error {
	if enc := firstValue(c.r.Header, "Content-Encoding"); enc != "" && enc != "identity" {
		return problem.Status(http.StatusUnsupportedMediaType, "Content-Encoding: must be absent or identity (got %q)", enc)
	}
	return nil
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
				panic(err) // a string can always be encoded
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// conditions must hold for a write to be applied.
type conditions struct {
	ifRevision *uint64
	ifAbsent   bool
	ifPresent  bool
}

// parseConditions reads If-Match: "REV", If-Match: * and If-None-Match: *.
func parseConditions(h http.Header) (conditions, error) {
	var cond conditions
	match, none := h["If-Match"], h["If-None-Match"]
	switch {
	case len(match) > 0 && len(none) > 0:
		return cond, problem.BadRequest("If-Match: cannot be combined with If-None-Match")
	case len(match) > 1, len(none) > 1:
		return cond, problem.BadRequest("If-Match, If-None-Match: given more than once")
	case len(none) == 1:
		if strings.TrimSpace(none[0]) != "*" {
			return cond, problem.BadRequest("If-None-Match: must be * (got %q)", none[0])
		}
		cond.ifAbsent = true
	case len(match) == 1 && strings.TrimSpace(match[0]) == "*":
		cond.ifPresent = true
	case len(match) == 1:
		rev, err := parseETag(strings.TrimSpace(match[0]))
		if err != nil {
			return cond, problem.BadRequest(`If-Match: must be * or one revision in quotes, such as "17" (got %q)`, match[0])
		}
		cond.ifRevision = &rev
	}
	return cond, nil
}

func parseETag(s string) (uint64, error) {
	if len(s) < 3 || s[0] != '"' || s[len(s)-1] != '"' {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(s[1:len(s)-1], 10, 64) // a revision has no sign
}

// parseFence reads X-Northstar-Fence: ROLE=TOKEN; nil without the header.
func parseFence(h http.Header) (*state.FencingToken, error) {
	values := h[apiv1.HeaderFence]
	if len(values) == 0 {
		return nil, nil
	}
	at := strings.LastIndexByte(values[0], '=')
	if len(values) > 1 || at < 1 {
		return nil, problem.BadRequest("%s: must be ROLE=TOKEN, given once (got %q)", apiv1.HeaderFence, values)
	}
	tok, err := strconv.ParseUint(values[0][at+1:], 10, 64)
	if err != nil {
		return nil, problem.BadRequest("%s: TOKEN in ROLE=TOKEN must be an integer (got %q)", apiv1.HeaderFence, values[0])
	}
	role := values[0][:at]
	if err := state.CheckRole(role); err != nil {
		return nil, problem.BadRequest("%s: %w", apiv1.HeaderFence, err)
	}
	return &state.FencingToken{Role: role, Token: tok}, nil
}

// idempotency reads Idempotency-Key; nil without it. Keys belong to the name of a caller: two names may use the same
// key. The role is no part of them: builds that differ in that would apply a repeated write twice.
func (c *request) idempotency(w keyWrite) (*state.Idempotency, error) {
	values := c.r.Header[apiv1.HeaderIdempotencyKey]
	if len(values) == 0 {
		return nil, nil
	}
	if n := len(values[0]); len(values) > 1 || n == 0 || n > apiv1.MaxIdempotencyKeyBytes {
		return nil, problem.BadRequest("%s: must be given once, with 1 to %d bytes (got %d times, first with %d bytes)",
			apiv1.HeaderIdempotencyKey, apiv1.MaxIdempotencyKeyBytes, len(values), n)
	}
	print := w.fingerprint(c.r.Method, c.param, c.query.Get("ttl_session"), c.body)
	id := &state.Idempotency{Key: c.caller.name + "\n" + values[0], RequestHash: print[:]}
	if sender, number, lowest, ok := apiv1.ParseNumberedKey(values[0]); ok {
		id.Key, id.Number, id.AnsweredBelow = c.caller.name+"\n"+sender, number, lowest
	}
	return id, nil
}

// fingerprint covers what decides the effect of a write, and nothing that a retry may change, such as its timeout.
func (w keyWrite) fingerprint(method, key, session string, body []byte) [sha256.Size]byte {
	var buf [256]byte
	b := buf[:0]
	add := func(part string) {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	add(method)
	add(key)
	add(session)
	b = strconv.AppendBool(b, w.ifAbsent)
	b = strconv.AppendBool(b, w.ifPresent)
	if w.ifRevision != nil {
		b = binary.AppendUvarint(append(b, 'r'), *w.ifRevision)
	}
	if f := w.command.Fence; f != nil {
		add(f.Role)
		b = binary.AppendUvarint(append(b, 'f'), f.Token)
	}
	sum := sha256.New()
	sum.Write(b)
	sum.Write(body)
	var out [sha256.Size]byte
	sum.Sum(out[:0])
	return out
}
