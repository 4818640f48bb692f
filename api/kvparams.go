package api

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"

	"northstar/api/apiv1"
	"northstar/state"
)

// conditions are what must hold for a write to take effect.
type conditions struct {
	ifRevision *uint64
	ifAbsent   bool
	ifPresent  bool
}

// parseConditions reads If-Match: "REV", If-Match: * and If-None-Match: *.
func parseConditions(h http.Header) (conditions, error) {
	var cond conditions
	match, none := h.Values("If-Match"), h.Values("If-None-Match")
	switch {
	case len(match) > 0 && len(none) > 0:
		return cond, badRequest("If-Match: cannot stand beside If-None-Match")
	case len(match) > 1, len(none) > 1:
		return cond, badRequest("If-Match, If-None-Match: given more than once")
	case len(none) == 1:
		if strings.TrimSpace(none[0]) != "*" {
			return cond, badRequest("If-None-Match: want *, got %q", none[0])
		}
		cond.ifAbsent = true
	case len(match) == 1 && strings.TrimSpace(match[0]) == "*":
		cond.ifPresent = true
	case len(match) == 1:
		rev, err := parseETag(strings.TrimSpace(match[0]))
		if err != nil {
			return cond, badRequest(`If-Match: want one revision in quotes, such as "17", or *, got %q`, match[0])
		}
		cond.ifRevision = &rev
	}
	return cond, nil
}

// noneMatch says whether one of the entity tags in If-None-Match is tag, or "*".
// The comparison is the weak one: a proxy that compresses weakens tags.
func noneMatch(values []string, tag string) bool {
	for _, v := range values {
		for one := range strings.SplitSeq(v, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// parseETag reads a revision in its quotes.
func parseETag(s string) (uint64, error) {
	if len(s) < 3 || s[0] != '"' || s[len(s)-1] != '"' {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(s[1:len(s)-1], 10, 64) // which takes no sign
}

// parseFence reads X-Northstar-Fence: ROLE=TOKEN; nil when there is none.
func parseFence(h http.Header) (*state.FencingToken, error) {
	values := h.Values(apiv1.HeaderFence)
	if len(values) == 0 {
		return nil, nil
	}
	at := strings.LastIndexByte(values[0], '=')
	if len(values) > 1 || at < 1 {
		return nil, badRequest("%s: want ROLE=TOKEN once, got %q", apiv1.HeaderFence, values)
	}
	tok, err := strconv.ParseUint(values[0][at+1:], 10, 64)
	if err != nil {
		return nil, badRequest("%s: want an integer as token, got %q", apiv1.HeaderFence, values[0])
	}
	return &state.FencingToken{Role: values[0][:at], Token: tok}, nil
}

// idempotency reads Idempotency-Key; nil when there is none. Keys are the
// caller's own: two callers may use the same.
func (c *request) idempotency(w keyWrite) (*state.Idempotency, error) {
	values := c.r.Header.Values(apiv1.HeaderIdempotencyKey)
	if len(values) == 0 {
		return nil, nil
	}
	if n := len(values[0]); len(values) > 1 || n == 0 || n > apiv1.MaxIdempotencyKeyBytes {
		return nil, badRequest("%s: want one string of 1 to %d bytes", apiv1.HeaderIdempotencyKey, apiv1.MaxIdempotencyKeyBytes)
	}
	print := w.fingerprint(c.r.Method, c.param, c.query.Get("ttl_session"))
	return &state.Idempotency{Key: c.caller.name + "\n" + values[0], RequestHash: print[:]}, nil
}

// fingerprint tells one request from another under the same key: everything
// that decides what a write does, and nothing that a retry may change, such as
// its timeout.
func (w keyWrite) fingerprint(method, key, session string) [sha256.Size]byte {
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
	sum.Write(w.body)
	var out [sha256.Size]byte
	sum.Sum(out[:0])
	return out
}
