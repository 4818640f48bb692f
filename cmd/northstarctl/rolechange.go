package main

import (
	"context"
	"errors"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
)

// roleChangeTimeout is how long a node waits at most for the previous holder of a role.
const roleChangeTimeout = 20 * time.Second

type roleTransferCmd struct {
	Role string `arg:"" help:"The role."`
	To   string `required:"" placeholder:"CANDIDATE" help:"The candidate: the ID of its session, or its name if that is unique in the queue."`
	changeFlags
}

func (r *roleTransferCmd) Run(a *app) error {
	session, err := r.session(a)
	if err != nil {
		return err
	}
	body := apiv1.RoleTransfer{ToSessionID: session, Reason: r.Reason, PlanID: r.Plan}
	return a.changeRole(r.changeFlags, "handing over role "+r.Role,
		with2((*client.Client).PlanTransferRole, r.Role, body), with2((*client.Client).TransferRole, r.Role, body))
}

// session returns the ID of the candidate's session.
func (r *roleTransferCmd) session(a *app) (string, error) {
	role, err := request(a, "asking for role "+r.Role, with((*client.Client).InspectRole, r.Role))
	if errors.Is(err, client.ErrNotFound) {
		return r.To, nil
	}
	return candidateSession(role, r.To), err
}

// candidateSession returns the session of the only candidate with a name, else to itself.
func candidateSession(role apiv1.Role, to string) string {
	session, named := to, 0
	for _, c := range role.Candidates {
		if c.SessionID == to {
			return to
		}
		if c.Name == to {
			session, named = c.SessionID, named+1
		}
	}
	if named == 1 {
		return session
	}
	return to
}

type roleEvictCmd struct {
	Role string `arg:"" help:"The role."`
	changeFlags
}

func (r *roleEvictCmd) Run(a *app) error {
	body := apiv1.RoleEvict{Reason: r.Reason, PlanID: r.Plan}
	return a.changeRole(r.changeFlags, "taking role "+r.Role+" from its holder",
		with2((*client.Client).PlanEvictRole, r.Role, body), with2((*client.Client).EvictRole, r.Role, body))
}

// changeRole changes the holder of a role, or with --dry-run shows the plan.
func (a *app) changeRole(
	f changeFlags, what string, plan callFunc[apiv1.Plan], change callFunc[apiv1.RoleChange],
) error {
	if f.DryRun {
		return a.plan(plan)
	}
	return show(a, what, func(c *client.Client, ctx context.Context) (apiv1.RoleChange, error) {
		ctx, cancel := context.WithTimeout(ctx, roleChangeTimeout+a.Timeout)
		defer cancel()
		return change(c, ctx)
	}, func(res apiv1.RoleChange) error {
		if res.Token > 0 {
			return a.printf("%s, token %d\n", res.Message, res.Token)
		}
		return a.printf("%s\n", res.Message)
	})
}
