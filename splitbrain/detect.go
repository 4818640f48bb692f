package splitbrain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

// Input is the complete input of Detect.
type Input struct {
	Self         Claim // of this node
	Servers      []cluster.Server
	Claims       []Claim // of all other nodes, and of all processes that sent a hello
	DuplicateIDs []DuplicateID
	MaxAge       time.Duration // older claims are ignored
	// Since is the minimum time of claims about leading, and of older generations; zero: none. Leadership may move
	// between two claims, and a node of an older generation may have stopped.
	Since time.Time
	// Proven: after the claims were received, a majority of voters acknowledged that this node leads.
	Proven bool
}

// Detect evaluates the claims at the time now.
//
// Two clusters, or two recoveries of one, are compared by number. A node continues if it knows more supporters
// than strangers, so that a few foreign nodes cannot stop a cluster, and of two halves neither continues. A
// newer generation of this cluster outweighs any number of older ones, if this node believes it. Two generations are a
// split brain if the older one has a leader; otherwise the recovery has only left a node behind.
//
// A leader is stale if a majority of voters reports another leader in a later term. Neither one node's claim
// nor a leader that can prove its leadership is enough. A second leader of the same term counts only if it says
// so on a peer connection and at its HTTP address.
func Detect(in Input, now time.Time) Report {
	d := detection{Input: in, now: now}
	r := Report{
		Verdict: OK, CheckedAt: now, Claims: append([]Claim{in.Self}, in.Claims...), DuplicateIDs: in.DuplicateIDs,
	}
	if in.Self.ClusterID != "" { // without one it has nothing to lose, and Raft leads it to one
		d.foreign()
		d.generations()
		d.duplicateIDs()
		d.leaders()
	}
	d.unreachable()
	r.Findings = d.findings
	for i, f := range r.Findings {
		if f.RefuseService && in.Self.Leads {
			r.Findings[i].StepDownTerm = in.Self.Term // a leader that may serve must be elected
		}
		if severity[f.Verdict] > severity[r.Verdict] {
			r.Verdict = f.Verdict
		}
	}
	return r
}

type detection struct {
	Input
	now      time.Time
	findings []Finding
}

func (d *detection) found(v Verdict, nodes []cluster.NodeID, format string, args ...any) *Finding {
	slices.Sort(nodes)
	d.findings = append(d.findings, Finding{
		Verdict: v, Nodes: slices.Compact(nodes),
		Detail: fmt.Sprintf(format, args...),
	})
	return &d.findings[len(d.findings)-1]
}

// fresh returns the responses that are recent and satisfy want.
func (d *detection) fresh(want func(Claim) bool) (some []Claim) {
	for _, c := range d.Claims {
		if c.Error == "" && d.now.Sub(c.At) <= d.MaxAge && want(c) {
			some = append(some, c)
		}
	}
	return some
}

// own reports whether a claim is of this node's cluster and generation.
func (d *detection) own(c Claim) bool {
	return c.ClusterID == d.Self.ClusterID && c.Generation == d.Self.Generation
}

// isCurrent reports whether a claim is of this cluster, recent, and names a leader.
func (d *detection) isCurrent(c Claim) bool { return c.Term != 0 && d.own(c) && !c.At.Before(d.Since) }

// foreign finds nodes of other clusters.
func (d *detection) foreign() {
	strangers := d.fresh(func(c Claim) bool { return c.ClusterID != "" && c.ClusterID != d.Self.ClusterID })
	if len(strangers) == 0 {
		return
	}
	f := d.found(ForeignCluster, nodesOf(strangers), "%s of cluster %s among the members of cluster %s",
		describe(strangers), strings.Join(uniqueTexts(strangers, func(c Claim) string { return c.ClusterID }),
			", "), d.Self.ClusterID)
	f.RefuseService = d.outnumbered(strangers)
}

// outnumbered reports whether at least as many nodes contradict this node as agree with it.
func (d *detection) outnumbered(others []Claim) bool {
	trusted := slices.DeleteFunc(slices.Clone(others), func(c Claim) bool { return !c.trusted() })
	agree := d.fresh(func(c Claim) bool { return c.trusted() && c.Node != d.Self.Node && d.own(c) })
	return len(trusted) > 0 && len(nodesOf(trusted)) >= 1+len(nodesOf(agree)) // 1: this node
}

// generations finds nodes of this cluster that missed a recovery or had another one.
func (d *detection) generations() {
	mine := d.Self.Generation
	all := d.fresh(func(c Claim) bool {
		return c.ClusterID == d.Self.ClusterID && c.Generation.Number != 0 && c.Generation != mine
	})
	var newer, rival, older []Claim
	for _, c := range all {
		switch g := c.Generation; {
		case g.Number > mine.Number:
			newer = append(newer, c)
		case g.Number == mine.Number:
			rival = append(rival, c)
		default:
			older = append(older, c)
		}
	}
	if len(newer) > 0 {
		f := d.found(generationVerdict(d.Self), append(nodesOf(newer), d.Self.Node),
			"%s has a newer generation than this node, which has data of generation %d: the cluster was recovered without it", describe(newer), mine.Number)
		f.RefuseService = slices.ContainsFunc(newer, func(c Claim) bool { return c.trusted() && !c.Disbelieved })
	}
	if len(rival) > 0 {
		f := d.found(SplitBrain, nodesOf(rival),
			"%s is of another recovery of the same generation %d: two recoveries were done apart", describe(rival),
			mine.Number)
		f.RefuseService = d.outnumbered(rival)
	}
	d.older(older)
}

// older finds nodes that missed a recovery of this node's cluster, with and without a leader.
func (d *detection) older(claims []Claim) {
	byVerdict := map[Verdict][]Claim{}
	for _, c := range claims {
		if v := generationVerdict(c); !c.At.Before(d.Since) {
			byVerdict[v] = append(byVerdict[v], c)
		}
	}
	if led := byVerdict[SplitBrain]; len(led) > 0 {
		d.found(SplitBrain, nodesOf(led), "%s has a leader of an older generation than this node, which is of generation %d",
			describe(led), d.Self.Generation.Number)
	}
	if left := byVerdict[OldGeneration]; len(left) > 0 {
		d.found(OldGeneration, nodesOf(left),
			"%s has data of an older generation than this node, which is of generation %d, and hears no leader",
			describe(left), d.Self.Generation.Number)
	}
}

// generationVerdict returns what the claim of the older of two generations means.
func generationVerdict(older Claim) Verdict {
	if older.Leads || older.Follows {
		return SplitBrain
	}
	return OldGeneration
}

// duplicateIDs reports node IDs that two processes use.
func (d *detection) duplicateIDs() {
	for _, x := range d.DuplicateIDs {
		f := d.found(SplitBrain, []cluster.NodeID{x.Node},
			"two processes run as node %s (boot IDs %s and %s): its data directory was copied, or two hosts have its ID",
			x.Node, x.Boots[0], x.Boots[1])
		f.RefuseService = x.Node == d.Self.Node
		f.OwnIDDuplicated = f.RefuseService
	}
}

// leaders finds more than one leader.
func (d *detection) leaders() {
	leading := d.leading()
	byTerm := map[uint64][]Claim{}
	for _, c := range leading {
		byTerm[c.Term] = append(byTerm[c.Term], c)
	}
	for _, c := range leading {
		if same := byTerm[c.Term]; len(same) > 1 && same[0].Node == c.Node {
			d.duplicateLeaders(same)
		}
	}
	newest, ok := d.confirmed(leading)
	if !ok {
		return
	}
	for _, c := range leading {
		if c.Term >= newest.Term || c.Source == FromSelf && d.Proven {
			continue
		}
		f := d.found(StaleLeader, []cluster.NodeID{c.Node},
			"node %s leads in term %d, but a majority of the voters follows node %s in term %d", c.Node, c.Term,
			newest.Node, newest.Term)
		if c.Source == FromSelf {
			f.RefuseService = true
		}
	}
}

// leading returns one claim of each node of this cluster that claims to lead, the most trustworthy one.
func (d *detection) leading() []Claim {
	best := map[cluster.NodeID]Claim{}
	for _, c := range append(d.fresh(d.isCurrent), d.Self) {
		if have, ok := best[c.Node]; !ok || !have.trusted() || c.Source == FromSelf {
			best[c.Node] = c
		}
	}
	var leading []Claim
	for _, c := range best {
		if c.Leads {
			leading = append(leading, c)
		}
	}
	slices.SortFunc(leading, func(a, b Claim) int { return strings.Compare(string(a.Node), string(b.Node)) })
	return leading
}

// duplicateLeaders reports two leaders of one term. This node steps down if it is one of them, and the other
// claims leadership to its peers and at its HTTP address.
func (d *detection) duplicateLeaders(same []Claim) {
	nodes := nodesOf(same)
	f := d.found(SplitBrain, nodes, "nodes %s all lead in term %d", cluster.JoinIDs(nodes), same[0].Term)
	sure := slices.ContainsFunc(same, func(c Claim) bool {
		return c.Source == FromPeer && len(d.fresh(func(other Claim) bool {
			return other.Source == FromHTTP && other.Node == c.Node && other.Leads && other.Term == c.Term &&
				d.isCurrent(other)
		})) > 0
	})
	if sure && slices.Contains(nodes, d.Self.Node) {
		f.RefuseService = true
	}
}

// confirmed returns the leader of the highest term that a majority of voters claims to follow in that term.
func (d *detection) confirmed(leading []Claim) (newest Claim, ok bool) {
	voters := 0
	followers := map[cluster.NodeID]int{}
	terms := map[cluster.NodeID]uint64{}
	for _, c := range leading {
		terms[c.Node] = c.Term
	}
	said := append(d.fresh(func(c Claim) bool { return c.Source == FromPeer && d.isCurrent(c) }), d.Self)
	for _, s := range d.Servers {
		if s.Suffrage != cluster.Voter {
			continue
		}
		voters++
		for _, c := range said {
			if c.Node == s.ID && c.LeaderID != "" && c.Term == terms[c.LeaderID] {
				followers[c.LeaderID]++
				break
			}
		}
	}
	for _, c := range leading {
		if followers[c.Node] >= cluster.Quorum(voters) && voters > 0 && c.Term > newest.Term {
			newest, ok = c, true
		}
	}
	return newest, ok
}

// unreachable reports the servers that did not respond at all.
func (d *detection) unreachable() {
	heard := map[cluster.NodeID]bool{d.Self.Node: true}
	for _, c := range d.fresh(func(Claim) bool { return true }) {
		heard[c.Node] = true
	}
	var silent []cluster.NodeID
	for _, s := range d.Servers {
		if !heard[s.ID] {
			silent = append(silent, s.ID)
		}
	}
	if len(silent) > 0 {
		d.found(Unreachable, silent, "no answer of %s: whether it leads is not known", cluster.JoinIDs(silent))
	}
}

func nodesOf(claims []Claim) []cluster.NodeID {
	var ids []cluster.NodeID
	for _, c := range claims {
		ids = append(ids, c.Node)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// describe returns the names and addresses of the claims' nodes.
func describe(claims []Claim) string {
	return strings.Join(uniqueTexts(claims, func(c Claim) string {
		if c.Address == "" {
			return fmt.Sprintf("node %s", c.Node)
		}
		return fmt.Sprintf("node %s at %s", c.Node, c.Address)
	}), ", ")
}

// uniqueTexts returns the sorted results of of for all claims, without duplicates.
func uniqueTexts(claims []Claim, of func(Claim) string) []string {
	var all []string
	for _, c := range claims {
		all = append(all, of(c))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
