package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
)

type roleCmd struct {
	Ls       roleLsCmd       `cmd:"" default:"withargs" aliases:"list" help:"List the roles and their holders."`
	Show     roleShowCmd     `cmd:"" help:"Show the holder of a role and its queue."`
	Campaign roleCampaignCmd `cmd:"" help:"Campaign for a role."`
	Resign   roleResignCmd   `cmd:"" help:"Release a role, or leave its queue."`
	Watch    roleWatchCmd    `cmd:"" help:"Print elections and vacancies of a role as they happen, until Ctrl-C."`
	History  roleHistoryCmd  `cmd:"" help:"Show the past holders of a role, newest first."`
	Transfer roleTransferCmd `cmd:"" help:"Hand a role over to one of its candidates."`
	Evict    roleEvictCmd    `cmd:"" help:"Take a role from its holder; the next candidate is elected."`
}

type roleLsCmd struct {
	All bool `help:"Also vacant roles."`
}

func (r *roleLsCmd) Run(a *app) error {
	pages := allPages(func(c *client.Client, ctx context.Context, after string) ([]apiv1.Role, string, error) {
		page, err := c.Roles(ctx, r.All, after)
		return page.Items, page.Next, err
	})
	header := []string{"role", "holder", "token", "acquired", "lease until", "value"}
	return list(a, "listing roles", pages, header, func(r apiv1.Role) []any {
		return []any{
			r.Role, orDash(r.Holder), r.Token, formatTime(r.AcquiredAt), formatTime(r.LeaseUntil),
			printable([]byte(r.Value)),
		}
	})
}

type roleShowCmd struct {
	Role string `arg:"" help:"The role."`
}

func (r *roleShowCmd) Run(a *app) error {
	role, err := request(a, "asking for role "+r.Role, with((*client.Client).InspectRole, r.Role))
	if err != nil {
		return err
	}
	if err := a.printResult(role, func() error { return a.printQueue(role) }); err != nil {
		return err
	}
	if role.Holder == "" {
		return &notFoundError{errors.New(role.Vacant)}
	}
	return nil
}

// printQueue prints a role and the candidates that wait for it.
func (a *app) printQueue(role apiv1.Role) error {
	if err := a.printRole(role); err != nil || len(role.Candidates) == 0 {
		return err
	}
	fmt.Fprintln(a.stdout)
	rows := make([][]any, 0, len(role.Candidates))
	for i, q := range role.Candidates {
		rows = append(rows, []any{
			i + 1, q.Name, q.SessionID, yesNo(q.Eligible), fmt.Sprintf("%d ms", q.TakeoverDelayMS),
		})
	}
	return a.table([]string{"next", "candidate", "session", "eligible", "takeover delay"}, rows)
}

func (a *app) printRole(r apiv1.Role) error {
	return a.table([]string{"role", "holder", "session", "token", "acquired", "lease until", "value"},
		[][]any{{
			r.Role, orDash(r.Holder), orDash(r.SessionID), r.Token, formatTime(r.AcquiredAt), formatTime(r.LeaseUntil),
			printable([]byte(r.Value)),
		}})
}

type roleCampaignCmd struct {
	Role          string        `arg:"" help:"The role."`
	Session       string        `placeholder:"ID" help:"Campaign with this session and leave it open. Default: start one, renew it until Ctrl-C, then end it."`
	Name          string        `help:"Name of the new session; default: host name and process ID."`
	TTL           time.Duration `default:"10s" help:"TTL of the new session."`
	Value         string        `empty:"" help:"Shown with the role while it is held."`
	Wait          time.Duration `help:"Maximum wait in the queue, at most 5m; 0: do not wait."`
	TakeoverDelay time.Duration `help:"Delay before taking over from a holder that crashed or lost its session."`
	Required      bool          `help:"Alert while no process holds the role (metric northstar_role_required)."`
}

func (r *roleCampaignCmd) Run(a *app) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if r.Session != "" {
		_, err := r.campaign(a, a.ctx, c, r.Session)
		return err
	}
	return r.holdRole(a, c)
}

func (r *roleCampaignCmd) campaign(a *app, ctx context.Context, c *client.Client, session string) (apiv1.Role, error) {
	stop := a.progress("waiting for role " + r.Role)
	role, err := c.CampaignRole(ctx, r.Role, apiv1.Campaign{
		SessionID: session, Value: r.Value, WaitMS: r.Wait.Milliseconds(),
		TakeoverDelayMS: r.TakeoverDelay.Milliseconds(), Required: r.Required,
	})
	stop()
	if err != nil {
		return role, err
	}
	return role, a.printResult(role, func() error { return a.printRole(role) })
}

// holdRole campaigns with its own session and keeps it until Ctrl-C. It returns an error if the session or the role
// is lost.
func (r *roleCampaignCmd) holdRole(a *app, c *client.Client) error {
	ttl := r.TTL.Milliseconds()
	made, err := c.CreateSession(a.ctx, apiv1.SessionCreate{Name: cmp.Or(r.Name, client.ProcessName()), TTLMS: &ttl})
	if err != nil {
		return err
	}
	defer func() { // also after Ctrl-C
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), a.Timeout)
		defer cancel()
		if err := c.EndSession(ctx, made.SessionID); err != nil && !errors.Is(err, client.ErrSessionEnded) {
			fmt.Fprintf(a.stderr, "northstarctl: cannot end session %s: %v (it expires after its TTL)\n",
				made.SessionID, err)
		}
	}()
	ctx, lost := context.WithCancelCause(a.ctx)
	defer lost(nil)
	var renewing sync.WaitGroup
	renewing.Go(func() { lost(renewLoop(ctx, c, made.SessionID, r.TTL)) })
	_, err = r.campaign(a, ctx, c, made.SessionID)
	if err == nil {
		<-ctx.Done()
		err = context.Cause(ctx)
	}
	lost(nil)
	renewing.Wait()
	return a.untilInterrupted(err)
}

// renewLoop renews a session until ctx ends, the role is revoked, or the session has ended or was not renewed for
// its TTL.
func renewLoop(ctx context.Context, c *client.Client, session string, ttl time.Duration) error {
	for last := time.Now(); ; {
		select {
		case <-time.After(ttl / 3):
		case <-ctx.Done():
			return ctx.Err()
		}
		sent := time.Now()
		try, cancel := context.WithTimeout(ctx, ttl/2)
		_, err := c.RenewSession(try, session)
		cancel()
		switch {
		case err == nil:
			last = sent
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, client.ErrFenced):
			return fmt.Errorf("role revoked: %v", err) // without %w: not a condition of the command itself
		case errors.Is(err, client.ErrSessionEnded), time.Since(last) > ttl-ttl/10:
			return fmt.Errorf("role may be lost: %v", err)
		}
	}
}

type roleResignCmd struct {
	Role    string `arg:"" help:"The role."`
	Session string `required:"" placeholder:"ID" help:"The session that resigns."`
}

func (r *roleResignCmd) Run(a *app) error {
	return show(a, "resigning from role "+r.Role, with2((*client.Client).ResignRole, r.Role, r.Session),
		func(res apiv1.RoleResult) error {
			return a.printf("%s; held by: %s\n", res.Message, orDash(cluster.Printable(res.Holder)))
		})
}

type roleWatchCmd struct {
	Role  string  `arg:"" help:"The role."`
	Since *uint64 `placeholder:"REV" help:"Changes after this revision; default: from now."`
}

// roleLine is the JSON form of an election or a vacancy.
type roleLine struct {
	Event string `json:"event"`
	apiv1.RoleEvent
}

func (r *roleWatchCmd) Run(a *app) error {
	return follow(a, func(c *client.Client) iter.Seq2[client.RoleChange, error] {
		return c.WatchRole(a.ctx, r.Role, watchOptions(r.Since))
	}, func(ch client.RoleChange) (any, string) {
		event := apiv1.EventVacated
		if ch.Elected {
			event = apiv1.EventElected
		}
		return roleLine{event, ch.RoleEvent},
			fmt.Sprintf("%d %s %s token %d %s", ch.Revision, event, cluster.Printable(ch.Holder), ch.Token,
				ch.Cause)
	})
}

type roleHistoryCmd struct {
	Role string `arg:"" help:"The role."`
}

func (r *roleHistoryCmd) Run(a *app) error {
	past := func(c *client.Client, ctx context.Context) ([]apiv1.Tenure, error) {
		h, err := c.RoleHistory(ctx, r.Role)
		return h.Items, err
	}
	header := []string{"token", "holder", "acquired", "ended", "cause"}
	return list(a, "asking for the history of role "+r.Role, past, header, func(t apiv1.Tenure) []any {
		return []any{t.Token, t.Holder, formatTime(&t.AcquiredAt), formatTime(t.EndedAt), orDash(t.Cause)}
	})
}
