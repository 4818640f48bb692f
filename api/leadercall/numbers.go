package leadercall

import "northstar/state"

// Number gives a command the next number of this node, with which it is applied once however often it is proposed. It
// reports whether it did: all members must know numbers. end must be called when it will not be proposed again.
func (c *Calls) Number(cmd *state.Command) (end func(), numbered bool) {
	if c.Consensus.View().CommandVersion() < state.NumberVersion &&
		c.Consensus.ReadsVersion() < state.NumberVersion {
		return func() {}, false
	}
	number, lowest := c.numbers.Begin()
	cmd.Idempotency = &state.Idempotency{
		Key: c.sender, Number: number, AnsweredBelow: lowest, After: c.Consensus.Applied(),
	}
	return func() { c.numbers.End(number) }, true
}
