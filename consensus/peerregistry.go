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

// peerRegistry is what the hellos have said: the transport writes it, and never
// waits.
type peerRegistry struct {
	mu           sync.Mutex
	lastHellos   map[cluster.NodeID]cluster.Peer // the last hello that this node admitted
	refusedBy    map[cluster.NodeID]refusal      // peers whose last word was to refuse this node
	admittedBy   map[cluster.NodeID]time.Time    // peers whose last word was to admit it, and when
	refusedPeers map[cluster.NodeID]refusal      // peers that this node refuses
	kick         chan struct{}                   // capacity 1: something new was said
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

// clear forgets all: it was said by, or to, a node that this one is no more.
func (b *peerRegistry) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.lastHellos)
	clear(b.refusedBy)
	clear(b.admittedBy)
	clear(b.refusedPeers)
}

// hellos gives what the peers have said to a node of that generation. A hello that
// was under way when this node was recovered is admitted by what it was before: it
// tells of a data directory that the new generation does not take in.
func (b *peerRegistry) hellos(to cluster.Generation) map[cluster.NodeID]cluster.Peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := maps.Clone(b.lastHellos)
	maps.DeleteFunc(all, func(_ cluster.NodeID, p cluster.Peer) bool {
		return to.Number != 0 && p.ClusterID != "" && p.Generation != to
	})
	return all
}

// forget drops what a peer has said.
func (b *peerRegistry) forget(id cluster.NodeID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lastHellos, id)
}

// acceptance is what speaks for a node that someone refuses.
type acceptance struct {
	admitted time.Time // when a peer last said so
	led      time.Time // when a leader was last heard; now on the leader itself
}

// deadReason says why this node is dead: someone has refused it for good lately,
// and nobody has admitted it nor led it in that time. "" means that it is not.
// That others of an old generation admit it speaks for no node.
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

// isOtherGeneration says that a refusal is one of a node of another generation of this
// cluster: newer, or recovered apart.
func (r refusal) isOtherGeneration() bool {
	return r.why == cluster.RefusedGeneration || r.why == cluster.RefusedRecovery
}

// generationSuperseded says that a node of a newer generation, or of one that was recovered
// apart, has shown itself lately. Then this one takes no part in elections: what
// it would elect, or be, is not the cluster any more.
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

// onlyRefused says that some peer refuses this node and that no peer's last word was
// to admit it. It does not forget, unlike deadReason: a cluster that has had no
// leader for a while, and one node in it that does not belong, must not keep the
// others from standing.
func (b *peerRegistry) onlyRefused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.refusedBy) > 0 && len(b.admittedBy) == 0
}

// probeInterval is how often a node without a leader asks the others about itself.
const probeInterval = time.Second

// probePeersLoop probes the other nodes while no leader is known. One that does not
// stand, because it is no voter or was removed, would otherwise hear from
// nobody, and not learn that it is refused.
//
// The first time is at once, leader or not, and this node takes no part in
// elections before that: members of an old generation that start together are a
// quorum of their own, and must first see that there is a newer one.
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

// probePeers says hello to every other node. What is answered comes in by OnHello,
// OnAdmitted and OnRefused. It takes probeTimeout at most.
func (n *Node) probePeers(ctx context.Context, inst *raftnode.Instance) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for _, addr := range n.addressesToAsk(inst) {
		asking.Go(func() { _, _, _ = n.deps.Probe(ctx, addr) })
	}
	asking.Wait()
}

// addressesToAsk gives the other servers of the configuration; while there is
// none, those of initial-cluster.
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

// OnHello hears of each completed hello, with this node's verdict on the peer. It
// does not block.
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

// OnAdmitted hears that a peer has admitted this node. It does not block. A peer
// that was removed speaks for nobody: two removed nodes would keep each other from
// learning that they are refused.
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

// OnRefused hears that a peer refuses this node for good. It does not block. A
// peer of an older generation speaks of itself: that is no refusal of this node.
func (n *Node) OnRefused(by cluster.NodeID, why cluster.Refusal, reason string) {
	if why == cluster.RefusedSelfOld {
		return
	}
	b := n.peers
	b.mu.Lock()
	news := true
	for _, r := range b.refusedBy {
		news = news && r.why != why // once is enough, whoever says it next
	}
	b.refusedBy[by] = refusal{why, reason, n.now()}
	delete(b.admittedBy, by)
	b.mu.Unlock()
	if news {
		n.log.Error("refused by a peer", "peer", by, "refusal", why, "reason", reason)
	}
}

// LocalPeer is this node as its hellos say it.
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
		p.Bootstrap = ident.Bootstrap // its configuration may have been taken out since
	}
	return p
}

// ownRecordIndex is the index as of which the state names self's data directory, 0 when
// it does not. A restore that is not committed changes neither: it keeps the
// members, and the index that they are as of.
func ownRecordIndex(v *state.View, self cluster.Identity) uint64 {
	if v.Record(self.NodeID) != (cluster.Record{Incarnation: self.Incarnation}) {
		return 0
	}
	return v.AppliedIndex()
}

// Record is what this node knows of a member, for admission. The roster on disk
// counts until the state has caught up with it after a restart. Of a member that
// is on neither it is the data directory that this node started with.
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

// RecordIncarnation puts the data directory of a peer without a cluster ID on record
// durably, when there is none and both have bootstrapped. The transport calls it
// before it judges a hello.
func (n *Node) RecordIncarnation(p cluster.Peer) error {
	if rec := n.Record(p.NodeID); rec.Incarnation != "" || rec.Removed || !cluster.MayRecordIncarnation(n.LocalPeer(), p) || !n.inFirstConfiguration(p.NodeID) {
		return nil
	}
	return n.ident.addIncarnations(map[cluster.NodeID]string{p.NodeID: p.Incarnation})
}

// inFirstConfiguration says whether the first configuration names a node.
func (n *Node) inFirstConfiguration(id cluster.NodeID) bool {
	if slices.ContainsFunc(n.cfg.InitialCluster, func(m FirstMember) bool { return m.ID == id }) {
		return true
	}
	_, ok := cluster.FindServer(n.Servers(), id)
	return ok
}

// Adopt makes the cluster of a peer this data directory's own, durably. The
// transport calls it before it lets the first entry of a leader with a cluster
// ID in, or when a peer vouches for this node.
func (n *Node) Adopt(from cluster.Peer) error {
	adopted, err := n.ident.adopt(from.ClusterID, from.Generation, from.Roster)
	if adopted {
		n.peers.forgetRefusals()
	}
	return err
}

// forgetRefusals is for a node that was just taken in: what peers said before
// was about a node without a cluster.
func (b *peerRegistry) forgetRefusals() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.refusedBy)
}

// ReadOnly says that the disk has too little space left for new entries.
func (n *Node) ReadOnly() bool { return n.store.ReadOnly() }

// Stalled says that the disk is stalled: this node must send no appends, so that
// the others elect another leader.
func (n *Node) Stalled() bool { return n.store.Stalled() }

// MayStartElection says whether this node may stand for election: not with a stalled or
// full disk, nor while the others refuse it for good, nor before it has asked
// them, nor before its log reaches to where it was taken in.
func (n *Node) MayStartElection() bool {
	inst := n.inst.Load()
	barred := inst != nil && inst.ElectionBlocked()
	return !barred && !n.store.Stalled() && !n.store.ReadOnly() && !n.peers.onlyRefused() && n.mayTakePartInElections()
}

// mayTakePartInElections says that this node has asked the others since it started, and that
// it is not of an old generation as far as it can see.
func (n *Node) mayTakePartInElections() bool {
	return n.peersProbed.Load() && !n.peers.generationSuperseded(n.now())
}
