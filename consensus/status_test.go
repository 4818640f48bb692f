package consensus

import (
	"testing"
	"time"

	"northstar/cluster"
)

func TestUnansweredPeers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		leaderless time.Duration
		contacted  bool
		last       time.Duration
		want       time.Duration
	}{
		"the leader has just gone": {leaderless: time.Second, contacted: true, last: time.Hour},
		"it has answered since":    {leaderless: time.Minute, contacted: true, last: time.Second},
		"it answered, and does so no more": {
			leaderless: time.Minute, contacted: true, last: 20 * time.Second,
			want: 20 * time.Second,
		},
		"it has not answered since": {
			leaderless: time.Minute, contacted: true, last: time.Hour,
			want: time.Minute,
		},
		"it never answered":                      {leaderless: time.Minute, want: time.Minute},
		"it never answered, there was no time":   {leaderless: time.Second},
		"a leader is known: nobody was asked":    {contacted: true, last: time.Hour},
		"a leader is known, and nothing of this": {},
	} {
		if got := unanswered(tc.leaderless, cluster.PeerStatus{
			Contacted:   tc.contacted,
			LastContact: tc.last,
		}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
