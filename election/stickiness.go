package election

import "northstar/cluster"

// MayIgnoreLeader says whether a voter has evidence of its own that its leader is gone,
// so that it need not be loyal to it when another stands: the leader's process
// is confirmed dead, or it has been silent for TimeoutMin. With a lease, only
// silence counts.
func MayIgnoreLeader(mine cluster.Claim, p Params) bool {
	if mine.Role == cluster.Leader {
		return false
	}
	silent := mine.LeaderSilence >= p.TimeoutMin
	return silent || mine.LeaderProcessDead && !p.Lease
}
