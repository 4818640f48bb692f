package sim

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"northstar/api/apiv1"
)

// roleEvictor is an operator who takes the role from its holder now and then, for the
// next candidate or for one that it names. Who of them acts for how long on what
// it knows is the campaigners' part.
type roleEvictor struct {
	*clients
	remote *httpClient
	rand   *rand.Rand
}

const evictLimit = time.Second // for one call: its answer may wait for the holder, and need not be heard

func (cs *clients) startEvictor() {
	e := &roleEvictor{clients: cs, remote: cs.newRemote(), rand: rand.New(rand.NewPCG(cs.sim.cfg.Seed, 2000))}
	cs.done.Go(func() {
		for e.pause(e.sim.cfg.EvictInterval.draw(e.rand)) {
			e.take()
		}
	})
}

func (e *roleEvictor) take() {
	const path = "/admin/roles/" + campaignRole
	var role apiv1.Role
	if e.ask(http.MethodGet, apiv1.PathRoles+"/"+campaignRole, nil, &role) != nil {
		return
	}
	if n := len(role.Candidates); n > 0 && e.rand.IntN(2) == 0 {
		to := role.Candidates[e.rand.IntN(n)].SessionID
		_ = e.ask(http.MethodPost, path+"/transfer", apiv1.RoleTransfer{ToSessionID: to, Reason: "chaos"}, nil)
		return
	}
	_ = e.ask(http.MethodDelete, path, apiv1.RoleEvict{Reason: "chaos"}, nil)
}

// ask makes one request on any node. What comes of it is seen by the campaigners.
func (e *roleEvictor) ask(method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(e.sim.ctx, evictLimit)
	defer cancel()
	return e.remote.call(ctx, e.sim.members[e.rand.IntN(len(e.sim.members))].id, method, path, nil, in, out)
}
