package consensus

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// peerRegistry holds the results of hellos. The transport writes it, and never waits.
type peerRegistry struct {
	mu           sync.Mutex
	lastHellos   map[cluster.NodeID]cluster.Peer // the last hello that this node admitted
	clearedAt    map[cluster.NodeID]uint64       // index of the entry that last cleared a member's incarnation
	refusedBy    map[cluster.NodeID]refusal      // peers whose last response refused this node
	admittedBy   map[cluster.NodeID]time.Time    // peers whose last response admitted it, and when
	refusedPeers map[cluster.NodeID]refusal      // peers that this node refuses
	outsiders    map[cluster.NodeID]string       // peers that are no members, as far as it knows, and why
	recoveredBy  cluster.Peer                    // asks this node to set its data aside; zero: no peer does
	kick         chan struct{}                   // capacity 1: something changed
}

type refusal struct {
	why     cluster.Refusal
	reason  string
	at      time.Time
	outside bool // the peer is not a member by this node's own records
}

// refusalFreshness is how recent a refusal must be for this node to count as dead.
const refusalFreshness = 5 * time.Second

// leaderlessGrace is at least how long a node without a leader believes no outsider that its generation was superseded.
const leaderlessGrace = 10 * time.Second

func newPeerRegistry() *peerRegistry {
	return &peerRegistry{
		lastHellos:   map[cluster.NodeID]cluster.Peer{},
		clearedAt:    map[cluster.NodeID]uint64{},
		refusedBy:    map[cluster.NodeID]refusal{},
		admittedBy:   map[cluster.NodeID]time.Time{},
		refusedPeers: map[cluster.NodeID]refusal{},
		outsiders:    map[cluster.NodeID]string{},
		kick:         make(chan struct{}, 1),
	}
}

// clear drops everything: it is about the data directory that this node had before.
func (b *peerRegistry) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.lastHellos)
	clear(b.clearedAt)
	clear(b.refusedBy)
	clear(b.admittedBy)
	clear(b.refusedPeers)
	clear(b.outsiders)
	b.recoveredBy = cluster.Peer{}
}

// hellos returns the admitted hellos that belong to generation to. A hello that was in progress while this node was
// recovered is evaluated with the old identity: its data directory is not admitted to the new generation.
func (b *peerRegistry) hellos(to cluster.Generation) map[cluster.NodeID]cluster.Peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := maps.Clone(b.lastHellos)
	maps.DeleteFunc(all, func(_ cluster.NodeID, p cluster.Peer) bool {
		return to.Number != 0 && p.ClusterID != "" && p.Generation != to
	})
	return all
}

// Hello returns the last hello of a peer that this node has admitted since it started.
func (n *Node) Hello(id cluster.NodeID) (cluster.Peer, bool) {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	p, ok := n.peers.lastHellos[id]
	return p, ok
}

// compare compares a record with the last hellos of other members. It does not block.
func (b *peerRegistry) compare(self cluster.Identity, id cluster.NodeID, rec *cluster.Record,
	record func(cluster.NodeID) cluster.Record,
) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rec.Confirmed = cluster.Confirmed(self, id, rec.AsOfIndex, b.lastHellos, record)
	rec.Superseded = cluster.Superseded(self, id, *rec, b.lastHellos, record)
}

// incarnationCleared drops the last hello of a peer, and those admitted by a record from before the entry at index.
func (b *peerRegistry) incarnationCleared(id cluster.NodeID, index uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lastHellos, id)
	b.clearedAt[id] = index
}

// acceptance is the evidence against a refusal.
type acceptance struct {
	admitted time.Time // last admission by a peer
	led      time.Time // last contact with a leader; now on the leader itself
}

// deadReason returns why this node is dead, "" if it is not: a peer refused it recently, and none admitted it and no
// leader was heard in that time. A peer of an old generation is no evidence against another generation's refusal.
func deadReason(now time.Time, refusing map[cluster.NodeID]refusal, good acceptance) string {
	var newest refusal
	for _, r := range refusing {
		if r.isOtherGeneration() == newest.isOtherGeneration() && r.at.After(newest.at) || r.isOtherGeneration() &&
			!newest.isOtherGeneration() {
			newest = r
		}
	}
	recent := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) <= refusalFreshness }
	if !recent(newest.at) || recent(good.admitted) && !newest.isOtherGeneration() || recent(good.led) {
		return ""
	}
	return newest.reason
}

// isOtherGeneration reports whether the peer is of another generation, newer or recovered independently.
func (r refusal) isOtherGeneration() bool {
	return r.why == cluster.RefusedGeneration || r.why == cluster.RefusedRecovery
}

// generationSuperseded reports whether a node of a newer or independently recovered generation refused this node
// recently. This node then takes no part in elections: a leader that it elects would not lead the current cluster.
// hasLeader: outsiders are not believed; see BelievesRecovery.
func (b *peerRegistry) generationSuperseded(now time.Time, hasLeader bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.refusedBy {
		if r.isOtherGeneration() && now.Sub(r.at) <= refusalFreshness && !(r.outside && hasLeader) {
			return true
		}
	}
	return false
}

// GenerationSuperseded reports whether a node of another generation refused this node recently. It then takes no part
// in elections, for any cause.
func (n *Node) GenerationSuperseded() bool {
	return n.peers.generationSuperseded(time.Now(), n.hadLeaderRecently())
}

// BelievesRecovery reports whether this node believes a node that its generation was superseded. Anyone with a node
// certificate can claim that. A node that has a leader believes only members: a recovery needs a lost quorum, and
// begins with a member. Without a leader it believes everyone, because all members may have been replaced since.
func (n *Node) BelievesRecovery(by cluster.NodeID) bool {
	return n.isMember(by) || !n.hadLeaderRecently()
}

// isMember reports whether a node is a member by this node's own records or configuration.
func (n *Node) isMember(id cluster.NodeID) bool {
	rec := n.Record(id)
	return !rec.Unknown && !rec.Removed
}

// hadLeaderRecently reports whether this node leads, or has heard its leader not much longer ago than an election
// takes.
func (n *Node) hadLeaderRecently() bool {
	inst := n.inst.Load()
	if inst == nil {
		return false
	}
	heard := inst.LastContact()
	return n.leads() || !heard.IsZero() && time.Since(heard) <= max(leaderlessGrace, 4*n.cfg.TimeoutMax)
}

func (n *Node) deadReason() string {
	now := time.Now()
	var good acceptance
	if inst := n.inst.Load(); inst != nil {
		good.led = inst.LastContact()
		if n.leads() {
			good.led = now
		}
	}
	b := n.peers
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.admittedBy {
		if at.After(good.admitted) {
			good.admitted = at
		}
	}
	return deadReason(now, b.refusedBy, good)
}

// notFollowed returns why this node follows none of the peers that it refuses or takes for no members.
func (b *peerRegistry) notFollowed() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	why := maps.Clone(b.outsiders)
	for id, r := range b.refusedPeers {
		why[id] = r.reason
	}
	var texts []string
	for _, id := range slices.Sorted(maps.Keys(why)) {
		texts = append(texts, why[id])
	}
	return strings.Join(texts, "; ")
}

// onlyRefused reports whether some peer refuses this node and none admits it. Unlike deadReason, this check ignores the
// age of refusals and admissions. One foreign node's refusal must not stop a leaderless cluster from electing.
func (b *peerRegistry) onlyRefused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.refusedBy) > 0 && len(b.admittedBy) == 0
}

// waitsForSelf reports whether a peer is the recovered node of a newer generation, and waits for this node to set its
// data aside. A recovery begins with a member: any node certificate can name a survivor.
func (n *Node) waitsForSelf(p cluster.Peer, verdict cluster.Admission) bool {
	if verdict.Refusal != cluster.RefusedSelfOld {
		return false
	}
	self := n.Identity()
	_, isServer := cluster.FindServer(n.Servers(), p.NodeID)
	return isServer && p.Survivors[self.NodeID] == self.Incarnation
}

// OnHello records a completed hello with this node's admission of the peer. It does not block.
func (n *Node) OnHello(p cluster.Peer, verdict cluster.Admission) {
	b, waited := n.peers, n.waitsForSelf(p, verdict)
	b.mu.Lock()
	if verdict.OK() {
		before := b.lastHellos[p.NodeID]
		// Hellos of two connections may arrive in any order, and no process loses its cluster's ID.
		overtaken := p.ClusterID == "" && before.ClusterID != "" && before.BootID == p.BootID
		if verdict.AsOfIndex >= b.clearedAt[p.NodeID] && !overtaken {
			b.lastHellos[p.NodeID] = p
		}
		delete(b.refusedPeers, p.NodeID)
		delete(b.outsiders, p.NodeID)
		if verdict.Outside {
			b.outsiders[p.NodeID] = verdict.Reason
		}
	} else {
		b.refusedPeers[p.NodeID] = refusal{why: verdict.Refusal, reason: verdict.Reason, at: time.Now()}
	}
	if waited {
		b.recoveredBy = p
	}
	b.mu.Unlock()
	raftnode.Notify(b.kick)
}

// OnAdmitted records that a peer admitted this node. It does not block. The admission of a removed peer does not count:
// two removed nodes would keep each other from learning that they are refused.
func (n *Node) OnAdmitted(by cluster.NodeID) {
	removed := n.Record(by).Removed
	b := n.peers
	b.mu.Lock()
	defer b.mu.Unlock()
	if removed {
		delete(b.admittedBy, by)
		return
	}
	delete(b.refusedBy, by)
	b.admittedBy[by] = time.Now()
}

// OnRefused records that a peer refuses this node. It does not block. A peer of an older generation refuses itself.
func (n *Node) OnRefused(by cluster.NodeID, why cluster.Refusal, reason string) {
	if why == cluster.RefusedSelfOld {
		return
	}
	outside := !n.isMember(by)
	b := n.peers
	b.mu.Lock()
	news := true
	for _, r := range b.refusedBy {
		news = news && r.why != why // log it once, for any peer
	}
	b.refusedBy[by] = refusal{why: why, reason: reason, at: time.Now(), outside: outside}
	delete(b.admittedBy, by)
	b.mu.Unlock()
	if news {
		n.log.Error("refused by a peer", "peer", by, "refusal", why, "reason", reason)
	}
}

// forgetRefusals is for a node that was just admitted: earlier refusals were about a node without a cluster.
func (b *peerRegistry) forgetRefusals() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.refusedBy)
}

// ReadOnly reports whether the disk has too little space left for new entries.
func (n *Node) ReadOnly() bool { return n.store.ReadOnly() }

// DiskHangs reports whether this node must send no appends because of its disk, so that the others elect. Without fast
// failover they wait for Raft's timers, so that only a stalled disk is worth an election.
func (n *Node) DiskHangs(fast bool) bool {
	if !fast {
		return n.store.Stalled()
	}
	return n.store.Hangs()
}

// MayStartElection reports whether this node may start an election. It may not before Raft runs, and ElectionView is
// known, with a stalled or full disk, while peers only refuse it, before it has probed them, before its log reaches its
// own admission entry, or while a longer promise of an earlier process binds it.
func (n *Node) MayStartElection() bool {
	return n.inst.Load() != nil && n.ElectionObstacle() == ""
}

// ElectionObstacle returns a text that says why this node may not start an election; "" if it may, or before Raft
// runs.
func (n *Node) ElectionObstacle() string {
	inst := n.inst.Load()
	switch {
	case inst == nil:
		return ""
	case inst.ElectionBlocked():
		return "its log has not reached the entry by which it was admitted"
	case n.store.Stalled():
		return "its disk is stalled"
	case n.store.ReadOnly():
		return "its disk is full"
	case n.promise.earlierBinds() > 0:
		return "a lease from before its restart may be running"
	case n.GenerationSuperseded():
		return "a peer has a newer generation of the cluster"
	case n.peers.onlyRefused():
		return "every peer that has answered refuses it"
	case !n.peersProbed.Load():
		return "it has not reached enough peers since it started"
	}
	return ""
}
