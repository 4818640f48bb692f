package state

import (
	"encoding/binary"
	"slices"
)

// electionKinds change what an election depends on: member records, settings, and who led last.
var electionKinds = []Kind{
	KindLeaderStart, KindClusterInit, KindMember, KindMemberPatch, KindMemberRemove, KindSettings, KindRecovery,
}

// LookAhead returns the View after a log entry that may be uncommitted, as far as elections depend on it: member
// records, settings and the last leader-start. All else stays as in v, but for the generation of a recovery. LookAhead
// returns v itself if the entry has no such command. It does not decode the entry then. Errors are those of
// DecodeBatch.
func (v *View) LookAhead(index, term uint64, batch []byte) (*View, error) {
	if !mentions(batch, electionKinds) {
		return v, nil
	}
	cmds, err := DecodeBatch(batch)
	if err != nil {
		return v, err
	}
	w := &txn{View: *v}
	w.index, w.term = index, term
	for i := range cmds {
		c := &cmds[i]
		if !slices.Contains(electionKinds, c.Kind) || c.Validate() != nil {
			continue
		}
		w.now = max(w.now, c.Now)
		if p := c.Recovery; c.Kind != KindRecovery {
			c.payload().apply(w)
		} else if p.due(w) { // its other effects need what LookAhead does not follow
			w.generation = p.Generation
			p.applyMembers(w)
		}
	}
	return &w.View, nil
}

// mentions reports whether a batch has a command of one of the kinds. It reads only the headers. A batch that it cannot
// read has none.
func mentions(batch []byte, kinds []Kind) bool {
	if len(batch) == 0 || batch[0] != batchFormat {
		return false
	}
	c := codec{buf: batch[1:]}
	for count, _ := c.uvarint(); count > 0; count-- {
		kind, _ := c.uvarint()
		_, ok := c.uvarint()
		if !ok || len(c.buf) < 4 {
			return false
		}
		size := uint64(binary.LittleEndian.Uint32(c.buf))
		if size > uint64(len(c.buf)-4) {
			return false
		}
		if slices.Contains(kinds, Kind(kind)) {
			return true
		}
		c.buf = c.buf[4+size:]
	}
	return false
}
