package consensus

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

// peerRegistry holds the results of hellos. The transport writes it, and never waits.
type peerRegistry struct {
	mu           sync.Mutex
	lastHellos   map[cluster.NodeID]cluster.Peer // the last hello that this node admitted
	refusedBy    map[cluster.NodeID]refusal      // peers whose last response refused this node
	admittedBy   map[cluster.NodeID]time.Time    // peers whose last response admitted it, and when
	refusedPeers map[cluster.NodeID]refusal      // peers that this node refuses
	kick         chan struct{}                   // capacity 1: something changed
}

type refusal struct {
	why    cluster.Refusal
	reason string
	at     time.Time
}

// refusalFreshness is how recent a refusal must be for this node to count as dead.
const refusalFreshness = 5 * time.Second

func newPeerBook() *peerRegistry {
	return &peerRegistry{
		lastHellos:   map[cluster.NodeID]cluster.Peer{},
		refusedBy:    map[cluster.NodeID]refusal{},
		admittedBy:   map[cluster.NodeID]time.Time{},
		refusedPeers: map[cluster.NodeID]refusal{},
		kick:         make(chan struct{}, 1),
	}
}

// clear drops everything: it is about the data directory that this node had before.
func (b *peerRegistry) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.lastHellos)
	clear(b.refusedBy)
	clear(b.admittedBy)
	clear(b.refusedPeers)
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

// forget drops the last hello of a peer.
func (b *peerRegistry) forget(id cluster.NodeID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lastHellos, id)
}

// acceptance is the evidence against a refusal.
type acceptance struct {
	admitted time.Time // last admission by a peer
	led      time.Time // last contact with a leader; now on the leader itself
}

// deadReason returns why this node is dead: a peer refused it recently, and no peer has admitted it and no leader was
// heard in that time. It returns "" for a node that is not dead. An admission by a peer of an old generation is no
// evidence against a refusal by another generation.
func deadReason(now time.Time, refusing map[cluster.NodeID]refusal, good acceptance) string {
	var newest refusal
	for _, r := range refusing {
		if r.isOtherGeneration() == newest.isOtherGeneration() && r.at.After(newest.at) || r.isOtherGeneration() && !newest.isOtherGeneration() {
			newest = r
		}
	}
	recent := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) <= refusalFreshness }
	if !recent(newest.at) || recent(good.admitted) && !newest.isOtherGeneration() || recent(good.led) {
		return ""
	}
	return newest.reason
}

// isOtherGeneration reports whether the peer that refused is of another generation of this cluster: newer, or recovered
// independently.
func (r refusal) isOtherGeneration() bool {
	return r.why == cluster.RefusedGeneration || r.why == cluster.RefusedRecovery
}

// generationSuperseded reports whether a node of a newer or independently recovered generation refused this node
// recently. This node then takes no part in elections: a leader that it elects would not lead the current cluster.
func (b *peerRegistry) generationSuperseded(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.refusedBy {
		if r.isOtherGeneration() && now.Sub(r.at) <= refusalFreshness {
			return true
		}
	}
	return false
}

func (n *Node) deadReason() string {
	now := n.now()
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

// onlyRefused reports whether some peer refuses this node and none admits it. Unlike deadReason, this check ignores the
// age of refusals and admissions. One foreign node's refusal must not stop a leaderless cluster from electing.
func (b *peerRegistry) onlyRefused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.refusedBy) > 0 && len(b.admittedBy) == 0
}

// probeInterval is how often a node without a leader probes the others.
const probeInterval = time.Second

// probePeersLoop probes the other nodes while no leader is known. A node that starts no elections, because it is a
// non-voter or was removed, would otherwise hear from no peer, and not learn that it is refused.
//
// The first probe comes when Raft runs, with or without a leader, and this node takes part in no election before it.
// Members of an old generation that start together are a quorum of their own: they must first learn that there is a
// newer one.
func (n *Node) probePeersLoop(ctx context.Context) {
	if n.ident.get().ClusterID != "" {
		select {
		case <-n.running:
		case <-ctx.Done():
			return
		}
		if inst := n.inst.Load(); inst != nil {
			n.probePeers(ctx, inst)
		}
	}
	n.peersProbed.Store(true)
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if inst := n.inst.Load(); inst != nil && n.currentSoftState().Leader == "" {
			n.probePeers(ctx, inst)
		}
	}
}

// probePeers sends a hello to every other node. The responses come through OnHello, OnAdmitted and OnRefused. It takes
// probeTimeout at most.
func (n *Node) probePeers(ctx context.Context, inst *raftnode.Instance) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for _, addr := range n.addressesToAsk(inst) {
		asking.Go(func() { _, _, _ = n.deps.Probe(ctx, addr) })
	}
	asking.Wait()
}

// addressesToAsk returns the other servers of the configuration; while there is none, those of initial-cluster.
func (n *Node) addressesToAsk(inst *raftnode.Instance) []string {
	var all []string
	servers := inst.Servers()
	for _, s := range servers {
		if s.ID != n.cfg.Self.NodeID {
			all = append(all, s.Address)
		}
	}
	if len(servers) > 0 {
		return all
	}
	for _, m := range n.cfg.InitialCluster {
		if m.ID != n.cfg.Self.NodeID {
			all = append(all, m.RaftAddress)
		}
	}
	return all
}

// OnHello records a completed hello with this node's admission of the peer. It does not block.
func (n *Node) OnHello(p cluster.Peer, verdict cluster.Admission) {
	b := n.peers
	b.mu.Lock()
	if verdict.OK() {
		b.lastHellos[p.NodeID] = p
		delete(b.refusedPeers, p.NodeID)
	} else {
		b.refusedPeers[p.NodeID] = refusal{verdict.Refusal, verdict.Reason, n.now()}
	}
	b.mu.Unlock()
	notify(b.kick)
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
	b.admittedBy[by] = n.now()
}

// OnRefused records that a peer refuses this node. It does not block. A peer of an older generation refuses itself:
// that is not a refusal of this node.
func (n *Node) OnRefused(by cluster.NodeID, why cluster.Refusal, reason string) {
	if why == cluster.RefusedSelfOld {
		return
	}
	b := n.peers
	b.mu.Lock()
	news := true
	for _, r := range b.refusedBy {
		news = news && r.why != why // log it once, for any peer
	}
	b.refusedBy[by] = refusal{why, reason, n.now()}
	delete(b.admittedBy, by)
	b.mu.Unlock()
	if news {
		n.log.Error("refused by a peer", "peer", by, "refusal", why, "reason", reason)
	}
}

// LocalPeer returns this node's description for its hellos.
func (n *Node) LocalPeer() cluster.Peer {
	p, ident := n.cfg.Self, n.ident.get()
	p.Identity = ident.Identity
	if ident.ClusterID != "" {
		p.Roster = &cluster.Roster{Index: ident.RosterIndex, Term: ident.RosterTerm, Records: ident.Roster}
	} else if ident.Bootstrap != "" {
		p.Roster = bootstrapRoster(ident.BootstrapIncarnations)
	}
	p.CommandVersion, p.RecordedIndex = state.CommandVersion, ownRecordIndex(n.View(), ident.Identity)
	p.Bootstrap, p.Start = n.digest, ident.start()
	if ident.Bootstrap != "" {
		p.Bootstrap = ident.Bootstrap // initial-cluster may have been removed from the configuration since
	}
	return p
}

// ownRecordIndex returns the index as of which the state names self's data directory, 0 when it does not. An
// uncommitted restore changes neither: it keeps the members and the index of their records.
func ownRecordIndex(v *state.View, self cluster.Identity) uint64 {
	if v.Record(self.NodeID) != (cluster.Record{Incarnation: self.Incarnation}) {
		return 0
	}
	return v.AppliedIndex()
}

// Record returns what this node knows about a member, for admission. The roster on disk counts until the state has
// caught up with it after a restart. For a member in neither it is the data directory that this node bootstrapped with.
func (n *Node) Record(id cluster.NodeID) cluster.Record {
	v, ident := n.View(), n.ident.get()
	rec := ident.Roster[id]
	if v.AppliedIndex() >= ident.RosterIndex {
		rec = v.Record(id)
	}
	if rec == (cluster.Record{}) {
		rec.Incarnation = ident.BootstrapIncarnations[id]
	}
	rec.AsOfIndex = max(v.AppliedIndex(), ident.RosterIndex)
	return rec
}

func bootstrapRoster(met map[cluster.NodeID]string) *cluster.Roster {
	r := &cluster.Roster{Records: make(map[cluster.NodeID]cluster.Record, len(met))}
	for id, incarnation := range met {
		r.Records[id] = cluster.Record{Incarnation: incarnation}
	}
	return r
}

// RecordIncarnation records the data directory of a peer without a cluster ID durably, if none is recorded and both
// have bootstrapped. The transport calls it before it evaluates a hello.
func (n *Node) RecordIncarnation(p cluster.Peer) error {
	if rec := n.Record(p.NodeID); rec.Incarnation != "" || rec.Removed || !cluster.MayRecordIncarnation(n.LocalPeer(), p) || !n.inFirstConfiguration(p.NodeID) {
		return nil
	}
	return n.ident.addIncarnations(map[cluster.NodeID]string{p.NodeID: p.Incarnation})
}

// inFirstConfiguration reports whether the first configuration names a node.
func (n *Node) inFirstConfiguration(id cluster.NodeID) bool {
	if slices.ContainsFunc(n.cfg.InitialCluster, func(m FirstMember) bool { return m.ID == id }) {
		return true
	}
	_, ok := cluster.FindServer(n.Servers(), id)
	return ok
}

// Adopt makes the cluster of a peer this data directory's own, durably. The transport calls it before it accepts the
// first entry of a leader with a cluster ID, or when a peer lets this node adopt the ID.
func (n *Node) Adopt(from cluster.Peer) error {
	adopted, err := n.ident.adopt(from.ClusterID, from.Generation, from.Roster)
	if adopted {
		n.peers.forgetRefusals()
	}
	return err
}

// forgetRefusals is for a node that was just admitted: earlier refusals were about a node without a cluster.
func (b *peerRegistry) forgetRefusals() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.refusedBy)
}

// ReadOnly reports whether the disk has too little space left for new entries.
func (n *Node) ReadOnly() bool { return n.store.ReadOnly() }

// Stalled reports whether the disk is stalled: this node must then send no appends, so that the others elect another
// leader.
func (n *Node) Stalled() bool { return n.store.Stalled() }

// MayStartElection reports whether this node may start an election. It may not with a stalled or full disk, while peers
// only refuse it, before it has probed them, or before its log reaches its own admission entry.
func (n *Node) MayStartElection() bool {
	inst := n.inst.Load()
	barred := inst != nil && inst.ElectionBlocked()
	return !barred && !n.store.Stalled() && !n.store.ReadOnly() && !n.peers.onlyRefused() && n.mayTakePartInElections()
}

// mayTakePartInElections reports whether this node has probed the others since it started, and knows no newer
// generation.
func (n *Node) mayTakePartInElections() bool {
	return n.peersProbed.Load() && !n.peers.generationSuperseded(n.now())
}
