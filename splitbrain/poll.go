package splitbrain

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"northstar/cluster"
)

// check collects the claims and evaluates them. Leadership may move between two claims, and a node of an older
// generation may have stopped, so a conflict of other nodes is checked again. A finding that makes this node step down
// takes effect immediately, unless this node has noticed the next leader while its leadership was verified.
func (w *Detector) check(ctx context.Context) Report {
	w.fetchLeaders(ctx)
	answers := w.fetchLeader(ctx, w.peers())
	since := time.Now()
	in := w.input(answers, time.Time{})
	r := Detect(in, since)
	if severity[r.Verdict] <= severity[Unreachable] {
		return r
	}
	if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.StepDownTerm != 0 }) {
		proof, cancel := context.WithTimeout(ctx, min(w.cfg.TimeoutMax, maxAsk))
		proven := w.deps.VerifyLeadership(proof) == nil
		cancel()
		after := w.input(answers, time.Time{})
		after.Proven = proven && after.Self.Term == in.Self.Term
		return Detect(after, time.Now())
	}
	poll, cancel := context.WithTimeout(ctx, w.probeTimeout())
	w.deps.Poll(poll, w.peers())
	cancel()
	older := w.probeOlder(ctx, in)
	maps.Copy(answers, w.fetchLeader(ctx, append(leading(answers), older...)))
	return Detect(w.input(answers, since), time.Now())
}

// probeOlder probes the processes of an older generation, of which nothing but a hello may be known, and returns their
// nodes. Those that have not answered in this check are not asked again.
func (w *Detector) probeOlder(ctx context.Context, in Input) (ids []cluster.NodeID) {
	var addresses []string
	w.mu.Lock()
	for _, c := range in.Claims {
		older := c.ClusterID == in.Self.ClusterID && c.Generation.Number < in.Self.Generation.Number
		if older && c.Source == FromPeer && c.Address != "" && w.hellos[c.Address] == answered && c.Node != w.cfg.Self {
			ids, addresses = append(ids, c.Node), append(addresses, c.Address)
		}
	}
	w.mu.Unlock()
	slices.Sort(addresses)
	var asking sync.WaitGroup
	for _, a := range slices.Compact(addresses) {
		asking.Go(func() { w.hello(ctx, a) })
	}
	asking.Wait()
	return ids
}

// leading returns the nodes whose HTTP address claims leadership.
func leading(answers map[cluster.NodeID]Claim) (ids []cluster.NodeID) {
	for id, c := range answers {
		if c.Leads {
			ids = append(ids, id)
		}
	}
	return ids
}

// probeTimeout returns the time limit of one request.
func (w *Detector) probeTimeout() time.Duration {
	return min(max(2*w.cfg.TimeoutMax, 200*time.Millisecond), maxAsk)
}

// peers returns the other servers.
func (w *Detector) peers() []cluster.NodeID {
	var ids []cluster.NodeID
	for _, s := range w.deps.Servers() {
		if s.ID != w.cfg.Self {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// fetchLeaders probes servers without a recent claim, processes that share an ID, the configured address of this node
// if it differs, and its own address if a peer reports its ID twice. OnHello hears of the responses.
func (w *Detector) fetchLeaders(ctx context.Context) {
	now := time.Now()
	w.mu.Lock()
	addresses := w.processes.duplicateAddresses()
	w.mu.Unlock()
	claims := w.deps.Claims()
	for _, s := range w.deps.Servers() {
		seen := claims[s.ID]
		switch {
		case s.ID == w.cfg.Self && s.Address != w.cfg.RaftAddress,
			s.ID != w.cfg.Self && (!seen.Connected || now.Sub(seen.At) > w.maxAge/2):
			addresses = append(addresses, s.Address)
		case slices.Contains(strings.Fields(seen.Claim.DuplicateIDs), string(w.cfg.Self)):
			addresses = append(addresses, w.cfg.RaftAddress)
		}
	}
	slices.Sort(addresses)
	w.probeAddresses(ctx, slices.Compact(slices.DeleteFunc(addresses, func(a string) bool { return a == "" })))
}

// probeState is the result of the last probe of an address.
type probeState int

const (
	answered          probeState = iota
	probeUnanswered              // no response
	probeInBackground            // no response, and another probe is running
)

// probeAddresses probes all addresses. The next check uses late responses of those that timed out.
func (w *Detector) probeAddresses(ctx context.Context, addresses []string) {
	w.mu.Lock()
	last := maps.Clone(w.hellos)
	maps.DeleteFunc(w.hellos, func(a string, g probeState) bool {
		return g != probeInBackground &&
			!slices.Contains(addresses, a)
	})
	for _, a := range addresses {
		if last[a] == probeUnanswered {
			w.hellos[a] = probeInBackground
		}
	}
	w.mu.Unlock()
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, a := range addresses {
		switch last[a] {
		case answered:
			asking.Go(func() { w.hello(ctx, a) })
		case probeUnanswered:
			w.background.Go(func() { w.hello(ctx, a) })
		}
	}
}

func (w *Detector) hello(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, w.probeTimeout())
	defer cancel()
	g := probeUnanswered
	if w.deps.Probe(ctx, address) {
		g = answered
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hellos[address] = g
}

// fetchLeader asks nodes at their HTTP addresses, all in parallel.
func (w *Detector) fetchLeader(ctx context.Context, ids []cluster.NodeID) map[cluster.NodeID]Claim {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	ctx, cancel := context.WithTimeout(ctx, w.probeTimeout())
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	answers := map[cluster.NodeID]Claim{}
	for _, id := range ids {
		asking.Go(func() {
			a, address, err := w.deps.FetchLeader(ctx, id)
			c := claimOf(id, address, a, err)
			mu.Lock()
			defer mu.Unlock()
			answers[id] = c
		})
	}
	asking.Wait()
	return answers
}

// claimOf converts the response of an HTTP address to a claim.
func claimOf(id cluster.NodeID, address string, a Answer, err error) Claim {
	c := Claim{Node: id, Source: FromHTTP, Address: address, At: time.Now()}
	switch {
	case err != nil:
		c.Error = err.Error()
	case a.By != id:
		c.Error = fmt.Sprintf("node %s answers at this address", a.By)
	default:
		c.ClusterID, c.Generation, c.Term, c.LeaderID = a.ClusterID, a.Generation, a.Term, a.LeaderID
		c.Leads = a.LeaderID == id
	}
	return c
}

// input returns what is known now.
func (w *Detector) input(answers map[cluster.NodeID]Claim, since time.Time) Input {
	self, now := w.deps.Self(), time.Now()
	in := Input{
		Self: w.fromPeerClaim(self, w.cfg.RaftAddress, now), Servers: w.deps.Servers(), MaxAge: w.maxAge,
		Since: since,
	}
	in.Self.Source = FromSelf
	claims := w.deps.Claims()
	for id, s := range claims {
		if s.Connected {
			sv, _ := cluster.FindServer(in.Servers, id)
			in.Claims = append(in.Claims, w.fromPeerClaim(s.Claim, sv.Address, s.At))
		}
	}
	for _, a := range answers {
		in.Claims = append(in.Claims, a)
	}
	w.mu.Lock()
	hellos := w.processes.claims(now, w.maxAge)
	in.DuplicateIDs = w.processes.duplicateIDs(self.ClusterID, now, w.maxAge)
	w.mu.Unlock()
	for _, c := range hellos {
		if s := claims[c.Node]; !s.Connected || s.Claim.BootID != c.BootID {
			in.Claims = append(in.Claims, c) // only a hello is known
		}
	}
	for i := range in.Claims {
		in.Claims[i].Disbelieved = !w.deps.Believes(in.Claims[i].Node)
	}
	slices.SortStableFunc(in.Claims, func(a, b Claim) int {
		return strings.Compare(string(a.Node)+string(a.Source)+a.BootID, string(b.Node)+string(b.Source)+b.BootID)
	})
	return in
}

// fromPeerClaim converts a claim received on a peer connection.
func (w *Detector) fromPeerClaim(c cluster.Claim, address string, at time.Time) Claim {
	return Claim{
		Node: c.NodeID, Source: FromPeer, Address: address, At: at, BootID: c.BootID,
		ClusterID: c.ClusterID, Generation: c.Generation, Term: c.Term, Leads: c.Role == cluster.Leader,
		LeaderID: c.LeaderID,
		Follows: c.LeaderID != "" && c.Role != cluster.Leader && !c.LeaderProcessDead && c.LeaderContactAge >= 0 &&
			c.LeaderContactAge < w.cfg.TimeoutMax,
	}
}
