package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
)

type electionsCmd struct {
	Ls   electionsLsCmd   `cmd:"" default:"withargs" aliases:"list" help:"List elections, the newest term first."`
	Show electionsShowCmd `cmd:"" help:"Explain one election in full sentences: who, why, each vote, how long."`
}

type electionsLsCmd struct {
	Limit  int  `default:"20" help:"Maximum number."`
	Votes  bool `help:"Each voter's response and its reason."`
	Follow bool `short:"f" help:"Print elections as they end, lost ones too, until Ctrl-C."`
}

func (e *electionsLsCmd) Run(a *app) error {
	if e.Limit < 1 {
		return usagef("--limit: must be 1 or more")
	}
	if e.Follow {
		return e.follow(a)
	}
	list, err := request(a, "asking for elections", with((*client.Client).Elections, e.Limit))
	if err != nil {
		return err
	}
	a.warnMissing("lost elections", list.Missing)
	return a.printResult(list.Items, func() error {
		header := []string{"started", "term", "trigger", "candidate", "result", "votes", "took", "leaderless", "reason"}
		err := tableOf(a, header, list.Items, func(el apiv1.Election) []any {
			granted := 0
			for _, v := range el.Votes {
				if v.Granted {
					granted++
				}
			}
			return []any{
				formatTime(&el.StartedAt), el.Term, el.Trigger, el.CandidateID, result(el),
				votesCell(el, granted), ms(&el.DurationMS), ms(&el.LeaderlessMS),
				orDash(el.Reason),
			}
		})
		if err != nil || !e.Votes {
			return err
		}
		var rows [][]any
		for _, el := range list.Items {
			for _, v := range el.Votes {
				answer := yesNo(v.Granted)
				if v.Pre {
					answer += " (pre-vote)"
				}
				rows = append(rows, []any{el.Term, el.CandidateID, v.VoterID, answer, orDash(v.Reason)})
			}
		}
		fmt.Fprintln(a.stdout)
		return a.table([]string{"term", "candidate", "voter", "granted", "reason"}, rows)
	})
}

func (e *electionsLsCmd) follow(a *app) error {
	return follow(a, func(c *client.Client) iter.Seq2[apiv1.Event, error] {
		return c.FollowEvents(a.ctx, "", "election")
	}, func(ev apiv1.Event) (any, string) {
		el, ok := ev.Election()
		if !ok {
			return nil, "" // only reports the leader
		}
		text := fmt.Sprintf("%s  term %-4d %-15s %-8s %-4s  in %d ms, leaderless %d ms: %s", formatTime(&ev.At),
			ev.Term, el.Trigger, el.CandidateID, el.Result, el.DurationMS, el.LeaderlessMS,
			orDash(cluster.Printable(el.Reason)))
		for _, v := range el.Votes {
			if e.Votes {
				text += strings.TrimRight(fmt.Sprintf("\n    %-8s %-3s  %s", v.VoterID, yesNo(v.Granted), v.Reason), " ")
			}
		}
		return ev, text
	})
}

// votesCell returns how many voters granted their votes. Answers to a pre-vote are no votes.
func votesCell(el apiv1.Election, granted int) string {
	switch {
	case len(el.Votes) == 0:
		return "-"
	case el.Votes[0].Pre:
		return fmt.Sprintf("pre-vote %d of %d", granted, len(el.Votes))
	}
	return fmt.Sprintf("%d of %d", granted, len(el.Votes))
}

// result returns the election's result, and whether it was needless.
func result(el apiv1.Election) string {
	if el.Needless != "" {
		return el.Result + " (needless)"
	}
	return el.Result
}

type electionsShowCmd struct {
	Term uint64 `arg:"" optional:"" help:"The term; default: that of the newest election."`
}

// explained is an election with its explanation.
type explained struct {
	apiv1.Election
	Explanation []string `json:"explanation"`
}

func (e *electionsShowCmd) Run(a *app) error {
	h, err := request(a, "asking for elections", fetchElections)
	if err != nil {
		return err
	}
	a.warnMissing("lost elections", h.missing)
	items := h.of(e.Term)
	if len(items) == 0 {
		return &notFoundError{fmt.Errorf("no election of term %d is recorded; northstarctl elections ls lists them",
			e.Term)}
	}
	return a.printResult(items, func() error {
		for i, el := range items {
			if i > 0 {
				fmt.Fprintln(a.stdout)
			}
			if err := a.printSentences(el.Explanation); err != nil {
				return err
			}
		}
		return nil
	})
}

// printSentences prints one sentence or paragraph a line.
func (a *app) printSentences(lines []string) error {
	for _, line := range lines {
		if err := a.printf("%s\n", cluster.Printable(line)); err != nil {
			return err
		}
	}
	return nil
}

// history is what the cluster has recorded of its elections.
type history struct {
	elections []apiv1.Election // newest first
	events    []apiv1.Event    // of elections, that the nodes still remember
	missing   []string         // unreachable nodes, whose lost elections are not known
}

func fetchElections(c *client.Client, ctx context.Context) (history, error) {
	list, err := c.Elections(ctx, apiv1.MaxListLimit)
	if err != nil {
		return history{}, err
	}
	events, err := c.Events(ctx, "", "election")
	if err != nil {
		return history{}, err
	}
	return history{list.Items, events.Items, list.Missing}, nil
}

// of returns the elections of a term with their explanations; 0 is the newest term.
func (h history) of(term uint64) []explained {
	items := []explained{}
	for _, el := range h.elections {
		if term == 0 {
			term = el.Term
		}
		if el.Term == term {
			items = append(items, explained{el, explainElection(el, h.leaderBefore(el), h.steps(el))})
		}
	}
	return items
}

// leaderBefore returns the winner of the last election before el; "" if none is recorded.
func (h history) leaderBefore(el apiv1.Election) string {
	for _, e := range h.elections {
		if e.Term < el.Term && e.Won() {
			return e.CandidateID
		}
	}
	return ""
}

// openAfter returns the newest attempt in a later term that had brought no leader; false if no node remembers one.
func (h history) openAfter(term uint64) (apiv1.Election, bool) {
	for _, ev := range slices.Backward(h.events) {
		if el, ok := ev.Election(); ok && el.Result == "open" && el.Term > term {
			return el, true
		}
	}
	return apiv1.Election{}, false
}

// steps returns when the phases of a won election were reached, by the event of it; nil if no node remembers it.
func (h history) steps(el apiv1.Election) []step {
	i := slices.IndexFunc(h.events, func(ev apiv1.Event) bool {
		won, ok := ev.Election()
		return ok && won.Won() && ev.Term == el.Term
	})
	if i < 0 || !el.Won() {
		return nil
	}
	phases, _ := h.events[i].Fields["steps"].(map[string]any)
	var steps []step
	for _, s := range []struct{ field, text string }{
		{"confirmed_us", "the death of its process was confirmed"},
		{"agreed_us", "a majority of the voters agreed that the leader has failed"},
		{"stood_us", "the election was started"},
		{"elected_us", "the votes of a majority had arrived"},
		{"serving_us", "the new leader accepted writes"},
	} {
		if us, ok := phases[s.field].(float64); ok {
			steps = append(steps, step{time.Duration(us) * time.Microsecond, s.text})
		}
	}
	return steps
}
