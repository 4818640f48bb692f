package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
)

type whyCmd struct {
	What  string `arg:"" optional:"" default:"leader" help:"leader (default): why it leads, or why there is none. A node ID: why that node leads or does not. refused: the newest refused calls. An error such as ERR_FENCED or 4011: what it means."`
	Who   string `placeholder:"NAME" help:"With refused or an error: only calls of this token or certificate."`
	Limit int    `default:"5" help:"With refused or an error: at most so many calls."`
}

func (w *whyCmd) Help() string {
	return "The answers come from the cluster's own records: members, elections, the nodes' states and the audit log. " +
		"The audit log needs an operator. It has writes and all forbidden calls, but no reads and no calls with an " +
		"unknown token."
}

// answer is the JSON form of an explanation.
type answer struct {
	Question    string   `json:"question"`
	Explanation []string `json:"explanation"`
}

func (w *whyCmd) Run(a *app) error {
	if w.Limit < 1 {
		return usagef("--limit: must be 1 or more (got %d)", w.Limit)
	}
	code, isCode := parseCode(w.What)
	var lines []string
	var err error
	switch {
	case isCode:
		lines, err = w.code(a, code)
	case w.What == "refused":
		lines, err = w.refused(a)
	case w.What == "leader":
		lines, err = request(a, "asking every node", func(c *client.Client, ctx context.Context) ([]string, error) {
			s, err := examine(c, ctx, a.Timeout)
			return s.explainLeader(), err
		})
	default:
		lines, err = w.node(a)
	}
	if err != nil {
		return err
	}
	return a.printResult(answer{w.What, lines}, func() error { return a.printSentences(lines) })
}

// parseCode returns the error code with a number or a name.
func parseCode(text string) (cluster.Code, bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return cluster.Code(n), cluster.Code(n).Name() != ""
	}
	for code := range codeHelp {
		if strings.EqualFold(code.Name(), text) {
			return code, true
		}
	}
	return 0, false
}

func (w *whyCmd) node(a *app) ([]string, error) {
	if _, err := cluster.ParseNodeID(w.What); err != nil {
		return nil, usagef("<what>: must be leader, refused, a node ID or an error such as ERR_FENCED (got %q)", w.What)
	}
	return request(a, "asking every node", func(c *client.Client, ctx context.Context) ([]string, error) {
		s, err := examine(c, ctx, a.Timeout)
		if err != nil {
			return nil, err
		}
		lines, known := s.explainNode(w.What)
		if !known {
			return nil, &notFoundError{fmt.Errorf("%s is not a member; northstarctl members ls lists the members", w.What)}
		}
		return lines, nil
	})
}

// refused explains the newest refused calls.
func (w *whyCmd) refused(a *app) ([]string, error) {
	records, err := w.records(a, 0)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return []string{"No refused call is recorded. The audit log has no reads, and no calls with an unknown token."}, nil
	}
	return explainRefusals(records, true), nil
}

// code explains an error, and names the newest calls that got it if the caller may read the audit log.
func (w *whyCmd) code(a *app, code cluster.Code) ([]string, error) {
	lines := explainCode(code)
	records, err := w.records(a, code)
	if err != nil {
		lines = append(lines, "The calls that got it are not known: "+err.Error()+".")
		return lines, nil
	}
	return append(lines, explainRefusals(records, false)...), nil
}

// records returns the newest calls that were refused, with the code if that is not 0, newest first.
func (w *whyCmd) records(a *app, code cluster.Code) ([]apiv1.AuditRecord, error) {
	log, err := request(a, "asking for the audit log", func(c *client.Client, ctx context.Context) (apiv1.Audit, error) {
		q := client.AuditQuery{Limit: apiv1.MaxListLimit, Who: w.Who}
		log, err := c.Audit(ctx, q)
		if errors.Is(err, client.ErrNoLeader) {
			q.Stale = true
			log, err = c.Audit(context.WithoutCancel(ctx), q)
		}
		return log, err
	})
	var found []apiv1.AuditRecord
	for i := len(log.Items) - 1; i >= 0 && len(found) < w.Limit; i-- {
		if r := log.Items[i]; r.Code != 0 && (code == 0 || cluster.Code(r.Code) == code) {
			found = append(found, r)
		}
	}
	return found, err
}

// situation is what the nodes report and have recorded of the cluster.
type situation struct {
	cluster apiv1.Cluster
	history history
	pause   apiv1.AutoFailoverState // zero: unknown
	nodes   map[string]nodeReport   // by ID
}

// nodeReport is a node's view of itself, or why there is none.
type nodeReport struct {
	status apiv1.Status
	err    error
}

// statusTimeout bounds the question to one node.
const statusTimeout = 2 * time.Second

// examine asks the cluster, and every member for its own view.
func examine(c *client.Client, ctx context.Context, timeout time.Duration) (situation, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cl, err := c.Cluster(ctx)
	if err != nil {
		return situation{}, err
	}
	s := situation{cluster: cl, nodes: map[string]nodeReport{}}
	s.history, err = fetchElections(c, ctx)
	if err != nil {
		return s, err
	}
	s.pause, _ = c.AutoFailover(ctx) // only operators may ask
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, m := range cl.Members {
		if m.HTTPAddress == "" {
			mu.Lock()
			s.nodes[m.ID] = nodeReport{err: errors.New("its HTTP address is not known")}
			mu.Unlock()
			continue
		}
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, min(timeout, statusTimeout))
			defer cancel()
			st, err := c.Status(ctx, m.HTTPAddress)
			mu.Lock()
			defer mu.Unlock()
			s.nodes[m.ID] = nodeReport{st, err}
		})
	}
	asking.Wait()
	return s, nil
}
