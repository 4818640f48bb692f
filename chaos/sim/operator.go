package sim

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/chaos/traffic"
	"northstar/cluster"
)

// What an operator does at a bad moment. Each call goes to any node over HTTP.
const (
	HandOver  FaultKind = "admin-transfer"           // a planned transfer to Fault.B
	Failover  FaultKind = "admin-failover"           // to Fault.B
	Emergency FaultKind = "admin-emergency-failover" // the same, by force
	PauseAuto FaultKind = "admin-pause-failover"     // for Fault.For: who then loses its leader has none
	Demote    FaultKind = "admin-demote"             // Fault.A to a non-voter, until it ends
	Remove    FaultKind = "admin-remove-readd"       // Fault.A from the cluster; wiped and added again at the end
	Drain     FaultKind = "admin-drain"              // Fault.A, until it ends
	Prefer    FaultKind = "admin-set-priority"       // Fault.A gets another priority until the run ends
)

// AdminFaults is DefaultFaults with the calls of an operator.
func AdminFaults() FaultWeights {
	return DefaultFaults().Add(FaultWeights{
		HandOver: 10, Failover: 8, Emergency: 8, PauseAuto: 4, Demote: 6, Remove: 4,
		Drain: 6, Prefer: 4,
	})
}

const (
	operatorLimit = 3 * time.Second // for one call
	repairPause   = 100 * time.Millisecond
	voter         = "voter"
	nonVoter      = "nonvoter"
)

// operator makes these calls. Its connections to the nodes are never cut.
type operator struct {
	sim   *Simulation
	http  *traffic.Machine
	tasks sync.WaitGroup

	removing atomic.Bool // one member at a time is removed and added again

	mu     sync.Mutex
	closed bool // nothing new is begun
}

// operate starts an operator's fault.
func (o *operator) operate(f Fault) (undo func()) {
	a, b := o.sim.members[f.A], o.sim.members[f.B]
	switch f.Kind {
	case HandOver:
		o.move(f, apiv1.PathTransfer, apiv1.Transfer{TargetLeaderID: string(b.id), Reason: "chaos"})
	case Failover:
		o.move(f, apiv1.PathFailover, apiv1.Failover{TargetLeaderID: string(b.id), Reason: "chaos"})
	case Emergency:
		o.move(f, apiv1.PathEmergency, apiv1.Emergency{TargetLeaderID: string(b.id), Force: true, Reason: "chaos"})
	case PauseAuto:
		enabled, ttl := false, max(1, f.For.Milliseconds())
		o.later(func() {
			set := apiv1.AutoFailover{Enabled: &enabled, TTLMS: &ttl}
			o.countEffective(f, o.ask(f.A, http.MethodPost, apiv1.PathAuto, set, nil))
		})
	case Demote:
		o.later(func() { o.countEffective(f, o.suffrage(f.A, nonVoter)) })
		return func() { o.later(func() { _ = o.suffrage(f.A, voter) }) }
	case Drain:
		o.later(func() { o.countEffective(f, o.drain(a, "drain")) })
		return func() { o.later(func() { _ = o.drain(a, "undrain") }) }
	case Prefer:
		priority := 1 + int(f.Bits%255)
		o.later(func() {
			o.countEffective(f, o.ask(f.B, http.MethodPatch, memberPath(a), apiv1.MemberPatch{Priority: &priority},
				nil))
		})
	case Remove:
		o.later(func() { o.remove(f) })
	case Recover:
		o.later(func() { o.recover(f) })
	}
	return nil
}

// countEffective counts an operator's fault whose call reached a node, with any answer.
func (o *operator) countEffective(f Fault, err error) {
	if e, ok := errors.AsType[*cluster.Error](err); ok && e.Status == 0 && e.Code == cluster.CodeNoLeader {
		return // not sent
	}
	o.sim.countEffective(f.Kind)
}

// later does something beside the faults that follow.
func (o *operator) later(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.tasks.Go(f)
	}
}

// close waits for what is under way, and begins nothing more.
func (o *operator) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.tasks.Wait()
}

func memberPath(m *member) string { return apiv1.PathMembers + "/" + string(m.id) }

// ask makes one call at a member.
func (o *operator) ask(at int, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(o.sim.ctx, operatorLimit)
	defer cancel()
	m := o.sim.members[at]
	_, _, err := o.http.Do(ctx, traffic.Node{ID: string(m.id), HTTP: httpAddress(m.id)},
		traffic.Request{Method: method, Path: path, In: in, Out: out})
	if method != http.MethodGet {
		o.sim.events.at(o.sim.start, "operator at %s: %s %s: %v", m.id, method, path, err)
	}
	return err
}

func (o *operator) suffrage(of int, s string) error {
	return o.ask(o.sim.leading().index, http.MethodPatch, memberPath(o.sim.members[of]),
		apiv1.MemberPatch{Suffrage: &s}, nil)
}

func (o *operator) drain(m *member, what string) error {
	return o.ask(o.sim.leading().index, http.MethodPost, "/admin/nodes/"+string(m.id)+"/"+what, apiv1.Drain{}, nil)
}

// move asks for leadership to be moved to Fault.B. When the answer is that it was, that node has led since.
func (o *operator) move(f Fault, path string, in any) {
	target := o.sim.members[f.B].id
	o.later(func() {
		arrived := o.sim.safety.Transfer(target)
		leads := o.sim.leading().id == target
		var moved apiv1.TransferResult
		err := o.ask(f.A, http.MethodPost, path, in, &moved)
		if o.countEffective(f, err); err != nil || leads {
			return
		}
		if !arrived() {
			o.sim.violated(check.Violationf(check.TransferReachesTarget,
				"%s to %s, asked at %s, was answered with success (new leader %q, term %d), and %s has not led since",
				f.Kind, target, o.sim.members[f.A].id, moved.NewLeaderID, moved.Term, target))
		}
	})
}

// remove takes a member out, and brings it back with an empty disk at the end.
func (o *operator) remove(f Fault) {
	m := o.sim.members[f.A]
	if !o.removing.CompareAndSwap(false, true) {
		return
	}
	defer o.removing.Store(false)
	err := o.ask(o.sim.leading().index, http.MethodDelete, memberPath(m), nil, nil)
	if o.countEffective(f, err); err != nil {
		return // it may have happened: repair finds that out
	}
	time.Sleep(f.For)
	m.restartEmpty()
	_ = o.add(m) // repair does it otherwise
}

func (o *operator) add(m *member) error {
	return o.ask(o.sim.leading().index, http.MethodPost, apiv1.PathMembers,
		apiv1.MemberAdd{ID: string(m.id), RaftAddress: raftAddress(m.id), HTTPAddress: httpAddress(m.id)}, nil)
}

// repair restores the cluster after the last fault: failover is automatic, every member is a voter and no member
// drains. It starts no election: when all members run, one of them leads. It returns what is still missing, or "".
func (o *operator) repair(deadline time.Time) (why string) {
	if why = o.rejoinOldNodes(deadline); why != "" {
		return why
	}
	for ; time.Now().Before(deadline); time.Sleep(repairPause) {
		last := why
		if why = o.repairOnce(); why == "" {
			return ""
		}
		if why != last {
			o.sim.events.at(o.sim.start, "operator finds: %s", why)
		}
	}
	return why
}

func (o *operator) repairOnce() string {
	at := o.sim.leading().index // a node that has just started may know nothing yet
	var auto apiv1.AutoFailoverState
	if err := o.ask(at, http.MethodGet, apiv1.PathAuto, nil, &auto); err != nil {
		return fmt.Sprintf("is failover automatic? %v", err)
	}
	if !auto.Enabled {
		enabled := true
		if err := o.ask(at, http.MethodPost, apiv1.PathAuto, apiv1.AutoFailover{Enabled: &enabled}, nil); err != nil {
			return fmt.Sprintf("failover is paused: %v", err)
		}
	}
	var now apiv1.Cluster
	if err := o.ask(at, http.MethodGet, apiv1.PathCluster, nil, &now); err != nil {
		return fmt.Sprintf("who is a member? %v", err)
	}
	if now.LeaderID == "" {
		return "no node leads"
	}
	for _, m := range o.sim.members {
		if err := o.repairMember(m, now); err != nil {
			return fmt.Sprintf("member %s: %v", m.id, err)
		}
	}
	return ""
}

// repairMember makes one member what it was. The error says that it is not yet.
func (o *operator) repairMember(m *member, now apiv1.Cluster) error {
	i := slices.IndexFunc(now.Members, func(c apiv1.Member) bool { return c.ID == string(m.id) })
	if i < 0 {
		return o.bringBack(m)
	}
	switch is := now.Members[i]; {
	case is.Lifecycle == string(cluster.Draining):
		return o.orBringBack(m, o.drain(m, "undrain"))
	case is.Suffrage != voter:
		if is.Lifecycle != string(cluster.Joining) { // or it is added altogether, and promoted, on its own
			if err := o.orBringBack(m, o.suffrage(m.index, voter)); err != nil {
				return err
			}
		}
		return fmt.Errorf("it is a %s, %s", is.Suffrage, is.Lifecycle)
	}
	return nil
}

// orBringBack brings a member back that an answer says is none: it was being
// added, or removed, when the leader was lost, and has a record still.
func (o *operator) orBringBack(m *member, err error) error {
	if e, ok := errors.AsType[*cluster.Error](err); ok && e.Status == http.StatusNotFound {
		return o.bringBack(m)
	}
	return err
}

// bringBack adds a member that is none any more, with an empty disk.
func (o *operator) bringBack(m *member) error {
	if _, node := m.current(); node != nil && node.Status().Lifecycle == cluster.Dead {
		m.restartEmpty()
	}
	if err := o.add(m); err != nil {
		return err
	}
	return fmt.Errorf("it was added just now")
}
