package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"northstar/api/apiv1"
	"northstar/client"
)

type sessionsCmd struct {
	Ls   sessionsLsCmd   `cmd:"" default:"withargs" aliases:"list" help:"List the live sessions, oldest first."`
	Show sessionsShowCmd `cmd:"" help:"Show a session and what it holds."`
	End  sessionsEndCmd  `cmd:"" help:"End sessions: their roles are released, and their keys deleted."`
}

type sessionsLsCmd struct {
	Identity string `placeholder:"NAME" help:"Only sessions made by this identity, such as 'client alice'."`
	Prefix   string `help:"Only sessions whose name starts with this."`
}

func (s *sessionsLsCmd) Run(a *app) error {
	pages := allPages(func(c *client.Client, ctx context.Context, after string) ([]apiv1.Session, string, error) {
		page, err := c.Sessions(ctx, after)
		var matching []apiv1.Session
		for _, item := range page.Items {
			if (s.Identity == "" || item.Identity == s.Identity) && strings.HasPrefix(item.Name, s.Prefix) {
				matching = append(matching, item)
			}
		}
		return matching, page.Next, err
	})
	header := []string{"session", "name", "identity", "ends in", "ttl", "roles", "keys", "created"}
	return list(a, "listing sessions", pages, header, func(s apiv1.Session) []any {
		return []any{
			s.SessionID, s.Name, orDash(s.Identity), ms(&s.RemainingMS), ms(&s.TTLMS),
			orDash(strings.Join(s.Roles, ",")), s.Keys, formatTime(&s.CreatedAt),
		}
	})
}

type sessionsShowCmd struct {
	ID string `arg:"" help:"Session ID."`
}

func (s *sessionsShowCmd) Run(a *app) error {
	return show(a, "asking for session "+s.ID, with((*client.Client).GetSession, s.ID), func(s apiv1.Session) error {
		rows := [][]any{
			{"session", s.SessionID},
			{"name", s.Name},
			{"identity", orDash(s.Identity)},
			{"created", formatTime(&s.CreatedAt)},
			{"ends in", fmt.Sprintf("%d ms, unless it is renewed (ttl %d ms)", s.RemainingMS, s.TTLMS)},
			{"roles", orDash(strings.Join(s.Roles, ", "))},
			{"keys", s.Keys},
		}
		for _, r := range s.RevokedRoles {
			rows = append(rows, []any{"revoked", fmt.Sprintf("role %s, token %d: not released yet", r.Role, r.Token)})
		}
		for _, k := range slices.Sorted(maps.Keys(s.Meta)) {
			rows = append(rows, []any{"meta " + printable([]byte(k)), printable([]byte(s.Meta[k]))})
		}
		return a.table([]string{"field", "value"}, rows)
	})
}

type sessionsEndCmd struct {
	IDs      []string `arg:"" optional:"" name:"id" help:"Session IDs."`
	Identity string   `placeholder:"NAME" help:"Instead: all sessions made by this identity, such as 'client alice'."`
	Prefix   string   `help:"Instead, or of that identity: all sessions whose name starts with this."`
	Reason   string   `empty:"" help:"Reason, for the audit log."`
	DryRun   bool     `name:"dry-run" help:"Show what would end, change nothing."`
}

func (s *sessionsEndCmd) Run(a *app) error {
	many := s.Identity != "" || s.Prefix != ""
	if many == (len(s.IDs) > 0) {
		return usagef("either session IDs or --identity or --prefix are required")
	}
	what := "Sessions " + strings.Join(s.IDs, ", ")
	if many {
		what = strings.TrimSpace(fmt.Sprintf("All sessions%s%s", suffix(" of ", s.Identity),
			suffix(" with names starting with ", s.Prefix)))
	}
	call := s.endEach
	if many {
		call = s.endMatching
	}
	if s.DryRun {
		return a.endSessions("asking what would end", call, func(p apiv1.SessionsEnded) error {
			format := "%s would end; roles vacated: %s; keys deleted: %d\n"
			if p.More {
				format = "at least " + format + "more sessions match: only the first page is shown\n"
			}
			return a.printf(format, plural(len(p.SessionIDs), "session"), orDash(strings.Join(p.Roles, ", ")), p.Keys)
		})
	}
	if err := a.confirm("%s will end: their roles are released, and the keys tied to them are deleted.",
		what); err != nil {
		return err
	}
	return a.endSessions("ending sessions", call, func(ended apiv1.SessionsEnded) error {
		return a.printf("%s ended\n", plural(len(ended.SessionIDs), "session"))
	})
}

// endSessions makes the calls, and prints what they have ended, also if one of them fails.
func (a *app) endSessions(
	what string, call callFunc[apiv1.SessionsEnded], text func(apiv1.SessionsEnded) error,
) error {
	ended, err := request(a, what, call)
	if err != nil && len(ended.SessionIDs) == 0 {
		return err
	}
	if e := a.printResult(ended, func() error { return text(ended) }); err == nil {
		err = e
	}
	return err
}

func (s *sessionsEndCmd) request() client.SessionsEnd {
	return client.SessionsEnd{Identity: s.Identity, Prefix: s.Prefix, Reason: s.Reason, DryRun: s.DryRun}
}

// endEach ends one session after another. Those that have ended before are an error at the end.
func (s *sessionsEndCmd) endEach(c *client.Client, ctx context.Context) (apiv1.SessionsEnded, error) {
	all := apiv1.SessionsEnded{SessionIDs: []string{}, DryRun: s.DryRun}
	var missing []error
	for _, id := range s.IDs {
		e := s.request()
		e.ID = id
		one, err := c.EndSessionsWith(ctx, e)
		switch {
		case err == nil:
			addEnded(&all, one)
		case errors.Is(err, client.ErrSessionEnded):
			missing = append(missing, err)
		default:
			return all, err
		}
	}
	return all, errors.Join(missing...)
}

// endMatching ends one page of sessions after another. A dry run shows the first page, of up to 1000.
func (s *sessionsEndCmd) endMatching(c *client.Client, ctx context.Context) (apiv1.SessionsEnded, error) {
	all := apiv1.SessionsEnded{SessionIDs: []string{}, DryRun: s.DryRun}
	for {
		page, err := c.EndSessionsWith(ctx, s.request())
		if err != nil {
			return all, err
		}
		addEnded(&all, page)
		if !page.More || s.DryRun {
			all.More = page.More
			return all, nil
		}
	}
}

// addEnded adds the result of a further request.
func addEnded(all *apiv1.SessionsEnded, more apiv1.SessionsEnded) {
	all.SessionIDs = append(all.SessionIDs, more.SessionIDs...)
	all.Roles = append(all.Roles, more.Roles...)
	all.Keys += more.Keys
}

// suffix returns text after a word, or nothing without text.
func suffix(word, text string) string {
	if text == "" {
		return ""
	}
	return word + text
}
