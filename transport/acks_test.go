package transport

import (
	"testing"
	"time"

	"northstar/cluster"
)

func TestAcksCountVotersSendTimesAndTerms(t *testing.T) {
	t.Parallel()
	const promised = time.Second
	base := time.Now()
	at := func(ms int) time.Time { return base.Add(time.Duration(ms) * time.Millisecond) }
	five := []cluster.NodeID{"n1", "n2", "n3", "n4", "n5"}
	voters := five[:3]
	type ack struct {
		id   cluster.NodeID
		term uint64
		sent int
		less bool // its process promises less than a lease needs
	}
	for name, c := range map[string]struct {
		acks   []ack
		voters []cluster.NodeID
		since  int
		want   bool
		quorum int // ms, -1: none
	}{
		"none":                  {nil, voters, 10, false, -1},
		"one follower":          {[]ack{{"n2", 5, 11, false}}, voters, 10, true, 11},
		"sent before the read":  {[]ack{{"n2", 5, 9, false}, {"n3", 5, 8, false}}, voters, 10, false, 9},
		"sent at the read":      {[]ack{{"n2", 5, 10, false}}, voters, 10, false, 10},
		"older term":            {[]ack{{"n2", 4, 20, false}, {"n3", 4, 20, false}}, voters, 10, false, -1},
		"newer term":            {[]ack{{"n2", 6, 20, false}, {"n3", 6, 20, false}}, voters, 10, false, -1},
		"a non-voter":           {[]ack{{"n4", 5, 20, false}, {"n5", 5, 20, false}}, voters, 10, false, -1},
		"late answer of a term": {[]ack{{"n2", 5, 20, false}, {"n2", 4, 30, false}}, voters, 10, true, 20},
		"answers out of order":  {[]ack{{"n2", 5, 20, false}, {"n2", 5, 12, false}}, voters, 15, true, 20},
		"five, two followers":   {[]ack{{"n2", 5, 20, false}, {"n3", 5, 30, false}}, five, 15, true, 20},
		"five, one follower":    {[]ack{{"n2", 5, 20, false}}, five, 15, false, -1},
		"alone":                 {nil, voters[:1], 10, true, 1000},
		"self is no voter":      {[]ack{{"n2", 5, 20, false}}, voters[1:], 10, false, -1},
		"promises less":         {[]ack{{"n2", 5, 11, true}}, voters, 10, true, -1},
		"one promises less":     {[]ack{{"n2", 5, 20, true}, {"n3", 5, 12, false}}, voters, 10, true, 12},
		"a later process":       {[]ack{{"n2", 5, 11, false}, {"n2", 5, 20, true}}, voters, 10, true, -1},
		"no voters":             {nil, nil, 10, false, -1},
	} {
		a := newAcks()
		for _, k := range c.acks {
			s := sentAppend{to: k.id, incarnation: "i", term: k.term, at: at(k.sent), leasePromise: promised}
			if k.less {
				s.leasePromise--
			}
			a.ack(s, at(k.sent+1))
		}
		if got := a.QuorumSince(5, "n1", c.voters, at(c.since)); got != c.want {
			t.Errorf("%s: quorum since %d is %v", name, c.since, got)
		}
		want := time.Time{}
		if c.quorum >= 0 {
			want = at(c.quorum)
		}
		if got := a.leaseTime(5, "n1", c.voters, promised, at(1000)); !got.Equal(want) {
			t.Errorf("%s: lease time %v, want %v", name, got.Sub(base), want.Sub(base))
		}
	}
}

func TestAcksMatchAndContact(t *testing.T) {
	t.Parallel()
	a, now := newAcks(), time.Now()
	a.ack(sentAppend{to: "n2", incarnation: "i", term: 5, match: 70, at: now}, now)
	a.ack(sentAppend{to: "n2", incarnation: "i", term: 5, at: now}, now) // a heartbeat
	if p := a.Peer("n2"); p.MatchIndex != 70 {
		t.Errorf("a heartbeat lowered it: %+v", p)
	}
	later := now.Add(time.Second)
	a.contact("n2", later)
	if p := a.Peer("n2"); p.LastContact != later || !p.LastSendAcked.Equal(now) {
		t.Errorf("%+v", p)
	}
	// a new term: what it held may have been cut off
	a.ack(sentAppend{to: "n2", incarnation: "i", term: 6, match: 3, at: later}, later)
	if p := a.Peer("n2"); p.MatchIndex != 3 || p.Term != 6 {
		t.Errorf("%+v", p)
	}
	// what another data directory held is gone
	a.ack(sentAppend{to: "n2", incarnation: "wiped", term: 6, at: later}, later)
	if p := a.Peer("n2"); p.MatchIndex != 0 || p.Term != 6 || p.Incarnation != "wiped" {
		t.Errorf("%+v", p)
	}
}

func TestAcksWakeTheirWaiters(t *testing.T) {
	t.Parallel()
	a := newAcks()
	ch := a.Changed()
	if a.Changed() != ch {
		t.Error("waiters do not share a channel")
	}
	select {
	case <-ch:
		t.Error("woken by nothing")
	default:
	}
	a.ack(sentAppend{to: "n2", incarnation: "i", term: 5, at: time.Now()}, time.Now())
	select {
	case <-ch:
	default:
		t.Error("not woken")
	}
}

// Acks count by send time, not by the answer's time. A refusal counts only as contact.
func TestAppendEntriesIsStamped(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		n2.bindOnly()
		success, term := true, uint64(5)
		n2.serve(answerAppend(&success, &term, 20*time.Millisecond))
		start := time.Now()
		if _, err := n1.append(n2, nil); err != nil {
			t.Fatal(err)
		}
		a := n1.tr.Acks().Peer("n2")
		if a.LastSendAcked.Before(start) || a.LastContact.Sub(a.LastSendAcked) < 20*time.Millisecond ||
			a.MatchIndex != 11 || a.Term != 5 {
			t.Errorf("%+v after %v", a, start)
		}
		for _, refuse := range []func(){func() { success = false }, func() { success, term = true, 6 }} {
			refuse()
			if _, err := n1.append(n2, nil); err != nil {
				t.Fatal(err)
			}
			b := n1.tr.Acks().Peer("n2")
			if b.LastSendAcked != a.LastSendAcked || !b.LastContact.After(a.LastContact) {
				t.Errorf("after a refusal: %+v", b)
			}
		}
	})
}
