package proc

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
)

// operate revokes the role from its holder again and again until ctx ends. It names a waiting candidate as the next
// holder, or none.
func (c *contest) operate(ctx context.Context, cl *client.Client, ttl time.Duration) {
	for ctx.Err() == nil {
		pause(ttl/8 + rand.N(ttl/2))
		method, path, body := http.MethodDelete, "/admin/roles/"+c.role, any(apiv1.RoleEvict{})
		if r, err := cl.GetRole(ctx, c.role); err == nil && len(r.Candidates) > 0 && rand.IntN(2) == 0 {
			to := r.Candidates[rand.IntN(len(r.Candidates))]
			method, path, body = http.MethodPost, path+"/transfer", apiv1.RoleTransfer{ToSessionID: to.SessionID}
		}
		c.takeRole(ctx, method, path, body)
	}
}

func (c *contest) takeRole(ctx context.Context, method, path string, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		c.t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	n := c.cluster.Nodes[rand.IntN(len(c.cluster.Nodes))]
	a, err := do(ctx, n, method, path, data, "Content-Type", jsonType)
	switch {
	case err != nil: // the node is dead or stopped
	case a.Status == http.StatusOK:
		c.log("%s %s: %s", method, path, a.Body)
		c.taken.Add(1)
	case a.Status == http.StatusBadRequest || a.Status == http.StatusInternalServerError ||
		a.Status == http.StatusMethodNotAllowed:
		c.t.Errorf("%s %s: %d %s", method, path, a.Status, a.Body)
	}
}

// cutOff disconnects one candidate at a time from all nodes or from one, in one or both directions, until ctx ends. All
// links are healed then.
func (c *contest) cutOff(ctx context.Context, runners []*runner, ttl time.Duration) {
	for ctx.Err() == nil {
		r := runners[rand.IntN(len(runners))]
		ways, only := rand.IntN(3), rand.IntN(2*len(r.relays))
		c.log("cut candidate %d off: ways %d, node %d", r.id, ways, only)
		for i, l := range r.relays {
			if only < len(r.relays) && i != only {
				continue
			}
			if ways != 0 {
				l.out.cut()
			}
			if ways != 1 {
				l.in.cut()
			}
		}
		wait(ctx, ttl/4+rand.N(2*ttl))
		for _, l := range r.relays {
			l.mend()
		}
		c.log("candidate %d has its network again", r.id)
		wait(ctx, rand.N(ttl/2))
	}
}

// wait sleeps until ctx ends or the duration has passed.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
