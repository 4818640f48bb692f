package state

import (
	"cmp"
	"strings"

	"northstar/cluster"
)

// minTxnRoom is how much room a transaction finds surely if the state has it: each of its operations adds a record.
const minTxnRoom = MaxTxnTotalOps * 2 * recordBytes

// RefusesGrowth returns the CodeQuotaExceeded with which Apply would refuse a command that writes keys, if the command
// were the next one; nil otherwise. It only reads. So a leader need not propose what has no effect. Apply still
// decides: RefusesGrowth does not know the commands before this one in the same entry. The keys of a session are
// bounded by MaxSessionKeys here while Limits.KeysPerSession is not set, as until all members have BoundsVersion.
func (v *View) RefusesGrowth(c *Command) *cluster.Error {
	size, tied := int64(0), false
	switch {
	case v.limits.StateBytes == 0:
		return nil
	case c.Kind == KindPut && c.Put != nil:
		size = int64(len(c.Put.Key)+len(c.Put.Value)) + 2*recordBytes + int64(len(c.Put.Key))
		tied = c.Put.Session != "" && v.OwnedKeys(c.Put.Session, MaxLeaseKeys) == MaxLeaseKeys
	case c.Kind == KindTxn && c.Txn != nil:
		size = 2*int64(c.Txn.Size()) + minTxnRoom
	default:
		return nil
	}
	if v.roomForKeys(size) == nil && !tied { // the usual case, without a copy of the View
		return nil
	}
	w := &txn{View: *v} // dropped: its writers leave the trees of v as they are
	w.write = writersOf(&w.View)
	w.limits.KeysPerSession = cmp.Or(w.limits.KeysPerSession, MaxSessionKeys)
	if c.Validate() != nil || w.mayReplay(c.Idempotency) || w.checkFence(c.Fence) != nil {
		return nil
	}
	var err *cluster.Error
	if c.Put != nil {
		_, _, refusal := c.Put.decide(w)
		err = refusal.Err
	} else {
		_, _, err = c.Txn.decide(w)
	}
	if err == nil || err.Code != cluster.CodeQuotaExceeded {
		return nil
	}
	return err
}

// mayReplay reports whether a command may have a recorded result, or must have one: the answer to a client's key is
// repeated, also that it was refused.
func (w *txn) mayReplay(id *Idempotency) bool {
	if id == nil {
		return false
	}
	if id.Number != 0 {
		return w.mayReplayNumber(id)
	}
	if !strings.HasPrefix(id.Key, NodeIdempotencyPrefix) {
		return true
	}
	_, known := w.idempotency.byKey.get(id.Key)
	return known || id.After != 0 && id.After < w.idempotency.forgotten
}
