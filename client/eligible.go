package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// eligibleInterval is the time between two calls of a candidate's Eligible.
const eligibleInterval = time.Second

// errWithdrawn is the cause of the end of a campaign whose candidate became ineligible.
var errWithdrawn = errors.New("the candidate is no longer eligible")

// WhileEligible campaigns while eligible returns nil. If eligible returns an error, or nothing for DefaultCheckTimeout,
// it ends the campaign, calls withdraw, and campaigns again later. It is exported for implementations of Elector.
// withdraw releases what the candidate still holds of earlier campaigns; nil: there is nothing to release.
func WhileEligible(
	ctx context.Context, eligible func(ctx context.Context) error, withdraw func(),
	campaign func(ctx context.Context) (*Leadership, error),
) (*Leadership, error) {
	check := eligibility(eligible)
	var reason error
	for {
		err := check.run(ctx)
		if err == nil {
			var l *Leadership
			l, err = campaignWhile(ctx, check, campaign)
			if !errors.Is(err, errWithdrawn) {
				return l, err
			}
		}
		if reason == nil || ctx.Err() == nil { // the end of ctx does not hide the reason
			reason = err
		}
		if withdraw != nil {
			withdraw()
		}
		if err := pause(ctx, eligibleInterval); err != nil {
			return nil, fmt.Errorf("wait until this process is eligible (%w): %w", reason, err)
		}
	}
}

// eligibility returns the check of a candidate's Eligible, which may hang.
func eligibility(eligible func(ctx context.Context) error) *healthCheck {
	return &healthCheck{healthy: eligible, timeout: DefaultCheckTimeout}
}

// campaignWhile campaigns until the check returns an error. In that case, the error is errWithdrawn.
func campaignWhile(
	ctx context.Context, check *healthCheck, campaign func(ctx context.Context) (*Leadership, error),
) (*Leadership, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for pause(ctx, eligibleInterval) == nil {
			if check.run(ctx) != nil {
				cancel(errWithdrawn)
			}
		}
	}()
	l, err := campaign(ctx)
	withdrawn := errors.Is(context.Cause(ctx), errWithdrawn)
	cancel(nil)
	<-stopped
	if err != nil && withdrawn {
		return nil, errWithdrawn
	}
	return l, err
}
