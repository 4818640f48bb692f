package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
)

// Recover loses a majority permanently, Fault.Bits says which, and has an operator
// recover one of those that are left, Fault.For later. A node that was lost comes back
// with its old data Fault.Delay after that, the others after the healing.
const Recover FaultKind = "quorum-loss"

const (
	lossSpread   = 300 * time.Millisecond // between the first and the last of those that are lost
	recoverLimit = time.Minute            // for the operator to have recovered, through all faults
	oldDataFor   = 2 * time.Second        // that all lost nodes run with their old data
	recoveryTerm = 1_000_000              // by so much a recovery raises the term
	firstNumber  = 1                      // of a generation
)

// quorumLoss is what a run knows of a majority that it has lost permanently. The clients of an era are held against
// what that era has answered: what only lost nodes held is gone, and the operator has said so.
type quorumLoss struct {
	epoch     atomic.Uint64 // 1 from the loss on
	recovered atomic.Bool
	lost      []*member // held down until they come back
}

// isLost reports whether a member is lost and has not come back.
func (sim *Simulation) isLost(m *member) bool {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	return slices.Contains(sim.loss.lost, m)
}

// hasOldGeneration reports whether a node that runs holds data of a generation that another one has followed.
func (sim *Simulation) hasOldGeneration(n Node) bool {
	if !sim.loss.recovered.Load() {
		return false
	}
	is := n.Status()
	return is.ClusterID != "" && is.Generation.Number <= firstNumber
}

// checkOldGenerationIdle reports of a node of a lost generation when it has taken anything from the new one.
func (sim *Simulation) checkOldGenerationIdle(m *member, n Node) {
	if term := m.disk.CurrentTerm(); term >= recoveryTerm || n.View().Generation().Number > firstNumber {
		sim.violatedf(check.OldGenerationExcluded, "%s has the data of the generation before, and is in term %d", m.id,
			term)
	}
}

// loseMajority takes a majority down, one after the other, and returns who is left.
// Once the last is gone nothing that is not acknowledged yet can be.
func (sim *Simulation) loseMajority(f Fault) (left []*member) {
	r := rand.New(rand.NewPCG(sim.cfg.Seed, f.Bits))
	for at, i := range r.Perm(len(sim.members)) {
		m := sim.members[i]
		if at > len(sim.members)/2 {
			left = append(left, m)
			continue
		}
		sim.mu.Lock()
		sim.loss.lost = append(sim.loss.lost, m)
		sim.mu.Unlock()
		m.keepDown()
		m.kill(f.Bits%2 == 0)
		time.Sleep(time.Duration(r.Int64N(int64(lossSpread))) / time.Duration(len(sim.members)/2))
	}
	ids := idsOf(left)
	sim.loss.epoch.Add(1)
	sim.safety.OnQuorumLost(ids...)
	sim.events.at(sim.start, "left permanently: %v", ids)
	return left
}

// restartLostNodes has lost nodes run again, with the data that they had.
func (sim *Simulation) restartLostNodes(members ...*member) {
	for _, m := range members {
		sim.mu.Lock()
		sim.loss.lost = slices.DeleteFunc(sim.loss.lost, func(other *member) bool { return other == m })
		sim.mu.Unlock()
		m.release()
	}
}

// recover carries out a Recover.
func (o *operator) recover(f Fault) {
	confirm := o.sim.clusterID()
	if confirm == "" || o.sim.loss.epoch.Load() > 0 {
		return
	}
	left := o.sim.loseMajority(f)
	time.Sleep(f.For)
	request := apiv1.Recover{Confirm: confirm, Force: true, Reason: "chaos"}
	for _, m := range left {
		request.Survivors = append(request.Survivors, string(m.id))
	}
	for end, i := time.Now().Add(recoverLimit), 0; o.recoveredLeader() == nil; i++ {
		if time.Now().After(end) {
			o.sim.violatedf(check.Convergence, "of %v none was recovered within %v", request.Survivors, recoverLimit)
			return
		}
		// a lost answer does not matter: the leader's status shows the recovery
		_ = o.ask(left[i%len(left)].index, http.MethodPost, apiv1.PathRecover, request, nil)
		time.Sleep(repairPause)
	}
	o.sim.loss.recovered.Store(true)
	o.sim.mu.Lock()
	first := o.sim.loss.lost[0]
	o.sim.mu.Unlock()
	o.sim.countEffective(f.Kind)
	time.Sleep(f.Delay)
	// one alone: two lost nodes of three could elect a leader, and no mechanism on them prevents it
	o.sim.restartLostNodes(first)
}

// recoveredLeader returns the leader of a later generation than the first, or nil.
func (o *operator) recoveredLeader() *member {
	for _, m := range o.sim.members {
		if _, node := m.current(); node != nil {
			if is := node.Status(); is.Generation.Number > firstNumber && is.Role == cluster.Leader {
				return m
			}
		}
	}
	return nil
}

// clusterID is what the nodes say it is; "" when none says so.
func (sim *Simulation) clusterID() (id string) {
	for _, m := range sim.members {
		if _, node := m.current(); node != nil {
			id = cmp.Or(id, node.Status().ClusterID)
		}
	}
	return id
}

// rejoinOldNodes runs the lost nodes with their old data while the new generation has a
// leader: they must not elect another one. Then each node of the old generation gets an
// empty disk and is readmitted. It returns what went wrong, or "".
func (o *operator) rejoinOldNodes(deadline time.Time) (why string) {
	if o.sim.loss.epoch.Load() == 0 {
		return ""
	}
	for ; o.recoveredLeader() == nil; time.Sleep(repairPause) {
		if time.Now().After(deadline) {
			return "no node leads the new generation"
		}
	}
	o.sim.mu.Lock()
	away := slices.Clone(o.sim.loss.lost)
	o.sim.mu.Unlock()
	o.sim.restartLostNodes(away...)
	time.Sleep(oldDataFor)
	for _, m := range o.sim.members {
		if why := o.readmit(m, deadline); why != "" {
			return why
		}
	}
	return ""
}

// readmit wipes a node of the old generation and readmits it.
func (o *operator) readmit(m *member, deadline time.Time) (why string) {
	_, node := m.current()
	for ; node == nil; _, node = m.current() {
		if time.Now().After(deadline) {
			return fmt.Sprintf("%s does not run", m.id)
		}
		time.Sleep(repairPause)
	}
	if !o.sim.hasOldGeneration(node) {
		return ""
	}
	m.keepDown()
	defer m.release()
	m.kill(false)
	m.disk.Wipe()
	o.sim.safety.Wiped(m.id)
	for ; ; time.Sleep(repairPause) {
		err := o.ask(o.sim.leading().index, http.MethodPatch, memberPath(m), apiv1.MemberPatch{Readmit: true}, nil)
		if err == nil {
			return ""
		}
		if time.Now().After(deadline) {
			return fmt.Sprintf("%s is not re-admitted: %v", m.id, err)
		}
	}
}

// checkOldGenerationLeader reports of a leader that was not seen before when it is one of a generation
// that another has followed.
func (sim *Simulation) checkOldGenerationLeader(id cluster.NodeID, term uint64) {
	if sim.loss.recovered.Load() && term < recoveryTerm {
		sim.violatedf(check.OldGenerationExcluded, "%s leads term %d, after another node was recovered", id, term)
	}
}
