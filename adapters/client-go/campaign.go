package clientgo

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"northstar/client"
)

// campaign is one candidacy for the role. It ends when the loop takes the tenure, or ends without it.
type campaign struct {
	l       *Lock
	ctx     context.Context // of the loop's first Get: the end of its attempt to become leader
	done    chan struct{}   // closed with elected or err
	elected *client.Leadership
	err     error
	seen    chan client.Holder // capacity 1: the newest holder that no Get has returned
}

// newCampaign starts a campaign. The caller holds l.mu.
func (l *Lock) newCampaign(ctx context.Context) *campaign {
	if l.expiry != nil {
		l.expiry.Stop()
		l.expiry = nil
	}
	c := &campaign{l: l, ctx: ctx, done: make(chan struct{}), seen: make(chan client.Holder, 1)}
	go c.run()
	go c.observe()
	return c
}

// run campaigns. If the loop gives up before it takes the tenure, run ends the session.
func (c *campaign) run() {
	c.elected, c.err = c.l.candidate.Campaign(c.ctx)
	close(c.done)
	if c.err != nil {
		return
	}
	context.AfterFunc(c.ctx, func() {
		c.l.mu.Lock()
		abandoned := c.l.waiting == c
		if abandoned {
			c.l.waiting = nil
		}
		c.l.mu.Unlock()
		if abandoned {
			c.l.end()
		}
	})
}

// observe notes other holders while the candidate waits.
func (c *campaign) observe() {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	go func() {
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	for h, err := range c.l.candidate.Observe(ctx) {
		if err != nil {
			return
		}
		if s := c.l.candidate.Session(); !h.Held() || s != nil && s.ID() == h.Session {
			continue
		}
		select {
		case <-c.seen: // no Get has asked for the older one
		default:
		}
		c.seen <- h
	}
}

// wait waits for news: the election of this candidate, or of another one.
func (c *campaign) wait(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	select {
	case <-c.done:
	default:
		select {
		case <-c.done:
		case h := <-c.seen:
			return c.l.record(h)
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("campaign for role %s: %w", c.l.cfg.Role, context.Cause(ctx))
		}
	}
	if c.err != nil {
		return nil, nil, c.err
	}
	return c.l.record(c.elected.Holder)
}

// over reports whether another campaign must begin: this one has failed, its loop has given up, or its tenure was
// lost before the loop took it.
func (c *campaign) over() bool {
	select {
	case <-c.done:
		return c.err != nil || c.ctx.Err() != nil || c.elected.Cause() != nil
	default:
		return c.ctx.Err() != nil
	}
}

// won returns the tenure of a campaign that has ended; nil if there is none.
func (c *campaign) won() *client.Leadership {
	if c == nil {
		return nil
	}
	select {
	case <-c.done:
		return c.elected
	default:
		return nil
	}
}
