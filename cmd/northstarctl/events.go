package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"northstar/api/apiv1"
	"northstar/client"
)

const timeForm = "2006-01-02 15:04:05.000Z"

type electionsCmd struct {
	Limit  int  `default:"20" help:"At most so many."`
	Votes  bool `help:"Every voter's answer, and why."`
	Follow bool `short:"f" help:"Print elections as they end, those that came to nothing too, until Ctrl-C."`
}

func (e *electionsCmd) Run(a *app) error {
	if e.Limit < 1 {
		return usagef("--limit: want 1 or more")
	}
	if e.Follow {
		return e.follow(a)
	}
	list, err := request(a, "asking for elections", func(ctx context.Context, c *client.Client) (apiv1.Elections, error) {
		return c.Elections(ctx, e.Limit)
	})
	if err != nil {
		return err
	}
	if len(list.Missing) > 0 {
		fmt.Fprintln(a.stderr, "northstarctl: without what was lost by "+strings.Join(list.Missing, ", "))
	}
	return a.printResult(list.Items, func() error {
		rows := make([][]any, 0, len(list.Items))
		for _, el := range list.Items {
			granted := 0
			for _, v := range el.Votes {
				if v.Granted {
					granted++
				}
			}
			rows = append(rows, []any{
				el.StartedAt.UTC().Format(timeForm), el.Term, el.Trigger, el.CandidateID, el.Result,
				fmt.Sprintf("%d of %d", granted, len(el.Votes)), fmt.Sprintf("%d ms", el.DurationMS), fmt.Sprintf("%d ms", el.LeaderlessMS), orDash(el.Reason),
			})
		}
		if err := a.table([]string{"started", "term", "trigger", "candidate", "result", "votes", "took", "leaderless", "reason"}, rows); err != nil || !e.Votes {
			return err
		}
		return a.printVotes(list.Items)
	})
}

// printVotes lists each voter's answer in each election.
func (a *app) printVotes(elections []apiv1.Election) error {
	var rows [][]any
	for _, el := range elections {
		for _, v := range el.Votes {
			rows = append(rows, []any{el.Term, el.CandidateID, v.VoterID, yesNo(v.Granted), orDash(v.Reason)})
		}
	}
	fmt.Fprintln(a.stdout)
	return a.table([]string{"term", "candidate", "voter", "granted", "reason"}, rows)
}

// follow prints what the candidates' own events say.
func (e *electionsCmd) follow(a *app) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for ev, err := range c.FollowEvents(a.ctx, "", "election") {
		if err != nil {
			return a.untilInterrupted(err)
		}
		el, ok := ev.Election()
		switch {
		case !ok:
			continue // only that somebody leads
		case a.Output == "json":
			err = a.printJSONLine(ev)
		default:
			err = e.printElection(a, ev, el)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *electionsCmd) printElection(a *app, ev apiv1.Event, el apiv1.Election) error {
	lines := fmt.Sprintf("%s  term %-4d %-15s %-8s %-4s  in %d ms, leaderless %d ms: %s\n", ev.At.UTC().Format(timeForm), ev.Term, el.Trigger, el.CandidateID, el.Result, el.DurationMS, el.LeaderlessMS, orDash(el.Reason))
	for _, v := range el.Votes {
		if e.Votes {
			lines += strings.TrimRight(fmt.Sprintf("    %-8s %-3s  %s", v.VoterID, yesNo(v.Granted), v.Reason), " ") + "\n"
		}
	}
	_, err := io.WriteString(a.stdout, lines)
	return err
}

type eventsCmd struct {
	Follow bool   `short:"f" help:"Go on printing events as they happen, until Ctrl-C."`
	Since  string `placeholder:"SEQ" help:"Only what came after the event with this seq."`
	Type   string `help:"Only events of this type: election, failover, transfer, member, health, splitbrain, role, disk or node."`
}

func (e *eventsCmd) Run(a *app) error {
	if e.Follow {
		return e.follow(a)
	}
	list, err := request(a, "asking for events", func(ctx context.Context, c *client.Client) (apiv1.Events, error) {
		return c.Events(ctx, e.Since, e.Type)
	})
	if err != nil {
		return err
	}
	if len(list.Missing) > 0 {
		fmt.Fprintln(a.stderr, "northstarctl: without the events of "+strings.Join(list.Missing, ", "))
	}
	return a.printResult(list, func() error {
		rows := make([][]any, 0, len(list.Items))
		for _, ev := range list.Items {
			rows = append(rows, []any{ev.At.UTC().Format(timeForm), ev.Node, ev.Type, ev.Term, ev.Message})
		}
		return a.table([]string{"time", "node", "type", "term", "message"}, rows)
	})
}

func (e *eventsCmd) follow(a *app) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for ev, err := range c.FollowEvents(a.ctx, e.Since, e.Type) {
		if err != nil {
			return a.untilInterrupted(err)
		}
		if a.Output == "json" {
			err = a.printJSONLine(ev)
		} else {
			_, err = fmt.Fprintf(a.stdout, "%s  %-8s %-10s %s\n", ev.At.UTC().Format(timeForm), ev.Node, ev.Type, ev.Message)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
