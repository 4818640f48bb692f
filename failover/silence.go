package failover

import (
	"fmt"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/election"
)

const (
	// armStep is how much earlier than necessary the silence check may be due: not each sign of life moves it.
	armStep = 5 * time.Millisecond
	// lateLimit is how late a check may run. A process that is later did not run, and is no witness of a silence.
	lateLimit = 10 * time.Millisecond
	// stoppedFor is how long a node's claims say that its process had stopped.
	stoppedFor = 5 * time.Second
	// needlessTime is how long after an election by silence its old leader is watched.
	needlessTime = time.Second
)

// silenceWatch knows when the leader was heard, for how long it may be silent, and whether this process runs on time.
// Safe for concurrent use.
type silenceWatch struct {
	mu        sync.Mutex
	estimator election.SilenceEstimator
	leader    leaderInstance // followed; zero: none
	asked     time.Time      // when the leader was last asked because it was silent
	stopped   time.Time      // when this process was last found to run again
	yielded   time.Time      // when the leader has said that it sends no appends; zero: not, or it leads on
	majority  majorityWatch  // of this node as the leader

	check *time.Timer // of Run; nil while that does not run
	armed time.Time   // when check was last set
	due   time.Time   // when check fires; zero while Run is awake
	quiet time.Time   // no check before
	// latest: Run is awake by then, however often the leader is heard: it has other things to look at
	latest time.Time

	suspect suspect
}

// suspect is the old leader of an election by silence, until it is known whether it lived.
type suspect struct {
	leader leaderInstance // zero: none
	// yielded: it said that it heard no majority. It speaks on, and has to show that it hears.
	yielded bool
	heard   time.Time // its last sign of life before the election
	began   time.Time // of the election
	again   time.Time // its first sign of life after that; zero: none
}

// open returns the timer of Run's checks.
func (w *silenceWatch) open() *time.Timer {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.check = time.NewTimer(maxCheckInterval)
	return w.check
}

func (w *silenceWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.check.Stop()
	w.check, w.due = nil, time.Time{}
}

// sleep sets the timer, before Run waits for it. Signs of life of the leader move it, but not before quiet.
func (w *silenceWatch) sleep(d time.Duration, quiet time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.quiet, w.latest = quiet, now.Add(maxCheckInterval)
	if s := &w.suspect; s.leader.id != "" {
		if due := s.began.Add(needlessTime); due.Before(w.latest) {
			w.latest = due
		}
	}
	w.arm(now, d)
}

// arm sets the timer. mu is held.
func (w *silenceWatch) arm(now time.Time, d time.Duration) {
	w.armed, w.due = now, now.Add(d)
	w.check.Reset(d)
}

// awake is called when Run no longer waits. It finds out whether this process runs on time.
func (w *silenceWatch) awake(timeoutMin time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.observe(time.Now(), timeoutMin)
	w.due = time.Time{}
}

// observe records that this process did not run if its check is late. mu is held.
func (w *silenceWatch) observe(now time.Time, timeoutMin time.Duration) {
	if w.due.IsZero() {
		return
	}
	late := now.Sub(w.due)
	if late > lateLimit {
		w.estimator.Stopped(late)
		w.majority.estimator.Stopped(late)
	}
	if late > timeoutMin/3 {
		w.stopped = now
	}
}

// hadStopped reports whether this process did not run a moment ago.
func (w *silenceWatch) hadStopped(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.due.IsZero() && now.Sub(w.due) > lateLimit || !w.stopped.IsZero() && now.Sub(w.stopped) < stoppedFor
}

// follow begins to watch a leader.
func (w *silenceWatch) follow(l leaderInstance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leader.id != l.id || w.leader.term != l.term {
		w.estimator.Follow()
		w.yielded = time.Time{}
	}
	w.leader = l
}

// OnHeard is called for each Raft message of a peer, with a nil claim, and for each of its claims. It does not block.
func (c *Controller) OnHeard(from cluster.NodeID, claim *cluster.Claim) {
	news, resumed := c.heard(from, claim, time.Now())
	if news {
		c.log.Info("a leader was replaced although it lived: with failover.silence = auto, silence is tolerated for longer "+
			"now", "term", claim.NeedlessTerm, "reported_by", from)
	}
	if resumed {
		c.log.Info("this leader hears a majority of the voters again")
		c.deps.Announce()
	}
	c.hearHang(claim)
}

// heard records a message. It reports whether the message tells of a needless election for the first time, and whether
// this leader, which yields, hears a majority with it.
func (c *Controller) heard(from cluster.NodeID, claim *cluster.Claim, now time.Time) (news, resumed bool) {
	w := &c.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if claim != nil {
		news = w.learn(from, claim, now)
	}
	if s := &w.suspect; s.leader.id == from && s.again.IsZero() && now.Sub(s.began) < needlessTime && s.livesBy(claim) {
		s.again = now
	}
	limit := &w.estimator
	switch {
	case w.majority.hear(c.cfg.Self, from, now):
		resumed, w.majority.yields = w.majority.yields, false
		limit = &w.majority.estimator
	case from != w.leader.id || claim != nil && claim.Role != cluster.Leader:
		return news, false
	case claim != nil && claim.Yields != "":
		if claim.Term != w.leader.term {
			return news, false
		}
		if w.yielded = now; c.cfg.Fast && !w.due.IsZero() {
			w.arm(now, max(minCheckInterval, w.quiet.Sub(now)))
		}
		return news, false
	case claim != nil && claim.Disk.Stalled: // it does not yield, or is of an earlier version
		return news, false
	default:
		if claim != nil { // an append may have been sent before
			w.yielded = time.Time{}
		}
		w.estimator.Heard(now)
	}
	w.observe(now, c.cfg.TimeoutMin)
	if c.cfg.Fast && !w.due.IsZero() && now.Sub(w.armed) >= armStep {
		next := max(doubt(limit.Threshold(now).Value), w.quiet.Sub(now))
		w.arm(now, min(next, max(minCheckInterval, w.latest.Sub(now))))
	}
	return news, resumed
}

// learn takes what a claim says of thresholds, and reports whether it tells of a needless election for the first time.
// A term above that of this node's leader does not count: it would outlast all real ones. Claims repeat it, so that a
// node that learns of its leader late hears it again. mu is held.
func (w *silenceWatch) learn(from cluster.NodeID, claim *cluster.Claim, now time.Time) (news bool) {
	if claim.NeedlessTerm <= max(w.leader.term, w.majority.term) {
		news = w.estimator.Needless(claim.NeedlessTerm, now)
		w.majority.estimator.Needless(claim.NeedlessTerm, now)
	}
	if claim.SilenceMeasured > 0 && from != w.leader.id {
		w.estimator.HeardFollower(from, claim.SilenceMeasured, now)
		w.majority.estimator.HeardFollower(from, claim.SilenceMeasured, now)
	}
	return news
}

// livesBy reports whether a message of the suspect shows that its replacement was needless; claim may be nil. A leader
// that heard nothing goes on sending: it has to know of the election.
func (s *suspect) livesBy(claim *cluster.Claim) bool {
	if s.yielded {
		return claim != nil && claim.BootID == s.leader.boot && claim.Term > s.leader.term
	}
	return claim == nil || claim.BootID == s.leader.boot
}

// doubt returns the silence from which the leader is asked whether it lives. It has the rest of the threshold for the
// answer.
func doubt(threshold time.Duration) time.Duration { return threshold * 2 / 3 }

// Silence returns for how long this node's leader may be silent before the survivors ask each other, and why; false if
// they never do (failover.fast).
func (c *Controller) Silence() (election.SilenceThreshold, bool) {
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	return c.watch.estimator.Threshold(time.Now()), c.cfg.Fast
}

// annotateSilence adds to a claim what this node knows of silences, its own too.
func (c *Controller) annotateSilence(claim *cluster.Claim) {
	now := time.Now()
	replaceable := claim.Disk.Hangs && claim.Role == cluster.Leader && c.Replaceable()
	w := &c.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.cfg.Fast {
		claim.SilenceLimit = w.estimator.Limit(now)
		// For a while: the claim that it leads on may be lost. If it still yields then, it has been silent for long.
		if now.Sub(w.yielded) < c.cfg.TimeoutMin {
			claim.SilenceLimit = election.YieldSilence
		}
		if t := w.estimator.Threshold(now); t.Source == election.SilenceMeasured {
			claim.SilenceMeasured = t.Value
		}
		claim.Yields = w.yieldCause(claim, replaceable)
	}
	claim.NeedlessTerm = w.estimator.RaisedBy(now)
	if ago := now.Sub(w.stopped); !w.stopped.IsZero() && ago < stoppedFor {
		claim.StoppedAgo = max(ago, 1)
	}
}

// yieldCause returns why a node with this claim lets the others elect, "" if it does not.
func (w *silenceWatch) yieldCause(claim *cluster.Claim, replaceable bool) cluster.YieldCause {
	switch {
	case claim.Role != cluster.Leader, claim.Paused:
		return ""
	case claim.Disk.Hangs && replaceable:
		return cluster.YieldDisk
	case w.majority.yields:
		return cluster.YieldUnheard
	}
	return ""
}

// askedFor returns how long ago the leader was asked in its present silence, 0 if it was not.
func (w *silenceWatch) askedFor(silence time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ago := time.Since(w.asked); ago < silence {
		return ago
	}
	return 0
}

// askLeader asks a leader that has been silent for a while, once. Its answer is a sign of life.
func (c *Controller) askLeader(mine cluster.Claim, l leaderInstance) {
	if !c.affectedBy(mine, l) || c.watch.askedFor(mine.LeaderSilence) > 0 {
		return
	}
	c.watch.mu.Lock()
	c.watch.asked = time.Now()
	c.watch.mu.Unlock()
	c.deps.Peers.Ask(l.id)
}

// watchSuspect watches the old leader of an election by silence that begins now, and follows term.
func (c *Controller) watchSuspect(ev election.Evidence, term uint64, silence time.Duration) {
	now := time.Now()
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	c.watch.suspect = suspect{
		leader: leaderInstance{ev.Leader, ev.BootID, term}, yielded: !c.watch.yielded.IsZero(),
		heard: now.Add(-silence), began: now,
	}
}

// checkSuspect finds out whether the last election by silence was needless, once its old leader has had needlessTime to
// be heard again. It returns the time until then, or the default.
func (c *Controller) checkSuspect(otherwise time.Duration) time.Duration {
	now := time.Now()
	c.watch.mu.Lock()
	s := c.watch.suspect
	if wait := s.began.Add(needlessTime).Sub(now); s.leader.id != "" && wait > 0 {
		c.watch.mu.Unlock()
		return min(wait, otherwise)
	}
	c.watch.suspect = suspect{}
	c.watch.mu.Unlock()
	if s.leader.id == "" || s.again.IsZero() {
		return otherwise
	}
	seen := c.deps.Peers.Claims()[s.leader.id]
	if !seen.Connected || seen.Claim.BootID != s.leader.boot || !seen.At.After(s.began) {
		return otherwise // another process, or it has gone again
	}
	silent := s.again.Sub(s.heard)
	stopped := seen.Claim.StoppedAgo > 0 && seen.At.Add(-seen.Claim.StoppedAgo).After(s.heard)
	if cause := election.NeedlessCause(silent, stopped, c.cfg.TimeoutMin); cause != "" {
		c.needless(s, silent, cause)
	}
	return otherwise
}

// needless records and reports an election whose old leader lived.
func (c *Controller) needless(s suspect, silent time.Duration, cause string) {
	term := s.leader.term + 1
	what := "its process had stopped for a while"
	if cause == election.NeedlessLate {
		what = "silence is tolerated for longer now"
		c.watch.mu.Lock()
		c.watch.estimator.Needless(term, time.Now())
		c.watch.majority.estimator.Needless(term, time.Now())
		c.watch.mu.Unlock()
	}
	c.candidacies.markNeedless(term, cause)
	c.deps.Needless(cause, cluster.Event{
		Type: "failover", Term: term,
		Message: fmt.Sprintf("the election of term %d was needless: node %s was heard again after %v: %s", term,
			s.leader.id, silent.Round(time.Millisecond), what),
		Fields: map[string]any{
			"kind": "needless_election", "cause": cause, "leader_id": string(s.leader.id),
			"silence_ms": silent.Milliseconds(),
		},
	})
}
