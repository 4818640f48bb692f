// Package explore searches every state of a small cluster that the product's election rules allow, up to a bound.
//
// The environment is a model: three nodes with term, vote and log, a bag of messages that may be lost and reordered,
// crashes, one cut link, time in ticks. The decisions are the product's own functions: who starts an election
// (election), who may have a vote (transport.VoteGuard, cluster.Admit), what must be durable before it leaves a node
// (raftnode.Unwritten), how long a lease lasts (consensus.LeaseLimits), up to where a follower commits
// (transport.CommitLimit). DESIGN.md has the rest.
package explore
