package api

import (
	"strconv"
	"strings"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/state"
)

// number gives a write a number of this node, unless it has a key, and returns it as the leader receives it: the node
// that its client asked repeats the write until it knows the result. end must be called when the write is answered.
func (c *request) number(cmd *state.Command) (header string, end func(), err error) {
	switch {
	case cmd.Idempotency != nil:
	case c.forwarded:
		cmd.Idempotency, err = c.forwardedNumber()
	default:
		if end, numbered := c.s.calls.Number(cmd); numbered {
			return encodeNumber(cmd.Idempotency), end, nil
		}
	}
	return "", func() {}, err
}

// encodeNumber writes the value of apiv1.HeaderNumber: the sender, its number, the lowest number that it may still
// repeat, and the index that it had applied before it first sent this one.
func encodeNumber(id *state.Idempotency) string {
	b := append(make([]byte, 0, 96), strings.TrimPrefix(id.Key, state.NodeIdempotencyPrefix)...)
	for _, n := range [...]uint64{id.Number, id.AnsweredBelow, id.After} {
		b = strconv.AppendUint(append(b, ' '), n, 10)
	}
	return string(b)
}

// forwardedNumber reads the number that the forwarding node has given to a write; nil without one. Where nodes are
// not told from clients, it counts among the numbers of the caller.
func (c *request) forwardedNumber() (*state.Idempotency, error) {
	value := c.r.Header.Get(apiv1.HeaderNumber)
	if value == "" {
		return nil, nil
	}
	parts := strings.Split(value, " ")
	if len(parts) != 4 || parts[0] == "" || len(parts[0]) > apiv1.MaxIdempotencyKeyBytes {
		return nil, problem.BadRequest("%s: cannot be read", apiv1.HeaderNumber)
	}
	id := &state.Idempotency{Key: state.NodeIdempotencyPrefix + parts[0]}
	if c.via == "" {
		id.Key = c.caller.name + "\n" + parts[0]
	}
	for i, to := range [...]*uint64{&id.Number, &id.AnsweredBelow, &id.After} {
		n, err := strconv.ParseUint(parts[1+i], 10, 64)
		if err != nil || i == 0 && n == 0 {
			return nil, problem.BadRequest("%s: cannot be read", apiv1.HeaderNumber)
		}
		*to = n
	}
	return id, nil
}
