package consensus

import (
	"context"
	"time"

	"northstar/consensus/raftnode"
	"northstar/state"
	"northstar/tracing"
)

// steps are the times of a traced proposal.
type steps struct{ submitted, applying, applied time.Time }

// stepsUntil returns the times of a traced proposal whose log entry was applied; nil if it is not traced.
func (p *proposal) stepsUntil(a raftnode.ApplyResult) *steps {
	if !p.traced {
		return nil
	}
	return &steps{p.submitted, a.Began, a.Ended}
}

// record ends the span of a proposal. Its steps are the append, which is the time from the hand-over to Raft until the
// entry is committed, and the apply.
func (s *steps) record(ctx context.Context, span tracing.Span, r state.Result, err error) {
	if s != nil {
		tracing.Record(ctx, "append", s.submitted, s.applying)
		tracing.Record(ctx, "apply", s.applying, s.applied)
	}
	if err == nil && r.Err != nil {
		err = r.Err
	}
	span.End(err)
}
