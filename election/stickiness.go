package election

import "northstar/cluster"

// MayIgnoreLeader reports whether a voter has its own evidence that its leader failed, so that leader
// stickiness does not apply: the leader's process is confirmed dead, or it has been silent for TimeoutMin. With
// a lease, only silence counts.
func MayIgnoreLeader(mine cluster.Claim, p Params) bool {
	if mine.Role == cluster.Leader {
		return false
	}
	silent := mine.LeaderSilence >= p.TimeoutMin
	return silent || mine.LeaderProcessDead && !p.Lease
}
