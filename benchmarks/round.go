package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

const (
	settleTime = time.Second            // a cluster is left alone after it was healed
	warmUp     = 200 * time.Millisecond // of the writer, and up to as long again: not in step with heartbeats or timers
	afterGap   = 300 * time.Millisecond // how long to go on writing: a second election counts too
	leaderAsks = 2000                   // of GET /leader, at all nodes in turn
)

// round takes leadership away once under load, and measures the gap.
func (s *subject) round(ctx context.Context, fault fault) error {
	if err := s.waitStable(ctx); err != nil {
		return err
	}
	h, err := inject(ctx, fault, []*subject{s})
	if err != nil {
		return err
	}
	gap, resumed := h.writer.gap(h.at, h.dealt.Add(inFlight))
	s.gaps = append(s.gaps, gap)
	s.late = append(s.late, h.writer.longestAfter(resumed, h.ended))
	if s.fast && fault.long > 0 && gap > fault.long {
		s.note("a gap of %s ms, hit at %s", ms(gap), h.at.UTC().Format("15:04:05.000"))
	}
	if fault.planned {
		return nil
	}
	if d, ok := h.writer.firstError(h.at); ok {
		s.cut = append(s.cut, d)
	}
	if err := fault.heal(s, h.leader); err != nil {
		return err
	}
	*s.healedAt = time.Now()
	if !s.ours {
		return nil
	}
	return s.readElection(ctx, h)
}

// injection is one fault that was made.
type injection struct {
	writer  *writer    // of the first subject
	writers []*writer  // one of each subject
	leader  *proc.Node // that was hit
	term    uint64     // in which it led
	at      time.Time
	dealt   time.Time // when the last of it had been done
	ended   time.Time // when the writers were told to stop
}

// inject hits the leader of the subjects' cluster while each subject writes, and writes on until the gaps are over.
func inject(ctx context.Context, fault fault, group []*subject) (h injection, err error) {
	s := group[0]
	h.writers = make([]*writer, len(group))
	writing, stop := context.WithCancel(ctx)
	var running errgroup.Group
	defer func() { h.ended = time.Now(); stop(); err = errors.Join(err, running.Wait()) }()
	for i, s := range group {
		w := &writer{}
		h.writers[i] = w
		done, err := s.openWriter(ctx, w)
		if err != nil {
			return h, err
		}
		running.Go(func() error { defer done(); return w.run(writing) })
	}
	h.writer = h.writers[0]
	if err := h.ackedAfter(ctx, time.Now()); err != nil {
		return h, err
	}
	if s.ours { // as the leader knows them: another node may still read its log
		before, err := s.elections(ctx)
		if err != nil {
			return h, err
		}
		h.term = before.term()
	}
	if err := wait(ctx, warmUp+rand.N(warmUp)); err != nil {
		return h, err
	}
	if h.leader, err = s.leader(ctx); err != nil {
		return h, err
	}
	h.at = time.Now()
	h.dealt = h.at
	if err := fault.inject(ctx, s, h.leader); err != nil {
		return h, err
	}
	if fault.network || fault.planned || fault.lasting { // of several messages; the others are one signal
		h.dealt = time.Now()
	}
	if fault.late {
		h.at = h.dealt
	}
	if err := h.ackedAfter(ctx, h.at.Add(unresponsiveTimeout)); err != nil {
		return h, err
	}
	return h, wait(ctx, afterGap)
}

// ackedAfter waits until each writer has an acknowledgement later than at. They all wait at the same time.
func (h *injection) ackedAfter(ctx context.Context, at time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var errs []error
	for _, w := range h.writers {
		errs = append(errs, w.ackedAfter(ctx, at))
	}
	return errors.Join(errs...)
}

// leader waits until every live node of the subject names the same leader, and returns it.
func (s *subject) leader(ctx context.Context) (*proc.Node, error) {
	if s.findLeader != nil {
		return s.findLeader(ctx, s.cluster)
	}
	return s.cluster.Leader(ctx)
}

// openWriter prepares the writer of one round.
func (s *subject) openWriter(ctx context.Context, w *writer) (done func(), err error) {
	if s.open == nil {
		return w.writeTo(addresses(s.cluster), s.viaClient)
	}
	leader, err := s.leader(ctx)
	if err != nil {
		return nil, err
	}
	w.write, done, err = s.open(s, leader)
	return done, err
}

// waitStable waits until the cluster is whole again, and has been left alone for a while.
func (s *subject) waitStable(ctx context.Context) error {
	if err := s.waitWhole(ctx); err != nil {
		return err
	}
	return wait(ctx, time.Until(s.healedAt.Add(settleTime)))
}

// waitWhole waits until the cluster has a leader, and that finds all members healthy.
func (s *subject) waitWhole(ctx context.Context) error {
	for end := time.Now().Add(20 * time.Second); ; {
		leader, err := s.leader(ctx)
		if err != nil {
			return err
		}
		if !s.ours {
			return nil
		}
		if healthy, err := healthyMembers(ctx, leader); err == nil && healthy == len(s.cluster.Nodes) {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("the cluster does not become whole")
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// elections asks the leader for the newest elections.
func (s *subject) elections(ctx context.Context) (elections, error) {
	leader, err := s.cluster.Leader(ctx)
	if err != nil {
		return nil, err
	}
	return electionsOf(ctx, leader)
}

// readElection reads from the cluster's own records how the round went.
func (s *subject) readElection(ctx context.Context, h injection) error {
	all, err := s.elections(ctx)
	if err != nil {
		return err
	}
	fresh := all.since(h.term)
	if len(fresh) == 0 {
		return errors.New("no record of the election")
	}
	if len(fresh) > 1 {
		s.more++
		for _, e := range fresh {
			s.note("one of %d elections: term %d, %s, %s: %s", len(fresh), e.Term, e.CandidateID, e.Trigger, e.Reason)
		}
	}
	if !s.fast {
		return nil
	}
	first := fresh[len(fresh)-1]
	i := slices.IndexFunc(s.cluster.Nodes, func(n *proc.Node) bool { return n.ID == first.CandidateID && n.Running() })
	if i < 0 {
		return fmt.Errorf("unknown winner %s", first.CandidateID)
	}
	events, err := ownEvents(ctx, s.cluster.Nodes[i])
	if err != nil {
		return err
	}
	if l, ok := phasesOf(events, first.Term, h.at, h.writer); ok {
		s.phaseTimes = append(s.phaseTimes, l)
	} else {
		s.note("a timer elected %s in term %d, hit at %s: %s; votes %+v", first.CandidateID, first.Term,
			h.at.UTC().Format("15:04:05.000"), first.Trigger, first.Votes)
	}
	s.checkWinner(first, events, h.leader)
	return nil
}

// checkWinner counts whether the survivor of the highest priority with the newest log was elected, and notes why not.
func (s *subject) checkWinner(e apiv1.Election, events []apiv1.Event, failed *proc.Node) {
	best := s.cluster.Nodes[0] // the first has the highest priority
	if best == failed {
		best = s.cluster.Nodes[1]
	}
	s.rounds++
	if e.CandidateID == best.ID {
		s.bestWon++
		s.highest++
		return
	}
	ranking := rankingOf(events, e.Term)
	winner, winnerKnown := ranking[e.CandidateID]
	if behind, known := ranking[best.ID]; known && winnerKnown && behind.older(winner) {
		s.bestWon++ // priority ranks among those with the newest log
		return
	}
	s.note("%s won and not %s: term %d, %s: %s; votes %+v; ranking %v", e.CandidateID, best.ID, e.Term, e.Trigger,
		e.Reason, e.Votes, ranking)
}

func (s *subject) note(format string, args ...any) {
	const most = 100
	if len(s.notes) < most {
		s.notes = append(s.notes, fmt.Sprintf("round %d: ", len(s.gaps))+fmt.Sprintf(format, args...))
	}
}

// askForLeader measures GET /leader at all nodes in turn.
func askForLeader(ctx context.Context, c *proc.Cluster) (took []time.Duration, err error) {
	for _, n := range c.Nodes {
		conn, err := load.Dial(ctx, n.HTTP)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		for range leaderAsks / len(c.Nodes) {
			at := time.Now()
			if status, err := conn.Do("GET", apiv1.PathLeader, nil); err != nil || status != 200 {
				return nil, fmt.Errorf("GET /leader at %s: %d %w", n.ID, status, err)
			}
			took = append(took, time.Since(at))
		}
	}
	return took, nil
}
