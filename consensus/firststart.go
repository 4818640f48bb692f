package consensus

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// probeEvery is how often a node probes a peer before it can decide about its first start.
const probeEvery = 50 * time.Millisecond

type bootstrapDecision int

const (
	startExisting bootstrapDecision = iota // Raft has a configuration, or waits for one
	bootstrap                              // write the first configuration
	joinOnly                               // never bootstrap: wait to be added
	keepProbing                            // too little is known
)

// startInputs is everything that decideFirstStart depends on.
type startInputs struct {
	self     cluster.NodeID
	hasData  bool // the log or a snapshot has something
	identity identityFile
	digest   string // of the configured initial-cluster
	first    []FirstMember
	join     bool
	answers  map[cluster.NodeID]probeAnswer // the last response of each peer that counts
}

type probeAnswer struct {
	listed  cluster.NodeID // the node ID in initial-cluster
	peer    cluster.Peer
	reply   cluster.Admission // how the peer admits this node: MayAdoptClusterID means that it has recorded it
	refusal error             // why one side refuses the other; nil: neither does
}

// supportsBootstrap reports whether a peer without a cluster ID may still bootstrap itself, or has bootstrapped and
// recorded this data directory. A peer that bootstrapped without it takes a late first start for a wiped disk.
func (a probeAnswer) supportsBootstrap() bool {
	return a.peer.Start == cluster.StartUndecided ||
		a.peer.Start == cluster.StartBootstrapped && a.reply.MayAdoptClusterID
}

// decideFirstStart distinguishes late first starts, wiped disks and rival bootstraps. A peer with a cluster ID, or an
// adopted one, means that the cluster exists: a node with an empty disk that bootstrapped beside it could vote twice.
// Without one, a majority of the list, this node included, must support a bootstrap. Then two halves that cannot reach
// each other cannot both continue. A node that took part in an election before its disk was wiped finds no majority.
// Otherwise all others must respond: the nodes of that election would refuse this one (docs/decisions/005).
func decideFirstStart(in startInputs) (bootstrapDecision, error) {
	if err := checkStart(in); err != nil {
		return keepProbing, err
	}
	if in.hasData || in.identity.JoinOnly {
		return startExisting, nil
	}
	if len(in.first) == 0 {
		return joinOnly, nil
	}
	if in.identity.Bootstrap != "" {
		return bootstrap, nil // an earlier start decided it, and did not finish
	}
	if in.identity.ClusterID != "" {
		return joinOnly, nil // a member of a running cluster has let it adopt this
	}
	others, with := 0, 1
	for _, m := range in.first {
		a, answered := in.answers[m.ID]
		known := in.identity.BootstrapIncarnations[m.ID]
		switch {
		case !answered || m.ID == in.self:
			continue
		case a.peer.ClusterID != "":
			return joinOnly, nil
		case known != "" && known != a.peer.Incarnation:
			continue // others have started with it, before its disk was wiped
		}
		others++
		if a.supportsBootstrap() {
			with++
		}
	}
	if with >= cluster.Quorum(len(in.first)) || others == len(in.first)-1 {
		return bootstrap, nil
	}
	return keepProbing, nil
}

// checkStart finds an initial-cluster that must be wrong.
func checkStart(in startInputs) error {
	started := in.hasData || in.identity.Bootstrap != ""
	if started && in.identity.ClusterID == "" && in.identity.Bootstrap != "" && in.digest != "" &&
		in.digest != in.identity.Bootstrap {
		return configError(
			"initial-cluster or cluster-name is not what this data directory was bootstrapped with, and its cluster never formed: set them back, or clear the data directory")
	}
	if in.identity.ClusterID != "" && initialClusterForeign(in) {
		return configError(
			"initial-cluster names none of the members that this data directory knows: it belongs to cluster %s (%s)",
			in.identity.ClusterID, rosterNames(in.identity.Roster))
	}
	if initialClusterGrown(in) {
		return configError(
			"initial-cluster names other nodes, but the cluster %s of this data directory has no member but this one: set it back; add members with join, or by POST /admin/members", in.identity.ClusterID)
	}
	if in.hasData || in.identity.JoinOnly {
		return nil
	}
	if len(in.first) == 0 {
		if in.join {
			return nil
		}
		return configError(
			"the data directory is empty: set initial-cluster for a new cluster, or join or discover for a running one")
	}
	return checkFirstMembers(in.self, in.first)
}

// initialClusterForeign reports whether initial-cluster belongs to another cluster than the data: none of the other
// nodes in it was ever a member. Some of them may be new or removed, because the list is that of the first start.
func initialClusterForeign(in startInputs) bool {
	others := slices.DeleteFunc(slices.Clone(in.first), func(m FirstMember) bool { return m.ID == in.self })
	met := func(m FirstMember) bool {
		_, ok := in.identity.Roster[m.ID]
		return ok
	}
	return len(others) > 0 && hasOthers(in.identity.Roster, in.self) && !slices.ContainsFunc(others, met)
}

// initialClusterGrown reports whether initial-cluster names other nodes while the data is of a cluster that never had a
// second member. Such a node would serve alone, beside the cluster that is meant.
func initialClusterGrown(in startInputs) bool {
	f := in.identity
	return f.ClusterID != "" && f.RosterIndex != 0 && f.Bootstrap != "" && f.Bootstrap != in.digest &&
		len(in.first) >= 2 && !hasOthers(f.Roster, in.self)
}

// hasOthers reports whether a roster names another node than self.
func hasOthers(roster map[cluster.NodeID]cluster.Record, self cluster.NodeID) bool {
	_, member := roster[self]
	return len(roster) > 1 || len(roster) == 1 && !member
}

func rosterNames(roster map[cluster.NodeID]cluster.Record) string {
	var names []string
	for _, id := range slices.Sorted(maps.Keys(roster)) {
		names = append(names, string(id))
	}
	return strings.Join(names, ", ")
}

func checkFirstMembers(self cluster.NodeID, first []FirstMember) error {
	ids, addresses := map[cluster.NodeID]bool{}, map[string]cluster.NodeID{}
	for _, m := range first {
		if ids[m.ID] {
			return configError("initial-cluster: node %s is listed twice", m.ID)
		}
		if other, taken := addresses[m.RaftAddress]; taken {
			return configError("initial-cluster: nodes %s and %s have the same raft address %s", other, m.ID,
				m.RaftAddress)
		}
		ids[m.ID], addresses[m.RaftAddress] = true, m.ID
	}
	if !ids[self] {
		return configError("initial-cluster: this node, %s, is not in the list", self)
	}
	return nil
}

// addResponse records a response, or returns why it does not count.
func (in *startInputs) addResponse(a probeAnswer) error {
	if a.peer.NodeID != a.listed {
		return fmt.Errorf("initial-cluster has %s where node %s is", a.listed, a.peer.NodeID)
	}
	// A node that has a cluster may refuse this one, which was wiped. What matters here is that the cluster exists.
	if a.refusal != nil && a.peer.ClusterID == "" {
		return a.refusal
	}
	in.answers[a.listed] = a
	return nil
}

// mergeIncarnations records the data directories with which a peer without a cluster ID has bootstrapped. A node whose
// disk those peers have seen before must not count as new.
func (n *Node) mergeIncarnations(in *startInputs, peer cluster.Peer) error {
	if peer.ClusterID != "" || peer.Start != cluster.StartBootstrapped || peer.Roster == nil {
		return nil
	}
	met := map[cluster.NodeID]string{}
	for _, m := range in.first {
		if rec := peer.Roster.Records[m.ID]; m.ID != in.self && rec.Incarnation != "" {
			met[m.ID] = rec.Incarnation
		}
	}
	return n.ident.addIncarnations(met)
}

// startInputs returns what is known without a probe.
func (n *Node) startInputs() (startInputs, error) {
	hasData, err := hasRaftData(n.store.Log(), n.store.Snapshots())
	return startInputs{
		self: n.cfg.Self.NodeID, hasData: hasData, identity: n.ident.get(), digest: n.digest,
		first: n.cfg.InitialCluster, join: n.cfg.Join, answers: map[cluster.NodeID]probeAnswer{},
	}, err
}

// firstStart decides what to do with the data directory and does it. It probes the peers until it can decide.
func (n *Node) firstStart(ctx context.Context) error {
	in, err := n.startInputs()
	if err != nil {
		return err
	}
	action, err := decideFirstStart(in)
	if action == keepProbing && err == nil {
		action, err = n.probeUntilDecided(ctx, &in)
	}
	if err != nil {
		return err
	}
	switch action {
	case bootstrap:
		n.bootstrapped = true
		return n.bootstrap(in.bootstrapIncarnations())
	case joinOnly:
		n.log.Info("waiting to be added to the running cluster")
		return n.ident.update(func(f *identityFile) (bool, error) { f.JoinOnly = true; return true, nil })
	}
	return nil
}

// probeUntilDecided probes every other node of the list until the responses allow a decision.
func (n *Node) probeUntilDecided(ctx context.Context, in *startInputs) (bootstrapDecision, error) {
	n.log.Info("first start: probing the peers of initial-cluster", "peers", len(in.first)-1)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	answers, wakes := make(chan probeAnswer), map[cluster.NodeID]chan struct{}{}
	for _, m := range in.first {
		if m.ID != in.self {
			wake := make(chan struct{}, 1)
			wakes[m.ID] = wake
			wg.Go(func() { n.probePeer(ctx, m, answers, wake) })
		}
	}
	warned := map[cluster.NodeID]bool{}
	for {
		select {
		case <-ctx.Done():
			return startExisting, nil // Run ends
		case <-n.peers.kick: // a hello: its node runs now, and perhaps others do. It may have brought a cluster ID.
			for id, wake := range wakes {
				if _, answered := in.answers[id]; !answered { // the answers are hellos, too
					raftnode.Notify(wake)
				}
			}
		case a := <-answers:
			misfit := in.addResponse(a)
			if misfit != nil {
				delete(wakes, a.listed) // its probes are hellos, each of which would begin the next one
				if !warned[a.listed] {
					n.log.Warn("first start: peer response rejected", "peer", a.listed, "reason", misfit)
					warned[a.listed] = true
				}
			} else {
				if err := n.mergeIncarnations(in, a.peer); err != nil {
					return keepProbing, err
				}
			}
		}
		in.identity = n.ident.get()
		if action, err := decideFirstStart(*in); action != keepProbing || err != nil {
			return action, err
		}
	}
}

// probePeer probes a peer at each probeEvery, and when it receives from wake.
func (n *Node) probePeer(ctx context.Context, m FirstMember, answers chan<- probeAnswer, wake <-chan struct{}) {
	everyOr(ctx, probeEvery, wake, func() bool {
		peer, verdict, err := n.probe(ctx, m.RaftAddress)
		if peer.NodeID != "" {
			select {
			case answers <- probeAnswer{m.ID, peer, verdict, err}:
			case <-ctx.Done():
			}
		}
		return false
	})
}

// bootstrapIncarnations returns what a bootstrap records: the peers whose hello said that they could still bootstrap.
func (in *startInputs) bootstrapIncarnations() map[cluster.NodeID]string {
	met := map[cluster.NodeID]string{}
	for id, a := range in.answers {
		if id != in.self && a.peer.ClusterID == "" && a.peer.Start != cluster.StartJoinOnly {
			met[id] = a.peer.Incarnation
		}
	}
	return met
}

// bootstrap writes the first configuration: the whole list as voters. Unlike the library's own it can be repeated, so a
// crash between its writes does no harm. The incarnations are saved with the decision, in one write: from then on this
// node must not take an empty data directory of a known peer for a first start.
func (n *Node) bootstrap(met map[cluster.NodeID]string) error {
	n.log.Info("first start: bootstrapping a new cluster", "members", len(n.cfg.InitialCluster))
	err := n.ident.update(func(f *identityFile) (bool, error) {
		if f.Bootstrap != "" {
			return false, nil
		}
		f.Bootstrap = n.digest
		f.addIncarnations(met)
		return true, nil
	})
	if err != nil {
		return err
	}
	servers := firstServers(n.cfg.InitialCluster)
	if have, err := n.store.Stable().GetUint64(keyCurrentTerm); err != nil || have == 0 {
		if err := n.store.Stable().SetUint64(keyCurrentTerm, 1); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	entry := configurationEntry(servers, 1, 1)
	if err := n.store.Log().StoreLog(entry); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// firstServers returns the first configuration. It must be the same on every node, in any order of its list.
func firstServers(first []FirstMember) (servers []cluster.Server) {
	for _, m := range first {
		servers = append(servers, cluster.Server{ID: m.ID, Address: m.RaftAddress, Suffrage: cluster.Voter})
	}
	slices.SortFunc(servers, func(a, b cluster.Server) int { return cmp.Compare(a.ID, b.ID) })
	return servers
}

func hasRaftData(log raft.LogStore, snaps raft.SnapshotStore) (bool, error) {
	last, err := log.LastIndex()
	if err != nil {
		return false, fmt.Errorf("read the log: %w", err)
	}
	list, err := snaps.List()
	if err != nil {
		return false, fmt.Errorf("list snapshots: %w", err)
	}
	return last > 0 || len(list) > 0, nil
}
