package api

import (
	"strconv"
	"strings"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/state"
)

// number sets the number of a write that has no key, and returns it as the leader receives it: the node that the client
// has asked repeats the write until it knows the result. end must be called when the write is answered.
func (c *request) number(cmd *state.Command) (header string, end func(), err error) {
	switch {
	case cmd.Idempotency != nil:
		c.repeated = c.forwarded
	case c.forwarded:
		cmd.Idempotency, err = c.forwardedNumber()
		c.repeated = cmd.Idempotency != nil
	default:
		if end, numbered := c.s.calls.Number(cmd); numbered {
			sender := strings.TrimPrefix(cmd.Idempotency.Key, state.NodeIdempotencyPrefix)
			if c.s.forward.ForwardToken { // the leader knows only the client: the state must see one key at both nodes
				cmd.Idempotency.Key = c.keyOfCaller(sender)
			}
			return encodeNumber(sender, cmd.Idempotency), end, nil
		}
	}
	return "", func() {}, err
}

// keyOfCaller returns the key of a sender among the keys of the caller. No other caller has it.
func (c *request) keyOfCaller(sender string) string { return c.caller.name + "\n" + sender }

// encodeNumber writes the value of apiv1.HeaderNumber: the sender, its number, the lowest number that it may still
// repeat, and the index that it had applied before it first sent this one.
func encodeNumber(sender string, id *state.Idempotency) string {
	b := append(make([]byte, 0, 96), sender...)
	for _, n := range [...]uint64{id.Number, id.AnsweredBelow, id.After} {
		b = strconv.AppendUint(append(b, ' '), n, 10)
	}
	return string(b)
}

// forwardedNumber reads the number that the forwarding node has given to a write; nil without one. Clients send none.
// Where nodes are not told from clients, because they forward tokens, it counts among the numbers of the caller, also
// where the node that gave it proposes the write itself.
func (c *request) forwardedNumber() (*state.Idempotency, error) {
	value := c.r.Header.Get(apiv1.HeaderNumber)
	if value == "" || c.via == "" && !c.s.forward.ForwardToken {
		return nil, nil
	}
	parts := strings.Split(value, " ")
	if len(parts) != 4 || parts[0] == "" || len(parts[0]) > apiv1.MaxIdempotencyKeyBytes {
		return nil, problem.BadRequest("%s: cannot be read", apiv1.HeaderNumber)
	}
	id := &state.Idempotency{Key: state.NodeIdempotencyPrefix + parts[0]}
	if c.via == "" {
		id.Key = c.keyOfCaller(parts[0])
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
