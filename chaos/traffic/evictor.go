package traffic

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"northstar/api/apiv1"
)

// roleEvictor is an operator who sometimes revokes the role from its holder, for the next candidate or for a named one.
// The campaigners observe the consequences.
type roleEvictor struct {
	*Traffic
	http *HTTPClient
	rand *rand.Rand
}

const evictLimit = time.Second // for one call: the response may wait for the holder, and need not be read

func (t *Traffic) startRoleEvictor() {
	e := &roleEvictor{Traffic: t, http: t.newMachine(), rand: rand.New(rand.NewPCG(t.cfg.Seed, 2000))}
	t.running.Go(func() {
		for e.Pause(e.cfg.EvictInterval.Draw(e.rand)) {
			e.evict()
		}
	})
}

func (e *roleEvictor) evict() {
	const path = "/admin/roles/" + Role
	var role apiv1.Role
	if e.ask(get(apiv1.PathRoles+"/"+Role, &role)) != nil {
		return
	}
	if n := len(role.Candidates); n > 0 && e.rand.IntN(2) == 0 {
		to := role.Candidates[e.rand.IntN(n)].SessionID
		_ = e.ask(post(path+"/transfer", apiv1.RoleTransfer{ToSessionID: to, Reason: "chaos"}, nil))
		return
	}
	_ = e.ask(Request{Method: http.MethodDelete, Path: path, In: apiv1.RoleEvict{Reason: "chaos"}})
}

// ask sends one request to any node.
func (e *roleEvictor) ask(q Request) error {
	ctx, cancel := context.WithTimeout(e.ctx, evictLimit)
	defer cancel()
	nodes := e.cluster.Nodes()
	_, _, err := e.http.Do(ctx, nodes[e.rand.IntN(len(nodes))], q)
	return err
}
