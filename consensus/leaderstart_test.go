package consensus

import (
	"slices"
	"testing"
	"time"

	"northstar/state"
)

// TestLeaderStart_ClockOfAnEarlierLeader: how long an election took does not depend on whether the clock of the
// previous leader was ahead of the winner's, or behind it.
func TestLeaderStart_ClockOfAnEarlierLeader(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for _, ahead := range []time.Duration{-time.Hour, -time.Second, 0, time.Second, time.Hour} {
		s := state.New(state.Options{})
		s.Apply(1, 1, []state.Command{{
			Kind: state.KindPut, Now: now.Add(ahead).UnixNano(), Put: &state.Put{Key: "a"},
		}})
		won := Election{
			Candidate: "n1", Trigger: "timeout", StartedAt: now.Add(-4 * time.Millisecond),
			Leaderless: 10 * time.Millisecond,
		}
		start := leaderStartOf(won, 2, now, s.View().Time())
		s.Apply(2, 2, []state.Command{{Kind: state.KindLeaderStart, Now: now.UnixNano(), LeaderStart: start}})
		if got := s.View().Gaps("timeout"); !slices.Equal(got, []time.Duration{10 * time.Millisecond}) {
			t.Errorf("%v ahead: the gaps are %v", ahead, got)
		}
		e := s.View().Elections()[0]
		if took := time.Duration(e.LedAt - e.StartedAt); took != 4*time.Millisecond {
			t.Errorf("%v ahead: the election took %v", ahead, took)
		}
	}
	unknown := leaderStartOf(Election{Candidate: "n1"}, 2, now, now.Add(time.Hour))
	if unknown.StartedAt != 0 || unknown.LeaderlessAt != 0 {
		t.Errorf("unknown times: %+v", unknown)
	}
}
