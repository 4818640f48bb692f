package explore

import (
	"fmt"
	"strings"
)

// describe returns the nodes that differ from before, one a line.
func (s *state) describe(before *state) string {
	var b strings.Builder
	for i := id(1); i <= nodes; i++ {
		if text := s.describeNode(i); before == nil || text != before.describeNode(i) {
			b.WriteString("\n      " + text)
		}
	}
	return b.String()
}

func (s *state) describeNode(i id) string {
	n := s.node(i)
	text := fmt.Sprintf("%s: %s of term %d", ids[i], roleNames[n.role], n.term)
	if !n.up {
		text = fmt.Sprintf("%s: down, term %d", ids[i], n.term)
	}
	if n.voteTerm == n.term && n.voteFor != 0 {
		text += ", vote for " + string(ids[n.voteFor])
	}
	text += ", log " + describeLog(n.log[:n.last])
	if n.commit > 0 {
		text += fmt.Sprintf(" committed to %d", n.commit)
	}
	if u := n.unwritten(); u.Term || u.SelfVote || u.FirstEntry > 0 {
		text += ", not all on disk"
	}
	return text
}

func describeLog(log []entry) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, e := range log {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d", e&termBits)
		switch e &^ termBits {
		case admits:
			b.WriteString(":re-admission")
		case promotes:
			b.WriteString(":promotion")
		}
	}
	b.WriteByte(']')
	return b.String()
}

// describeAction returns a step that begins in this state.
func (s *state) describeAction(a action) string {
	n, o := ids[0], ids[0]
	if a.verb != deliver && a.a <= nodes && a.b <= nodes {
		n, o = ids[a.a], ids[a.b]
	}
	switch a.verb {
	case deliver:
		return s.describeMessage(&s.bag[a.a])
	case timer:
		if a.b == 0 {
			return fmt.Sprintf("Raft's timer fires on %s, which gets no pre-vote", n)
		}
		return fmt.Sprintf("Raft's timer fires on %s, which gets the pre-vote of %s and starts an election", n, o)
	case learnTerm:
		return fmt.Sprintf("Raft's timer fires on %s, which learns the term of %s by its answer", n, o)
	case failOver:
		return fmt.Sprintf("%s finds that leader %s failed, and starts an election", n, ids[s.node(a.a).heardFrom])
	case detect:
		return fmt.Sprintf("%s finds the process of leader %s dead", n, ids[s.node(a.a).heardFrom])
	case transfer:
		return fmt.Sprintf("leader %s sends TimeoutNow to %s", n, o)
	case replicate:
		return fmt.Sprintf("leader %s sends an append to %s", n, o)
	case resend:
		return fmt.Sprintf("leader %s sends %s an entry again that it has", n, o)
	case readmit:
		return fmt.Sprintf("leader %s appends the re-admission of %s", n, o)
	case promote:
		return fmt.Sprintf("leader %s appends the promotion of %s", n, o)
	case cutLink, healLink:
		var ends []string
		for i := id(1); i <= nodes; i++ {
			if i != a.a {
				ends = append(ends, string(ids[i]))
			}
		}
		return fmt.Sprintf("the link between %s is %s", strings.Join(ends, " and "), phrases[a.verb])
	case tick:
		return phrases[a.verb]
	}
	return fmt.Sprintf("%s %s", n, phrases[a.verb])
}

var phrases = map[verb]string{
	write: "finishes its writes", crash: "crashes", restart: "starts again", wipe: "loses its disk",
	tick: "time passes", request: "starts an election at an operator's request", propose: "appends a write",
	stepDown: "hears too few voters and steps down", cutLink: "cut", healLink: "whole again",
}

func (s *state) describeMessage(m *message) string {
	from, to := ids[m.from], ids[m.to]
	switch m.kind {
	case voteRequest:
		text := fmt.Sprintf("%s gets the vote request of %s in term %d, log to %d of term %d", to, from, m.term, m.index,
			m.prevTerm)
		if m.ok {
			text += ", with the LeadershipTransfer flag"
		}
		return text
	case voteResponse:
		answer := "refusal"
		if m.ok {
			answer = "vote"
		}
		return fmt.Sprintf("%s gets the %s of %s for term %d", to, answer, from, m.index)
	case appendRequest:
		return fmt.Sprintf("%s gets the append of %s in term %d: %s after %d, committed to %d", to, from, m.term,
			describeLog(m.entries[:m.n]), m.index, m.commit)
	case appendResponse:
		answer := "refusal"
		if m.ok {
			answer = "acknowledgement"
		}
		return fmt.Sprintf("%s gets the %s of %s up to %d", to, answer, from, m.index)
	case timeoutNow:
		return fmt.Sprintf("%s gets the TimeoutNow of %s", to, from)
	}
	return ""
}
