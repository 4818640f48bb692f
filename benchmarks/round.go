package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/proc"
)

const (
	settleTime = time.Second            // a cluster is left alone after it was healed
	warmUp     = 200 * time.Millisecond // of the writer, and up to as long again: not in step with heartbeats or timers
	afterGap   = 300 * time.Millisecond // how long to go on writing: a second election counts too
)

// round makes the leader fail once under load, and measures the gap.
func (s *clusterUnderTest) round(ctx context.Context, fault fault) error {
	if err := s.waitStable(ctx); err != nil {
		return err
	}
	h, err := s.inject(ctx, fault)
	if err != nil {
		return err
	}
	gap, resumed := h.writer.gap(h.at, h.dealt.Add(inFlight))
	s.gaps = append(s.gaps, gap)
	s.late = append(s.late, h.writer.longestAfter(resumed))
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
	writer *writer
	leader *proc.Node // that was hit
	term   uint64     // in which it led
	at     time.Time
	dealt  time.Time // when the last of it had been done
}

// inject writes, hits the leader, and writes on until the gap is over.
func (s *clusterUnderTest) inject(ctx context.Context, fault fault) (h injection, err error) {
	h.writer = newWriter()
	write, done, err := s.writing(h.writer.onConnError)
	if err != nil {
		return h, err
	}
	defer done()
	h.writer.write = write
	writing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	var wrong error
	running.Go(func() { wrong = h.writer.run(writing) })
	defer func() { stop(); running.Wait(); err = errors.Join(err, wrong) }()
	if err := h.writer.ackedAfter(ctx, time.Now()); err != nil {
		return h, err
	}
	if s.ours { // as the leader knows them: another node may still read its log
		leader, err := s.cluster.Leader(ctx)
		if err != nil {
			return h, err
		}
		before, err := electionsOf(ctx, leader)
		if err != nil {
			return h, err
		}
		h.term = before.term()
	}
	if err := wait(ctx, warmUp+rand.N(warmUp)); err != nil {
		return h, err
	}
	if h.leader, err = s.cluster.Leader(ctx); err != nil {
		return h, err
	}
	h.at = time.Now()
	h.dealt = h.at
	if err := fault.inject(s.network, h.leader); err != nil {
		return h, err
	}
	if fault.network { // of several commands; the others are one signal
		h.dealt = time.Now()
	}
	if err := h.writer.ackedAfter(ctx, h.at.Add(unresponsiveTimeout)); err != nil {
		return h, err
	}
	return h, wait(ctx, afterGap)
}

// waitStable waits until the cluster is whole again and has been for a while.
func (s *clusterUnderTest) waitStable(ctx context.Context) error {
	if _, err := s.cluster.Leader(ctx); err != nil {
		return err
	}
	if s.ours {
		if err := s.waitHealthy(ctx); err != nil {
			return err
		}
	}
	return wait(ctx, time.Until(s.healedAt.Add(settleTime)))
}

// waitHealthy waits until the cluster finds all its members healthy.
func (s *clusterUnderTest) waitHealthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		leader, err := s.cluster.Leader(ctx)
		if err != nil {
			return err
		}
		if healthy, err := healthyMembers(ctx, leader); err == nil && healthy == len(s.cluster.Nodes) {
			return nil
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("the cluster does not become whole: %w", err)
		}
	}
}

// readElection reads from the cluster's own records how the round went.
func (s *clusterUnderTest) readElection(ctx context.Context, h injection) error {
	leader, err := s.cluster.Leader(ctx)
	if err != nil {
		return err
	}
	all, err := electionsOf(ctx, leader)
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
	winner := s.node(first.CandidateID)
	if winner == nil || !winner.Running() {
		return fmt.Errorf("unknown winner %s", first.CandidateID)
	}
	events, err := ownEvents(ctx, winner)
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

// checkWinner counts whether the survivor of the highest priority with the newest log
// was elected, and notes why not.
func (s *clusterUnderTest) checkWinner(e apiv1.Election, events []apiv1.Event, failed *proc.Node) {
	var best *proc.Node
	for _, n := range s.cluster.Nodes { // the first has the highest priority
		if n != failed {
			best = n
			break
		}
	}
	s.rounds++
	if e.CandidateID == best.ID {
		s.bestWon++
		s.highest++
		return
	}
	ranking := rankingOf(events, e.Term)
	winner, behind := ranking[e.CandidateID], ranking[best.ID]
	if winner.known && behind.known && behind.older(winner) {
		s.bestWon++ // priority ranks among those with the newest log
		return
	}
	s.note("%s won and not %s: term %d, %s: %s; votes %+v; ranking %v", e.CandidateID, best.ID, e.Term, e.Trigger,
		e.Reason, e.Votes, ranking)
}

func (s *clusterUnderTest) note(format string, args ...any) {
	const most = 20
	if len(s.notes) < most {
		s.notes = append(s.notes, fmt.Sprintf("round %d: ", len(s.gaps))+fmt.Sprintf(format, args...))
	}
}

func (s *clusterUnderTest) node(id string) *proc.Node {
	i := slices.IndexFunc(s.cluster.Nodes, func(n *proc.Node) bool { return n.ID == id })
	if i < 0 {
		return nil
	}
	return s.cluster.Nodes[i]
}

func (s *clusterUnderTest) writing(broke func()) (func(context.Context, int) error, func(), error) {
	var addrs []string
	for _, n := range s.cluster.Nodes {
		addrs = append(addrs, n.HTTP)
	}
	if s.viaClient {
		return throughClient(addrs)
	}
	write, done := writeAnyNode(addrs, broke)
	return write, done, nil
}
