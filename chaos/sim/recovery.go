package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
)

// Recover loses a majority for good, Fault.Bits says which, and has an operator
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

// loss is what a world knows of a majority that it has lost for good. The clients of
// an era are held against what that era has answered: what only lost nodes held is
// gone, and the operator has said so.
type loss struct {
	era       uint64 // 1 from the loss on
	recovered bool
	away      []*member // held down until they come back
}

// era is 0, and 1 once a majority is lost.
func (w *World) era() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loss.era
}

// isAway says whether a member is lost and has not come back.
func (w *World) isAway(m *member) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.loss.away, m)
}

// ofLostGeneration says whether a node that runs holds data of a generation that
// another one has followed.
func (w *World) ofLostGeneration(n Node) bool {
	w.mu.Lock()
	recovered := w.loss.recovered
	w.mu.Unlock()
	if !recovered {
		return false
	}
	is := n.Status()
	return is.ClusterID != "" && is.Generation.Number <= firstNumber
}

// takesPart says of a node of a lost generation when it has taken anything from the new
// one.
func (w *World) takesPart(m *member, n Node) {
	if term := m.disk.CurrentTerm(); term >= recoveryTerm || n.View().Generation().Number > firstNumber {
		w.violated(check.Violation{Invariant: check.OneGeneration, Detail: fmt.Sprintf("%s has the data of the generation before, and is in term %d", m.id, term)})
	}
}

// loseMajority takes a majority down, one after the other, and gives who is left.
// Once the last is gone nothing that is not acknowledged yet can be.
func (w *World) loseMajority(f Fault) (left []*member) {
	r := rand.New(rand.NewPCG(w.cfg.Seed, f.Bits))
	for at, i := range r.Perm(len(w.members)) {
		m := w.members[i]
		if at > len(w.members)/2 {
			left = append(left, m)
			continue
		}
		w.mu.Lock()
		w.loss.away = append(w.loss.away, m)
		w.mu.Unlock()
		m.hold()
		m.kill(f.Bits%2 == 0)
		time.Sleep(time.Duration(r.Int64N(int64(lossSpread))) / time.Duration(len(w.members)/2))
	}
	var ids []cluster.NodeID
	for _, m := range left {
		ids = append(ids, m.id)
	}
	w.mu.Lock()
	w.loss.era++
	w.mu.Unlock()
	w.safety.Lost(ids...)
	w.events.at(w.start, "left for good: %v", ids)
	return left
}

// comeBack has lost nodes run again, with the data that they had.
func (w *World) comeBack(members ...*member) {
	for _, m := range members {
		w.mu.Lock()
		w.loss.away = slices.DeleteFunc(w.loss.away, func(other *member) bool { return other == m })
		w.mu.Unlock()
		m.release()
	}
}

// recover carries out a Recover.
func (o *operator) recover(f Fault) {
	confirm := o.w.clusterID()
	if confirm == "" || o.w.era() > 0 {
		return
	}
	left := o.w.loseMajority(f)
	time.Sleep(f.For)
	order := apiv1.Recover{Confirm: confirm, Force: true, Reason: "chaos"}
	for _, m := range left {
		order.Survivors = append(order.Survivors, string(m.id))
	}
	for end, i := time.Now().Add(recoverLimit), 0; o.reborn() == nil; i++ {
		if time.Now().After(end) {
			o.w.violated(check.Violation{Invariant: check.Convergence, Detail: fmt.Sprintf("of %v none was recovered within %v", order.Survivors, recoverLimit)})
			return
		}
		_ = o.ask(left[i%len(left)].index, http.MethodPost, apiv1.PathRecover, order, nil) // an answer that was lost is no matter: who leads says it
		time.Sleep(repairPause)
	}
	o.w.mu.Lock()
	o.w.loss.recovered = true
	first := o.w.loss.away[0]
	o.w.mu.Unlock()
	o.w.took(f.Kind)
	time.Sleep(f.Delay)
	o.w.comeBack(first) // alone: two of three that reach nobody else could elect, as no mechanism on them can help
}

// reborn is who leads a later generation than the first; nil when nobody does.
func (o *operator) reborn() *member {
	for _, m := range o.w.members {
		if _, node := m.current(); node != nil {
			if is := node.Status(); is.Generation.Number > firstNumber && is.Role == cluster.Leader {
				return m
			}
		}
	}
	return nil
}

// clusterID is what the nodes say it is; "" when none says so.
func (w *World) clusterID() (id string) {
	for _, m := range w.members {
		if _, node := m.current(); node != nil {
			id = cmp.Or(id, node.Status().ClusterID)
		}
	}
	return id
}

// reunite has the lost nodes run with their old data, beside those of the new
// generation that lead: they may elect nobody. Then each node of the old generation
// gets an empty disk and is taken in again. It says what went wrong.
func (o *operator) reunite(deadline time.Time) (why string) {
	if o.w.era() == 0 {
		return ""
	}
	for o.reborn() == nil {
		if time.Now().After(deadline) {
			return "nobody leads the new generation"
		}
		time.Sleep(repairPause)
	}
	o.w.mu.Lock()
	away := slices.Clone(o.w.loss.away)
	o.w.mu.Unlock()
	o.w.comeBack(away...)
	time.Sleep(oldDataFor)
	for _, m := range o.w.members {
		if why := o.readmit(m, deadline); why != "" {
			return why
		}
	}
	return ""
}

// readmit wipes a node of the old generation and takes it in again.
func (o *operator) readmit(m *member, deadline time.Time) (why string) {
	_, node := m.current()
	for ; node == nil; _, node = m.current() {
		if time.Now().After(deadline) {
			return fmt.Sprintf("%s does not run", m.id)
		}
		time.Sleep(repairPause)
	}
	if !o.w.ofLostGeneration(node) {
		return ""
	}
	m.hold()
	defer m.release()
	m.kill(false)
	m.disk.Wipe()
	o.w.safety.Wiped(m.id)
	for {
		err := o.ask(o.w.leading().index, http.MethodPatch, memberPath(m), apiv1.MemberPatch{Readmit: true}, nil)
		if err == nil {
			return ""
		}
		if time.Now().After(deadline) {
			return fmt.Sprintf("%s is not taken in again: %v", m.id, err)
		}
		time.Sleep(repairPause)
	}
}

// ledBeyond says of a leader that was not seen before when it is one of a generation
// that another has followed.
func (w *World) ledBeyond(id cluster.NodeID, term uint64) {
	w.mu.Lock()
	old := w.loss.recovered && term < recoveryTerm
	w.mu.Unlock()
	if old {
		w.violated(check.Violation{Invariant: check.OneGeneration, Detail: fmt.Sprintf("%s leads term %d, after another node was recovered", id, term)})
	}
}
