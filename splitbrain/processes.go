package splitbrain

import (
	"cmp"
	"slices"
	"time"

	"northstar/cluster"
)

const (
	maxProcesses       = 256
	maxProcessesOfNode = 16 // with one node ID
	// processRetention is the minimum time for which a process is remembered.
	processRetention = 30 * time.Second
)

// processLog holds the processes that completed a hello. A hello proves that the process is alive: both sides
// return a nonce of the other.
type processLog struct {
	self cluster.NodeID
	boot string // boot ID of this process
	// overlapping is longer than a hello takes. A process whose hello ended later than that was alive after another.
	overlapping time.Duration
	procs       []processRecord // in order of arrival
}

type processRecord struct {
	peer        cluster.Peer
	first, last time.Time
}

// record adds a completed hello.
func (s *processLog) record(p cluster.Peer, now time.Time) {
	i := slices.IndexFunc(s.procs, func(have processRecord) bool {
		return have.peer.NodeID == p.NodeID && have.peer.BootID == p.BootID
	})
	if i >= 0 {
		s.procs[i].peer, s.procs[i].last = p, now
		return
	}
	s.makeRoom(p.NodeID)
	s.procs = append(s.procs, processRecord{peer: p, first: now, last: now})
}

// makeRoom makes room for a process of a node. Each process gives itself a boot ID, so one node could be any number of
// processes: it must not push out those of others. Of one node, the process seen least recently is removed.
func (s *processLog) makeRoom(id cluster.NodeID) {
	count := map[cluster.NodeID]int{}
	for _, p := range s.procs {
		count[p.peer.NodeID]++
	}
	if count[id] >= maxProcessesOfNode {
		count[id] = maxProcesses + 1
	} else if len(s.procs) < maxProcesses {
		return
	}
	least := 0 // of the node with most
	for i, p := range s.procs {
		order := cmp.Or(cmp.Compare(count[s.procs[least].peer.NodeID], count[p.peer.NodeID]),
			p.last.Compare(s.procs[least].last))
		if order < 0 {
			least = i
		}
	}
	s.procs = slices.Delete(s.procs, least, least+1)
}

// claims returns the claims of processes that are not older than maxAge.
func (s *processLog) claims(now time.Time, maxAge time.Duration) (all []Claim) {
	for _, p := range s.procs {
		if now.Sub(p.last) <= maxAge && p.peer.BootID != s.boot {
			all = append(all, Claim{
				Node: p.peer.NodeID, Source: FromPeer, Address: p.peer.RaftAddress, At: p.last,
				BootID: p.peer.BootID, ClusterID: p.peer.ClusterID, Generation: p.peer.Generation,
			})
		}
	}
	return all
}

// duplicateIDs returns the IDs that two processes of this cluster used at the same time, both within maxAge: the first
// was seen alive after the second. This node's own process is alive now. Of one ID it returns one pair.
func (s *processLog) duplicateIDs(clusterID string, now time.Time, maxAge time.Duration) (all []DuplicateID) {
	s.procs = slices.DeleteFunc(s.procs, func(p processRecord) bool {
		return now.Sub(p.last) > max(processRetention,
			4*s.overlapping)
	})
	recent := func(p processRecord) bool { return p.peer.ClusterID == clusterID && now.Sub(p.last) <= maxAge }
	for i, a := range s.procs {
		if a.peer.BootID == s.boot || !recent(a) {
			continue
		}
		if a.peer.NodeID == s.self {
			all = append(all, doubleOf(s.self, s.boot, a.peer.BootID))
			continue
		}
		for _, b := range s.procs[i+1:] {
			if b.peer.NodeID == a.peer.NodeID && recent(b) && a.last.Sub(b.first) > s.overlapping {
				all = append(all, doubleOf(a.peer.NodeID, a.peer.BootID, b.peer.BootID))
			}
		}
	}
	slices.SortFunc(all, func(x, y DuplicateID) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), slices.Compare(x.Boots[:], y.Boots[:]))
	})
	return slices.CompactFunc(all, func(x, y DuplicateID) bool { return x.Node == y.Node })
}

func doubleOf(id cluster.NodeID, a, b string) DuplicateID {
	return DuplicateID{Node: id, Boots: [2]string{min(a, b), max(a, b)}}
}

// duplicateAddresses returns the addresses of processes that share their ID. If both respond again, they are two.
func (s *processLog) duplicateAddresses() (addresses []string) {
	count := map[cluster.NodeID]int{}
	for _, p := range s.procs {
		count[p.peer.NodeID]++
	}
	for _, p := range s.procs {
		if count[p.peer.NodeID] > 1 || p.peer.NodeID == s.self && p.peer.BootID != s.boot {
			addresses = append(addresses, p.peer.RaftAddress)
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}
