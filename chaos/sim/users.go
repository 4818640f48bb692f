package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/chaos/traffic"
	"northstar/cluster"
)

// users is the simulation as its traffic reaches it. The ways of machines of
// clients are never cut: faults cut off nodes.
type users struct{ *Simulation }

func (sim *Simulation) newTraffic() *traffic.Traffic {
	cfg := sim.cfg.Config
	cfg.Seed, cfg.Start, cfg.Local = sim.cfg.Seed, sim.start, users{sim}.attempt
	cfg.Rand = func(a, b string, n uint64) *rand.Rand {
		return rand.New(rand.NewPCG(cfg.Seed, hash(cfg.Seed, a, b, n)))
	}
	return traffic.New(sim.ctx, cfg, users{sim})
}

func (u users) Nodes() (all []traffic.Node) {
	for _, m := range u.members {
		all = append(all, traffic.Node{ID: string(m.id), HTTP: httpAddress(m.id), Etcd: etcdAddress(m.id)})
	}
	return all
}

func (u users) Leader() int                { return u.leading().index }
func (u users) Epoch() uint64              { return u.loss.epoch.Load() }
func (u users) Acknowledged()              { u.timeline.acked() }
func (u users) Violated(v check.Violation) { u.violated(v) }

// Key returns a key that depends on the epoch. The values of an earlier epoch's keys are
// unknown: the surviving nodes need not have the last writes.
func (u users) Key(i int) string {
	return fmt.Sprintf("%s%d", []string{"k", "after"}[u.loss.epoch.Load()], i)
}

func (u users) Machine(name string) *traffic.Machine {
	proc := u.net.Host(name).Boot()
	return &traffic.Machine{Close: func() { proc.Kill(false) }, Client: &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, addr string) (net.Conn, error) { return proc.Dial(ctx, addr) },
		DisableCompression: true,
	}}}
}

var (
	errNoProcess = cluster.Errorf(cluster.CodeNoLeader, "no node runs")
	errCrashed   = cluster.Errorf(cluster.CodeOutcomeUnknown, "the node crashed")
)

// attempt is one of a client in the node's own process. As over a network, the answer of a node that has crashed
// meanwhile is lost, and one of a paused node comes when that goes on.
func (u users) attempt(i int, f func(ctx context.Context, n traffic.KV) error) error {
	inst, node := u.members[i].current()
	if node == nil {
		return errNoProcess
	}
	ctx, cancel := context.WithTimeout(inst.ctx, u.cfg.Timeout)
	defer cancel()
	err := f(ctx, inProcessNode{node, u.members[i]})
	inst.proc.awaitThaw()
	if inst.ctx.Err() != nil {
		return errCrashed
	}
	return err
}

// inProcessNode is a node in the client's own process.
type inProcessNode struct {
	Node
	member *member
}

// Read waits until a read of that consistency may be answered, and reads.
func (n inProcessNode) Read(ctx context.Context, key, consistency string) (traffic.Reading, error) {
	var err error
	switch consistency {
	case apiv1.Linearizable:
		err = n.ReadBarrier(ctx)
	case apiv1.Lease:
		if err = n.LeaseReadBarrier(ctx); err == nil && n.member.sim.cutOff(n.member) {
			n.member.sim.reach("lease read on a leader that is cut off")
		}
	}
	view := n.View()
	item, _ := view.Get(key)
	return traffic.Reading{Value: string(item.Value), Revision: item.Revision, At: view.Revision()}, err
}
