package explore

// broken is a property that a step broke.
type broken uint8

const (
	intact broken = iota
	twoLeaders
	twoVotes
	committedLost
	leaseOverlap
	noLeader
)

// properties are what must hold in each state that is found.
var properties = [...]string{
	intact:        "",
	twoLeaders:    "one leader per term",
	twoVotes:      "no vote is given twice",
	committedLost: "no committed entry is lost",
	leaseOverlap:  "no lease while another leader serves",
	noLeader:      "a majority that can talk gets a leader",
}

// Properties returns the names of all properties.
func Properties() []string { return properties[1:] }

func (g *ghost) violate(b broken) {
	if g.broken == intact {
		g.broken = b
	}
}

// left records that a response has left its node.
func (g *ghost) left(m *message) {
	if m.kind == voteResponse && m.ok {
		g.vote(m.from, m.to, m.index)
	}
}

// vote records that a vote counts for others, or for the node itself.
func (g *ghost) vote(by, to id, term uint8) {
	if term > maxTerm {
		return
	}
	v := &g.votes[by-1][term]
	if *v != 0 && *v != to {
		g.violate(twoVotes)
	}
	*v = to
}

// elected records that a node leads its term.
func (g *ghost) elected(of id, n *node) {
	if n.term > maxTerm {
		return
	}
	if l := &g.leaders[n.term]; *l != 0 && *l != of {
		g.violate(twoLeaders)
	} else {
		*l = of
	}
	g.vote(of, of, n.term)
	for i := range g.length {
		if g.in[i] < n.term && n.log[i] != g.committed[i] {
			g.violate(committedLost)
		}
	}
}

// commit records that a node in term takes an entry for committed.
func (g *ghost) commit(index, term uint8, e entry) {
	switch {
	case index <= g.length && g.committed[index-1] != e:
		g.violate(committedLost)
	case index > g.length:
		g.committed[index-1], g.in[index-1], g.length = e, term, index
	}
}

// check returns the property that the state breaks.
func (m *Model) check(s *state) broken {
	if s.ghost.broken != intact || !m.Lease {
		return s.ghost.broken
	}
	for i := id(1); i <= nodes; i++ {
		if (view{m, s, i}).lease() <= 0 {
			continue
		}
		for j := id(1); j <= nodes; j++ {
			if n := s.node(j); n.up && n.role == leader && n.term > s.node(i).term && n.serves() {
				return leaseOverlap
			}
		}
	}
	return intact
}
