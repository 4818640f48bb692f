package stream

import (
	"maps"
	"slices"
	"strings"

	"northstar/cluster"
)

// Offsets are a reader's offsets in the event logs of nodes.
type Offsets struct {
	Owner cluster.NodeID // node of the first offset
	Of    map[cluster.NodeID]string
}

// With returns p with another offset for one node, which becomes the first.
func (p Offsets) With(id cluster.NodeID, seq string) Offsets {
	at := map[cluster.NodeID]string{}
	maps.Copy(at, p.Of)
	at[id] = seq
	return Offsets{Owner: id, Of: at}
}

// Keep drops the offsets of all nodes but these: each item of a response names all offsets.
func (p Offsets) Keep(ids []cluster.NodeID) {
	maps.DeleteFunc(p.Of, func(id cluster.NodeID, _ string) bool { return !slices.Contains(ids, id) })
}

// String returns the form that ParseOffsets reads.
func (p Offsets) String() string {
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(p.Of)), func(id cluster.NodeID) bool { return id == p.Owner })
	parts := []string{string(p.Owner) + "=" + p.Of[p.Owner]}
	for _, id := range ids {
		parts = append(parts, string(id)+"="+p.Of[id])
	}
	return strings.Join(parts, ",")
}

// MaxOffsetBytes bounds the offset of one node: its boot ID and a number.
const MaxOffsetBytes = 128

const maxOffsets = 1000

// ParseOffsets reads offsets. It reports false if seq is none.
func ParseOffsets(seq string) (p Offsets, ok bool) {
	p = Offsets{Of: map[cluster.NodeID]string{}}
	for part := range strings.SplitSeq(seq, ",") {
		name, place, ok := strings.Cut(part, "=")
		id, err := cluster.ParseNodeID(name)
		if !ok || err != nil || place == "" || len(place) > MaxOffsetBytes || len(p.Of) >= maxOffsets {
			return p, false
		}
		if p.Owner == "" {
			p.Owner = id
		}
		p.Of[id] = place
	}
	return p, true
}
