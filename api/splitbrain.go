package api

import (
	"context"
	"fmt"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/cluster"
	"northstar/splitbrain"
)

// SplitBrain detects another leader, or another node with this node's ID. Its methods may be called by any goroutine.
type SplitBrain interface {
	// Report returns the newest report; Check makes a new one. They fail when ctx ends first.
	Report(ctx context.Context) (splitbrain.Report, error)
	Check(ctx context.Context) (splitbrain.Report, error)
	// Refusing returns why this node must not serve, "" if it may. It must be cheap.
	Refusing() string
}

// checkTimeout limits a check: several requests of a second each.
const checkTimeout = 5 * time.Second

func getSplitBrain(c *request) error { return c.replyReport(c.s.deps.SplitBrain.Report) }

func postSplitBrain(c *request, in apiv1.SplitBrainCheck) error {
	if err := checkReason(in.Reason); err != nil {
		return err
	}
	return c.replyReport(c.s.deps.SplitBrain.Check)
}

func (c *request) replyReport(get func(context.Context) (splitbrain.Report, error)) error {
	ctx, cancel := c.contextWithLimit(checkTimeout)
	defer cancel()
	r, err := get(ctx)
	if err != nil {
		return problem.Busy("%w", err)
	}
	return c.reply(c.s.wireReport(r))
}

func (s *Server) wireReport(r splitbrain.Report) apiv1.SplitBrain {
	out := apiv1.SplitBrain{
		Verdict: wireVerdict(r.Verdict), CheckedAt: r.CheckedAt.UTC(), CheckedBy: string(s.deps.Node.ID),
		Refusing: s.deps.SplitBrain.Refusing() != "",
		Findings: []apiv1.SplitBrainFinding{}, Claims: []apiv1.SplitBrainClaim{},
	}
	for _, f := range r.Findings {
		wire := apiv1.SplitBrainFinding{
			Verdict: wireVerdict(f.Verdict), Detail: f.Detail, Nodes: []string{},
			Refusing: f.RefuseService,
		}
		for _, id := range f.Nodes {
			wire.Nodes = append(wire.Nodes, string(id))
		}
		out.Findings = append(out.Findings, wire)
	}
	for _, c := range r.Claims {
		out.Claims = append(out.Claims, apiv1.SplitBrainClaim{
			NodeID: string(c.Node), Source: string(c.Source), Address: c.Address, BootID: c.BootID,
			ClusterID: c.ClusterID, Generation: c.Generation.Number, RecoveryID: c.Generation.RecoveryID,
			Term: c.Term, Leads: c.Leads, LeaderID: string(c.LeaderID), At: c.At.UTC(), Error: c.Error,
		})
	}
	return out
}

const maxLeaderBody = 16 << 10

// AskLeader asks a node for the leader. A response without a leader is not an error; any other response is.
func (s *Server) AskLeader(ctx context.Context, id cluster.NodeID) (a splitbrain.Answer, address string, err error) {
	if address = s.httpAddress(id); address == "" {
		return a, "", fmt.Errorf("no HTTP address of node %s is known", id)
	}
	answer, err := s.forward.Get(ctx, forward.Caller{}, address, apiv1.PathLeader, maxLeaderBody)
	if err != nil {
		return a, address, err
	}
	a, err = splitbrain.ReadAnswer(id, answer.Status, answer.Header, answer.Body)
	return a, address, err
}

// wireVerdict returns the name of a verdict in responses. A process that missed a recovery takes no part, as one that
// does not answer; the detail of its finding tells them apart.
func wireVerdict(v splitbrain.Verdict) string {
	if v == splitbrain.OldGeneration {
		return string(splitbrain.Unreachable)
	}
	return string(v)
}
