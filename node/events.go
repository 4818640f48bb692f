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

// stateSnapshot is the state that the journal's events are derived from.
type stateSnapshot struct {
	status  cluster.NodeStatus
	members map[cluster.NodeID]cluster.Member
	// set once this node has led for healthWarmup; other nodes know too little
	peers    map[cluster.NodeID]cluster.PeerStatus
	warnings []string
	pause    pause
}

// pause is the applied pause of automatic failover, by this node's clock.
type pause struct {
	paused bool
	set    state.Settings
}

// diffEvents returns the events for the difference between two snapshots.
func diffEvents(prev, next stateSnapshot) (events []journalEvent) {
	events = append(events, memberChanges(prev, next)...)
	events = append(events, healthChanges(prev, next)...)
	events = append(events, diskChanges(prev.status.Disk, next.status.Disk)...)
	events = append(events, lifecycleChanges(prev.status, next.status)...)
	events = append(events, pauseChanges(prev.pause, next.pause)...)
	for _, w := range next.warnings {
		if !slices.Contains(prev.warnings, w) {
			events = append(events, journalEvent{warn: true, Event: cluster.Event{Type: "node", Message: w}})
		}
	}
	return events
}

type journalEvent struct {
	cluster.Event
	warn bool
}

func memberEvent(id cluster.NodeID, format string, args ...any) journalEvent {
	return journalEvent{Event: cluster.Event{
		Type: "member", Message: fmt.Sprintf("member %s ", id) +
			fmt.Sprintf(format, args...), Fields: map[string]any{"member": string(id)},
	}}
}

func memberChanges(prev, next stateSnapshot) (events []journalEvent) {
	before, after := suffrages(prev.status), suffrages(next.status)
	if len(before) == 0 {
		return nil // the first configuration is not a change
	}
	for _, id := range sortedKeys(after) {
		switch old := before[id]; {
		case old == "":
			events = append(events, memberEvent(id, "joined as %s", after[id]))
		case old != after[id]:
			events = append(events, memberEvent(id, "is now a %s", after[id]))
		}
	}
	for _, id := range sortedKeys(before) {
		if after[id] == "" {
			events = append(events, memberEvent(id, "left the configuration"))
		}
	}
	for _, id := range sortedKeys(next.members) {
		old, known := prev.members[id]
		if what := recordChange(old, next.members[id]); known && what != "" {
			events = append(events, memberEvent(id, "%s", what))
		}
	}
	return events
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

func healthChanges(prev, next stateSnapshot) (events []journalEvent) {
	for _, id := range sortedKeys(next.peers) {
		old, known := prev.peers[id]
		now := next.peers[id]
		if !known {
			old.Healthy = true // a healthy first report is not an event
		}
		if old.Healthy == now.Healthy {
			continue
		}
		e := journalEvent{warn: !now.Healthy, Event: cluster.Event{
			Type: "health", Message: fmt.Sprintf("member %s is healthy again", id),
			Fields: map[string]any{"member": string(id)},
		}}
		if !now.Healthy {
			e.Message = fmt.Sprintf("member %s is not healthy: %s", id, strings.Join(now.Reasons, ", "))
		}
		events = append(events, e)
	}
	return events
}

func diskChanges(prev, next cluster.DiskState) (events []journalEvent) {
	note := func(was, is bool, bad, good string) {
		switch {
		case is && !was:
			events = append(events, journalEvent{warn: true, Event: cluster.Event{Type: "disk", Message: bad}})
		case was && !is:
			events = append(events, journalEvent{Event: cluster.Event{Type: "disk", Message: good}})
		}
	}
	note(prev.Stalled, next.Stalled, "disk stalled: an I/O operation does not complete", "the disk is working again")
	note(prev.ReadOnly, next.ReadOnly, "the disk has less space left than the reserve: this node is read-only",
		"disk space recovered: node accepts writes")
	return events
}

func lifecycleChanges(prev, next cluster.NodeStatus) []journalEvent {
	if next.Lifecycle == prev.Lifecycle || prev.Lifecycle == "" {
		return nil
	}
	e := journalEvent{Event: cluster.Event{Type: "node", Message: fmt.Sprintf("this node is %s", next.Lifecycle)}}
	if next.Lifecycle == cluster.Dead {
		e.warn = true
		e.Message += ": " + next.DeadReason
	}
	return []journalEvent{e}
}

// pauseChanges returns events for a pause of automatic failover that begins, changes or ends.
func pauseChanges(prev, next pause) []journalEvent {
	if prev == next || !prev.paused && !next.paused {
		return nil
	}
	e := journalEvent{warn: next.paused, Event: cluster.Event{
		Type:   "failover",
		Fields: map[string]any{"auto_failover": !next.paused},
	}}
	switch set := next.set; {
	case !next.paused && !set.AutoFailover:
		e.Message = "automatic failover resumed (pause expired)"
		return []journalEvent{e}
	case !next.paused:
		e.Message = "automatic failover is on again"
	default:
		e.Message = "automatic failover is paused"
		if set.PausedUntil != 0 {
			until := time.Unix(0, set.PausedUntil).UTC()
			e.Message += " until " + until.Format(time.RFC3339)
			e.Fields["paused_until"] = until
		}
	}
	if by := next.set.Operator; by != "" {
		e.Fields["operator"], e.Fields["reason"] = by, next.set.Reason
		e.Message += ", by " + by
		if next.set.Reason != "" {
			e.Message += ": " + next.set.Reason
		}
	}
	return []journalEvent{e}
}

func sortedKeys[V any](m map[cluster.NodeID]V) []cluster.NodeID {
	return slices.Sorted(maps.Keys(m))
}

// recordEvents appends state changes to the journal until ctx ends.
func recordEvents(ctx context.Context, journal *telemetry.Journal, look func() stateSnapshot) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	prev := look()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		next := look()
		for _, e := range diffEvents(prev, next) {
			e.Term = next.status.Term
			if e.warn {
				journal.Warn(e.Event)
			} else {
				journal.Append(e.Event)
			}
		}
		prev = next
	}
}
