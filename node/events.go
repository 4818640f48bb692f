package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"northstar/cluster"
	"northstar/state"
	"northstar/telemetry"
)

const (
	// pollInterval is how often the node looks for state changes that have no notification.
	pollInterval = 250 * time.Millisecond
	// healthWarmup is how long a new leader waits for contact before it reports a node as unhealthy.
	healthWarmup = time.Second
)

// stateSnapshot is the state that the event log's events are derived from.
type stateSnapshot struct {
	status  cluster.NodeStatus
	members map[cluster.NodeID]cluster.Member
	// set once this node has led for healthWarmup; other nodes know too little
	peers    map[cluster.NodeID]cluster.PeerStatus
	warnings []string
	pause    pause

	quotaExceeded bool
	stateBytes    int64
	limits        state.Limits
}

// pause is the applied pause of automatic failover, by this node's clock.
type pause struct {
	paused bool
	set    state.Settings
}

// diffEvents returns the events for the difference between two snapshots.
func diffEvents(prev, next stateSnapshot) (events eventList) {
	events.addMembers(prev, next)
	events.addHealth(prev, next)
	events.addDisk(prev.status.Disk, next.status.Disk)
	events.addLifecycle(prev.status, next.status)
	events.addPause(prev.pause, next.pause)
	events.addQuota(prev, next)
	for _, w := range next.warnings {
		if !slices.Contains(prev.warnings, w) {
			events.add(true, "node", w, nil)
		}
	}
	return events
}

type eventList []loggedEvent

// loggedEvent is an event; warn is set for one that needs attention.
type loggedEvent struct {
	cluster.Event
	warn bool
}

func (l *eventList) add(warn bool, kind, message string, fields map[string]any) {
	*l = append(*l, loggedEvent{cluster.Event{Type: kind, Message: message, Fields: fields}, warn})
}

func (l *eventList) addMember(id cluster.NodeID, format string, args ...any) {
	message := fmt.Sprintf("member %s ", id) + fmt.Sprintf(format, args...)
	l.add(false, "member", message, map[string]any{"member": string(id)})
}

func (l *eventList) addMembers(prev, next stateSnapshot) {
	before, after := suffrages(prev.status), suffrages(next.status)
	if len(before) == 0 {
		return // the first configuration is not a change
	}
	for _, id := range sortedKeys(after) {
		switch old := before[id]; {
		case old == "":
			l.addMember(id, "joined as %s", after[id])
		case old != after[id]:
			l.addMember(id, "is now a %s", after[id])
		}
	}
	for _, id := range sortedKeys(before) {
		if after[id] == "" {
			l.addMember(id, "was removed from the Raft configuration")
		}
	}
	for _, id := range sortedKeys(next.members) {
		old, known := prev.members[id]
		if what := recordChange(old, next.members[id]); known && what != "" {
			l.addMember(id, "%s", what)
		}
	}
}

func suffrages(s cluster.NodeStatus) map[cluster.NodeID]cluster.Suffrage {
	m := make(map[cluster.NodeID]cluster.Suffrage, len(s.Servers))
	for _, server := range s.Servers {
		m[server.ID] = server.Suffrage
	}
	return m
}

// recordChange describes a change of a member record, "" if nothing visible changed.
func recordChange(old, now cluster.Member) string {
	var what []string
	note := func(changed bool, format string, args ...any) {
		if changed {
			what = append(what, fmt.Sprintf(format, args...))
		}
	}
	note(old.Priority != now.Priority, "has priority %d (was %d)", now.Priority, old.Priority)
	note(old.Eligible != now.Eligible, "eligible set to %v", now.Eligible)
	note(old.Zone != now.Zone, "is in zone %q", now.Zone)
	note(old.HTTPAddress != now.HTTPAddress && old.HTTPAddress != "", "has HTTP address %s", now.HTTPAddress)
	note(old.RaftAddress != now.RaftAddress && old.RaftAddress != "", "has raft address %s", now.RaftAddress)
	note(old.Lifecycle != now.Lifecycle && old.Lifecycle != "", "is %s", now.Lifecycle)
	note(old.Version != now.Version && old.Version != "", "runs version %s", now.Version)
	note(old.Incarnation != now.Incarnation && now.Incarnation == "",
		"re-admitted: may rejoin with a new data directory")
	return strings.Join(what, ", ")
}

func (l *eventList) addHealth(prev, next stateSnapshot) {
	for _, id := range sortedKeys(next.peers) {
		old, known := prev.peers[id]
		now := next.peers[id]
		if healthy := old.Healthy || !known; healthy == now.Healthy { // a healthy first report is not an event
			continue
		}
		message := fmt.Sprintf("member %s is healthy again", id)
		if !now.Healthy {
			message = fmt.Sprintf("member %s is not healthy: %s", id, strings.Join(now.Reasons, ", "))
		}
		l.add(!now.Healthy, "health", message, map[string]any{"member": string(id)})
	}
}

func (l *eventList) addDisk(prev, next cluster.DiskState) {
	note := func(was, is bool, bad, good string) {
		switch {
		case is && !was:
			l.add(true, "disk", bad, nil)
		case was && !is:
			l.add(false, "disk", good, nil)
		}
	}
	note(prev.Stalled, next.Stalled, "disk stalled: an I/O operation does not complete", "the disk is working again")
	note(prev.ReadOnly, next.ReadOnly, "the disk has less space left than the reserve: this node is read-only",
		"disk space recovered: node accepts writes")
}

func (l *eventList) addLifecycle(prev, next cluster.NodeStatus) {
	if next.Lifecycle == prev.Lifecycle || prev.Lifecycle == "" {
		return
	}
	message, dead := fmt.Sprintf("this node is %s", next.Lifecycle), next.Lifecycle == cluster.Dead
	if dead {
		message += ": " + next.DeadReason
	}
	l.add(dead, "node", message, nil)
}

// addPause adds an event for a pause of automatic failover that begins, changes or ends.
func (l *eventList) addPause(prev, next pause) {
	if prev == next || !prev.paused && !next.paused {
		return
	}
	set, fields, message := next.set, map[string]any{"auto_failover": !next.paused}, "automatic failover is paused"
	switch {
	case !next.paused && !set.AutoFailover:
		l.add(false, "failover", "automatic failover resumed (pause expired)", fields)
		return
	case !next.paused:
		message = "automatic failover is on again"
	case set.PausedUntil != 0:
		until := time.Unix(0, set.PausedUntil).UTC()
		message += " until " + until.Format(time.RFC3339)
		fields["paused_until"] = until
	}
	if set.Operator != "" {
		fields["operator"], fields["reason"] = set.Operator, set.Reason
		message += ", by " + set.Operator
		if set.Reason != "" {
			message += ": " + set.Reason
		}
	}
	l.add(next.paused, "failover", message, fields)
}

func sortedKeys[V any](m map[cluster.NodeID]V) []cluster.NodeID {
	return slices.Sorted(maps.Keys(m))
}

// recordEvents appends state changes to the event log until ctx ends.
func recordEvents(ctx context.Context, eventLog *telemetry.EventLog, look func() stateSnapshot) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	prev := look()
	var awake wakeDetector
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		next := look()
		if awake.justWoke(time.Now()) {
			next.peers = prev.peers // they seem silent because this process was
		}
		for _, e := range diffEvents(prev, next) {
			e.Term = next.status.Term
			if e.warn {
				eventLog.Warn(e.Event)
			} else {
				eventLog.Append(e.Event)
			}
		}
		prev = next
	}
}

// wakeDetector notices that this process stood still.
type wakeDetector struct{ lastLook, wokeAt time.Time }

// justWoke is called at each look. It reports whether the process stood still so recently that its peers may not have
// been heard since.
func (w *wakeDetector) justWoke(now time.Time) bool {
	if !w.lastLook.IsZero() && now.Sub(w.lastLook) > 2*pollInterval {
		w.wokeAt = now
	}
	w.lastLook = now
	return !w.wokeAt.IsZero() && now.Sub(w.wokeAt) < healthWarmup
}
