package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
	"northstar/state"
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
	const maxWait = apiv1.MaxWaitMS * time.Millisecond
	switch {
	case r.Wait < 0 || r.Wait > maxWait:
		return usagef("--wait: must be 0 to %v (got %v)", maxWait, r.Wait)
	case r.TTL < state.MinSessionTTL || r.TTL > state.MaxSessionTTL:
		return usagef("--ttl: must be %v to %v (got %v)", state.MinSessionTTL, state.MaxSessionTTL, r.TTL)
	case r.TakeoverDelay < 0:
		return usagef("--takeover-delay: must be 0 or more (got %v)", r.TakeoverDelay)
	}
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
// is lost, and before the lease ends if that was not renewed in time.
func (r *roleCampaignCmd) holdRole(a *app, c *client.Client) error {
	lease := client.NewDeadline(a.leaseClock)
	sent, ttl := lease.Now(), r.TTL.Milliseconds()
	made, err := c.CreateSession(a.ctx, apiv1.SessionCreate{Name: cmp.Or(r.Name, client.ProcessName()), TTLMS: &ttl})
	if err != nil {
		return err
	}
	s := &renewedSession{c: c, id: made.SessionID, ttl: time.Duration(made.TTLMS) * time.Millisecond, lease: lease}
	s.extend(sent)
	if s.tenure, err = lease.Begin(client.Holder{Role: r.Role, Session: s.id}, nil); err != nil {
		return fmt.Errorf("session %s was made too late for its TTL: %w", s.id, err)
	}
	defer s.end(a) // also after Ctrl-C
	ctx, cancel := s.tenure.Context(a.ctx, killTime(s.ttl))
	defer cancel()
	ended := make(chan error, 2) // the first one is the cause
	go func() { defer cancel(); ended <- s.renew(ctx) }()
	role, err := r.campaign(a, ctx, c, s.id)
	switch {
	case err == nil:
		go func() {
			if err := s.observe(ctx, role); err != nil {
				ended <- err
				cancel()
			}
		}()
	case ctx.Err() == nil:
		cancel()
		<-ended
		return err
	}
	return a.untilInterrupted(<-ended)
}

// renewedSession is a session of role campaign. Its tenure lasts as long as the lease.
type renewedSession struct {
	c      *client.Client
	id     string
	ttl    time.Duration
	lease  *client.Deadline
	tenure *client.Leadership
}

// extend records a renewal that was sent at a time on the lease's clock. Clocks may drift by a tenth.
func (s *renewedSession) extend(sent time.Duration) {
	valid := s.ttl - s.ttl/10
	s.lease.Extend(sent, valid)
}

// renew renews the session until ctx ends, the role is revoked, or the session has ended. ctx ends with the lease.
func (s *renewedSession) renew(ctx context.Context) error {
	var last error
	for wait := s.ttl / 3; ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return s.lost(ctx, last)
		}
		sent := s.lease.Now()
		try, cancel := context.WithTimeout(ctx, s.ttl/3)
		_, err := s.c.RenewSession(try, s.id)
		cancel()
		switch {
		case err == nil:
			s.extend(sent)
			wait, last = s.ttl/3, nil
			continue
		case errors.Is(err, client.ErrFenced):
			return fmt.Errorf("role revoked: %v", err) // without %w: not a condition of the command itself
		case errors.Is(err, client.ErrSessionEnded):
			return fmt.Errorf("role may be lost: %v", err)
		}
		wait, last = s.ttl/10, err
	}
}

// observe waits until the cluster has ended the tenure of a role, and returns why; nil if ctx ends first. No renewal
// reports that another process has resigned for the session.
func (s *renewedSession) observe(ctx context.Context, role apiv1.Role) error {
	for {
		for h, err := range s.c.Observe(ctx, role.Role) {
			if err != nil || h.Token == role.Token {
				continue
			}
			cause := state.Cause(h.Cause)
			if cause == "" { // the watch began after the end
				cause = s.causeOfEnd(ctx, role)
			}
			switch cause {
			case state.CauseEvicted, state.CauseTransferred:
				return fmt.Errorf("role revoked: %s", cause)
			case "":
				return fmt.Errorf("role was lost: held by: %s", orDash(cluster.Printable(h.Name)))
			default:
				return fmt.Errorf("role was lost: %s", cluster.Printable(string(cause)))
			}
		}
		select {
		case <-time.After(observeAgain): // after an error that is not worth a retry with the same credentials
		case <-ctx.Done():
			return nil
		}
	}
}

// causeOfEnd returns why a tenure has ended; empty if it is not known.
func (s *renewedSession) causeOfEnd(ctx context.Context, role apiv1.Role) state.Cause {
	history, err := s.c.RoleHistory(ctx, role.Role)
	if err != nil {
		return ""
	}
	for _, t := range history.Items {
		if t.Token == role.Token {
			return state.Cause(t.Cause)
		}
	}
	return ""
}

// observeAgain is how long a campaign waits before it observes its role again.
const observeAgain = 2 * time.Second

// lost returns why ctx has ended. last is the error of the last renewal.
func (s *renewedSession) lost(ctx context.Context, last error) error {
	err := context.Cause(ctx)
	switch {
	case !errors.Is(err, client.ErrNotLeader):
		return err
	case last != nil:
		err = last
	}
	return fmt.Errorf("role may be lost: %v", err)
}

// end ends the session. It takes no longer than the lease lasts: a holder that is cut off must not linger.
func (s *renewedSession) end(a *app) {
	limit := min(s.tenure.ValidFor()-killTime(s.ttl), a.Timeout)
	if limit <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), limit)
	defer cancel()
	if err := s.c.EndSession(ctx, s.id); err != nil && !errors.Is(err, client.ErrSessionEnded) {
		fmt.Fprintf(a.stderr, "northstarctl: cannot end session %s: %v (it expires after its TTL)\n", s.id, err)
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
