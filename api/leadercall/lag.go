package leadercall

import (
	"context"

	"northstar/cluster"
)

// Lag returns how many entries this node has yet to apply of those that were committed when it asked the leader. The
// leader proves that it still leads. Callers at the same time share one question, which takes timeout-max at most: any
// client may ask. An error means that nothing is known.
func (c *Calls) Lag(ctx context.Context) (uint64, error) {
	leader := c.Forward.Leader.Current().ID
	lag, err, _ := c.lags.Do(string(leader), func() (any, error) {
		// The context of the first caller must not end the shared question.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.TimeoutMax)
		defer cancel()
		return c.askLag(ctx, leader)
	})
	if err != nil {
		return 0, err
	}
	return lag.(uint64), nil
}

func (c *Calls) askLag(ctx context.Context, leader cluster.NodeID) (uint64, error) {
	if leader == "" || leader == c.Forward.Self || c.Call == nil {
		return 0, cluster.Errorf(cluster.CodeNoLeader, "node %s knows no other node that leads", c.Forward.Self)
	}
	committed, err := c.leadersIndex(ctx, leader)
	if err != nil {
		return 0, err
	}
	return committed - min(committed, c.Consensus.Applied()), nil
}

// leadersIndex asks for the read index.
func (c *Calls) leadersIndex(ctx context.Context, leader cluster.NodeID) (uint64, error) {
	by := c.Consensus.Asker() // after the question began
	got, err := c.ask(ctx, leader, readIndex, message{Index: by.Applied, Term: by.Term, Incarnation: by.Incarnation})
	return got.Index, err
}
