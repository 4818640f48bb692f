package splitbrain

import (
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

const (
	maxProcesses = 256 // processes remembered; the one that was seen least lately makes room
	// processRetention is for how long, at least, a process is remembered that bore an ID.
	processRetention = 30 * time.Second
)

// processLog holds the processes that have said hello. A hello is proof of life:
// both sides answer a number that the other has just drawn.
type processLog struct {
	self cluster.NodeID
	boot string // of this process
	// overlapping is longer than a hello takes: a process whose hello ended that much
	// later than another one's was alive after that.
	overlapping time.Duration
	procs       []processRecord // in the order in which they came
}

type processRecord struct {
	peer        cluster.Peer
	first, last time.Time
}

// record takes note of a hello that was completed now.
func (s *processLog) record(p cluster.Peer, now time.Time) {
	i := slices.IndexFunc(s.procs, func(have processRecord) bool {
		return have.peer.NodeID == p.NodeID && have.peer.BootID == p.BootID
	})
	switch {
	case i >= 0:
		s.procs[i].peer, s.procs[i].last = p, now
		return
	case len(s.procs) >= maxProcesses:
		oldest := slices.MinFunc(s.procs, func(a, b processRecord) int { return a.last.Compare(b.last) }).last
		i = slices.IndexFunc(s.procs, func(have processRecord) bool { return have.last.Equal(oldest) })
		s.procs = slices.Delete(s.procs, i, i+1)
	}
	s.procs = append(s.procs, processRecord{peer: p, first: now, last: now})
}

// claims gives what the processes have said of themselves, not older than maxAge.
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

// doubles gives the IDs that two processes of one cluster have borne at the same
// time, and both within maxAge: the one that came first was seen alive after the
// other had been. This node's own process is alive now. Processes of other clusters are another
// matter.
func (s *processLog) doubles(clusterID string, now time.Time, maxAge time.Duration) (all []DuplicateID) {
	s.procs = slices.DeleteFunc(s.procs, func(p processRecord) bool { return now.Sub(p.last) > max(processRetention, 4*s.overlapping) })
	lately := func(p processRecord) bool { return p.peer.ClusterID == clusterID && now.Sub(p.last) <= maxAge }
	for i, a := range s.procs {
		if a.peer.BootID == s.boot || !lately(a) {
			continue
		}
		if a.peer.NodeID == s.self {
			all = append(all, doubleOf(s.self, s.boot, a.peer.BootID))
			continue
		}
		for _, b := range s.procs[i+1:] {
			if b.peer.NodeID == a.peer.NodeID && lately(b) && a.last.Sub(b.first) > s.overlapping {
				all = append(all, doubleOf(a.peer.NodeID, a.peer.BootID, b.peer.BootID))
			}
		}
	}
	slices.SortFunc(all, func(x, y DuplicateID) int {
		return strings.Compare(string(x.Node)+x.Boots[0]+x.Boots[1], string(y.Node)+y.Boots[0]+y.Boots[1])
	})
	return all
}

func doubleOf(id cluster.NodeID, a, b string) DuplicateID {
	return DuplicateID{Node: id, Boots: [2]string{min(a, b), max(a, b)}}
}

// duplicateAddresses gives the addresses of processes that share their ID with another
// one: seen again at both, they are two.
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
