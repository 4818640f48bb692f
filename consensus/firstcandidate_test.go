package consensus

import (
	"testing"

	"northstar/cluster"
)

func TestFirstCandidate(t *testing.T) {
	t.Parallel()
	first := []FirstMember{{"n3", "h3:1", ""}, {"n1", "h1:1", ""}, {"n2", "h2:1", ""}}
	for _, tt := range []struct {
		name   string
		change func(map[cluster.NodeID]cluster.Peer)
		want   cluster.NodeID
	}{
		{"the last of equal ones", func(map[cluster.NodeID]cluster.Peer) {}, "n3"},
		{"the highest priority", func(m map[cluster.NodeID]cluster.Peer) {
			m["n1"] = cluster.Peer{Identity: m["n1"].Identity, Priority: 101, Eligible: true}
		}, "n1"},
		{"not eligible", func(m map[cluster.NodeID]cluster.Peer) {
			m["n3"] = cluster.Peer{Identity: m["n3"].Identity, Priority: 200}
		}, "n2"},
		{"priority 0", func(m map[cluster.NodeID]cluster.Peer) {
			for id, p := range m {
				p.Priority = 0
				m[id] = p
			}
		}, ""},
		{"one is missing", func(m map[cluster.NodeID]cluster.Peer) { delete(m, "n1") }, ""},
		{"one has a cluster", func(m map[cluster.NodeID]cluster.Peer) {
			p := m["n1"]
			p.ClusterID = "c"
			m["n1"] = p
		}, ""},
	} {
		members := map[cluster.NodeID]cluster.Peer{}
		for _, m := range first {
			members[m.ID] = cluster.Peer{Identity: cluster.Identity{NodeID: m.ID}, Priority: 100, Eligible: true}
		}
		tt.change(members)
		if got := firstCandidate(first, members); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
