package api

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"northstar/api/apiv1"
	"northstar/state"
)

// maxListBytes bounds the values of one page: a page may be shorter than
// ?limit= asks, and says where to go on.
const maxListBytes = 4 << 20

// listKeys serves GET /v1/kv.
func listKeys(c *request) error {
	limit, err := c.queryLimit(apiv1.MaxListLimit)
	if err != nil {
		return err
	}
	prefix, err := c.keyParam("prefix")
	if err != nil {
		return err
	}
	after, err := c.keyParam("after")
	if err != nil {
		return err
	}
	return c.read(func(v *state.View) error {
		items, next := v.List(prefix, after, limit)
		return c.replyJSON(appendList(nil, v.Revision(), items, next))
	})
}

// keyParam reads a parameter that is a key, or the beginning of one.
func (c *request) keyParam(name string) (string, error) {
	v := c.query.Get(name)
	if len(v) > apiv1.MaxKeyBytes {
		return "", badRequest("%s: want at most %d bytes, got %d", name, apiv1.MaxKeyBytes, len(v))
	}
	if !utf8.ValidString(v) {
		return "", badRequest("%s: not valid UTF-8", name)
	}
	return v, nil
}

// appendList is apiv1.List as JSON, without the detour over a second copy of
// all values.
func appendList(b []byte, revision uint64, items []state.Item, next string) []byte {
	b = strconv.AppendUint(append(b, `{"revision":`...), revision, 10)
	b = append(b, `,"items":[`...)
	size := 0
	for i, it := range items {
		if size += len(it.Value); i > 0 && size > maxListBytes {
			next = items[i-1].Key
			break
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSONString(append(b, `{"key":`...), it.Key)
		b = appendBase64(append(b, `,"value":`...), it.Value)
		b = strconv.AppendUint(append(b, `,"revision":`...), it.Revision, 10)
		b = strconv.AppendUint(append(b, `,"create_revision":`...), it.CreateRevision, 10)
		b = strconv.AppendUint(append(b, `,"version":`...), it.Version, 10)
		b = append(b, '}')
	}
	b = appendJSONString(append(b, `],"next":`...), next)
	return append(b, "}\n"...)
}

func appendBase64(b, value []byte) []byte {
	b = append(b, '"')
	b = base64.StdEncoding.AppendEncode(b, value)
	return append(b, '"')
}
