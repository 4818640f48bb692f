package election

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

const silenceTimeout = 150 * time.Millisecond

var silenceStart = time.Unix(1_000_000, 0)

func newEstimator() *SilenceEstimator {
	return &SilenceEstimator{Params: SilenceParams{TimeoutMin: silenceTimeout}}
}

// beat lets a leader be heard every gap for a while, and returns when that ends.
func beat(e *SilenceEstimator, at time.Time, gap, during time.Duration) time.Time {
	for end := at.Add(during); at.Before(end); {
		at = at.Add(gap)
		e.Heard(at)
	}
	return at
}

func TestSilenceThreshold_ComesDown(t *testing.T) {
	t.Parallel()
	e, at := newEstimator(), silenceStart
	if got := e.Threshold(at); got.Value != silenceTimeout || got.Source != SilenceLearning {
		t.Errorf("at the start: %v", got)
	}
	at = beat(e, at, 30*time.Millisecond, minContactTime+learning/2)
	if got := e.Threshold(at).Value; got < 90*time.Millisecond || got > 110*time.Millisecond {
		t.Errorf("after half of the time: %v", got)
	}
	at = beat(e, at, 30*time.Millisecond, learning/2+100*time.Millisecond)
	if got := e.Threshold(at); got.Value != 45*time.Millisecond || got.Source != SilenceMeasured ||
		got.Longest != 30*time.Millisecond {
		t.Errorf("after all of it: %v", got)
	}
}

// A node that has just begun to follow takes over what the others have measured, for as long as it hears of it.
func TestSilenceThreshold_BeginsWithOthers(t *testing.T) {
	t.Parallel()
	e, at := newEstimator(), silenceStart
	e.HeardFollower("n2", 60*time.Millisecond, at)
	e.HeardFollower("n3", 45*time.Millisecond, at)
	if got := e.Threshold(at); got.Value != 60*time.Millisecond || got.Source != SilenceLearning {
		t.Errorf("with two others: %v", got)
	}
	at = beat(e, at, 80*time.Millisecond, minContactTime+learning/2)
	if got := e.Threshold(at); got.Value != 120*time.Millisecond || got.Source != SilenceLearning {
		t.Errorf("with longer gaps of its own: %v", got)
	}
	if got := e.Threshold(silenceStart.Add(maxPeerAge)); got.Begun != silenceTimeout {
		t.Errorf("when nothing was heard of the others for long: %v", got)
	}
	e.HeardFollower("n4", time.Second, at)
	if got := e.Threshold(at).Begun; got != silenceTimeout {
		t.Errorf("with another that waits for longer than the timeout: %v", got)
	}
	at = beat(e, at, 30*time.Millisecond, learning)
	if got := e.Threshold(at); got.Source != SilenceMeasured || got.Value != 120*time.Millisecond {
		t.Errorf("after all of it: %v", got)
	}
}

func TestSilenceThreshold_FollowsTheLongestGap(t *testing.T) {
	t.Parallel()
	e := newEstimator()
	at := beat(e, silenceStart, 30*time.Millisecond, 20*time.Second)
	at = at.Add(80 * time.Millisecond)
	e.Heard(at)
	if got := e.Threshold(at).Value; got != 120*time.Millisecond {
		t.Errorf("after a gap of 80ms: %v", got)
	}
	at = beat(e, at, 30*time.Millisecond, 90*time.Second)
	if got := e.Threshold(at).Value; got != 120*time.Millisecond {
		t.Errorf("90s later: %v", got)
	}
	at = beat(e, at, 30*time.Millisecond, time.Minute)
	if got := e.Threshold(at).Value; got != 45*time.Millisecond {
		t.Errorf("after all windows: %v", got)
	}
	if got := e.Threshold(at.Add(maxGapAge)); got.Value != silenceTimeout || got.Contacts != 0 {
		t.Errorf("when all gaps are old: %v", got)
	}
}

func TestSilenceThreshold_Bounds(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	e, at := newEstimator(), silenceStart
	for i := range 200_000 {
		at = at.Add(time.Duration(r.ExpFloat64() * float64(time.Duration(1+i%40)*time.Millisecond)))
		switch r.IntN(2000) {
		case 0:
			e.Follow()
		case 1:
			e.Stopped(time.Duration(i) * time.Microsecond)
		case 2:
			e.Needless(uint64(i), at)
		default:
			e.Heard(at)
		}
		if got := e.Threshold(at); got.Value < minMeasured || got.Value > silenceTimeout {
			t.Fatalf("threshold %v", got)
		}
		if got := e.Limit(at); got < minMeasured || got > 2*silenceTimeout {
			t.Fatalf("limit %v", got)
		}
	}
	quick := newEstimator()
	if got := quick.Threshold(beat(quick, silenceStart, time.Millisecond, 20*time.Second)).Value; got != minMeasured {
		t.Errorf("of a leader heard each millisecond: %v", got)
	}
}

// A gap in which this process did not run is none of the leader's. Neither is one between two leaders, or at the
// beginning.
func TestSilenceThreshold_GapsThatDoNotCount(t *testing.T) {
	t.Parallel()
	e := newEstimator()
	at := beat(e, silenceStart, 30*time.Millisecond, 20*time.Second)
	at = at.Add(500 * time.Millisecond)
	e.Stopped(400 * time.Millisecond)
	e.Heard(at)
	at = beat(e, at, 30*time.Millisecond, time.Second).Add(500 * time.Millisecond)
	e.Follow()
	e.Heard(at)
	at = beat(e, at, 30*time.Millisecond, minContactTime/2).Add(140 * time.Millisecond) // a connection recovers
	e.Heard(at)
	if got := e.Threshold(at).Value; got != 45*time.Millisecond {
		t.Errorf("threshold %v", got)
	}
}

func TestSilenceLimit_AfterOwnStop(t *testing.T) {
	t.Parallel()
	e := newEstimator()
	at := beat(e, silenceStart, 30*time.Millisecond, 20*time.Second)
	if got := e.Limit(at); got != 45*time.Millisecond {
		t.Errorf("limit %v", got)
	}
	e.Stopped(60 * time.Millisecond)
	e.Stopped(40 * time.Millisecond)
	if got := e.Limit(at); got != 145*time.Millisecond {
		t.Errorf("after stops of 100ms: %v", got)
	}
	e.Stopped(time.Second)
	if got := e.Limit(at); got != 2*silenceTimeout {
		t.Errorf("of a process that stops again and again: %v", got)
	}
	e.Heard(at.Add(2 * time.Second))
	if got := e.Limit(at.Add(2 * time.Second)); got != 45*time.Millisecond {
		t.Errorf("once the leader was heard: %v", got)
	}
}

func TestSilenceThreshold_RaisedAfterNeedlessElection(t *testing.T) {
	t.Parallel()
	e := newEstimator()
	at := beat(e, silenceStart, 30*time.Millisecond, 20*time.Second)
	if !e.Needless(7, at) || e.Needless(7, at.Add(time.Minute)) || e.Needless(0, at) {
		t.Error("a term raises the threshold once")
	}
	if got := e.Threshold(at); got.Value != silenceTimeout || got.Source != SilenceRaised || got.RaisedBy != 7 ||
		e.RaisedBy(at) != 7 {
		t.Errorf("raised: %v", got)
	}
	at = beat(e, at, 30*time.Millisecond, raiseTime)
	if got := e.Threshold(at); got.Value != 45*time.Millisecond || e.RaisedBy(at) != 0 {
		t.Errorf("later: %v", got)
	}
}

func TestSilenceThreshold_Configured(t *testing.T) {
	t.Parallel()
	e := newEstimator()
	e.Params.Fixed = 60 * time.Millisecond
	e.Needless(7, silenceStart)
	if got := e.Threshold(silenceStart); got.Value != 60*time.Millisecond || got.String() != "60ms (failover.silence)" {
		t.Errorf("configured: %v", got)
	}
	e.Params.Lease = true
	if got := e.Threshold(silenceStart); got.Value != silenceTimeout || !strings.Contains(got.Reason(), "lease") {
		t.Errorf("with leases: %v", got)
	}
}

func TestNeedlessCause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		silent  time.Duration
		stopped bool
		want    string
	}{
		{90 * time.Millisecond, false, NeedlessLate},
		{90 * time.Millisecond, true, NeedlessLate},
		{silenceTimeout, true, NeedlessStopped},
		{silenceTimeout, false, ""}, // cut off
	} {
		if got := NeedlessCause(c.silent, c.stopped, silenceTimeout); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// Each voter's own limit decides about its report. An earlier version names none, and a lease allows no shorter one.
func TestDecideElection_SilenceLimits(t *testing.T) {
	t.Parallel()
	decide := func(mine, other time.Duration, otherSilent time.Duration, lease bool) Decision {
		servers := []cluster.Server{
			{ID: "n1", Suffrage: cluster.Voter},
			{ID: "n2", Suffrage: cluster.Voter},
			{ID: "n3", Suffrage: cluster.Voter},
		}
		claim := func(id cluster.NodeID, limit, silent time.Duration) cluster.Claim {
			return cluster.Claim{
				NodeID: id, Term: 5, Role: cluster.Follower, LeaderID: "n1", LeaderBootID: "b1", LastLogTerm: 5,
				LastLogIndex: 44, Priority: 100, Eligible: true, IsVoter: true, Lifecycle: cluster.Active,
				SilenceLimit: limit, LeaderSilence: silent,
			}
		}
		return DecideElection(Input{
			Now: silenceStart, Servers: servers, Mine: claim("n2", mine, 50*time.Millisecond),
			Responses: map[cluster.NodeID]cluster.ReceivedClaim{
				"n3": {Claim: claim("n3", other, otherSilent), At: silenceStart, Connected: true},
			},
			Evidence: Evidence{Leader: "n1", BootID: "b1", Term: 5, At: silenceStart},
			Params:   Params{TimeoutMin: silenceTimeout, Lease: lease},
		})
	}
	const limit = 45 * time.Millisecond
	for _, c := range []struct {
		name       string
		mine, peer time.Duration
		silent     time.Duration
		lease      bool
		want       bool
		again      time.Duration
	}{
		{"both silent", limit, limit, 50 * time.Millisecond, false, true, -1},
		{"the peer heard it recently", limit, limit, 40 * time.Millisecond, false, false, 5 * time.Millisecond},
		{
			"the peer waits for longer", limit, 90 * time.Millisecond, 50 * time.Millisecond, false, false,
			40 * time.Millisecond,
		},
		{"the peer is of an earlier version", limit, 0, 50 * time.Millisecond, false, false, 100 * time.Millisecond},
		{"this node waits for longer", 90 * time.Millisecond, limit, 50 * time.Millisecond, false, false, 0},
		{"a limit below the lowest", limit, 1, 2 * time.Millisecond, false, false, 3 * time.Millisecond},
		{"with leases", limit, limit, 50 * time.Millisecond, true, false, 0},
	} {
		v := decide(c.mine, c.peer, c.silent, c.lease)
		if v.StartElection != c.want || c.again >= 0 && v.After != c.again {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
}
