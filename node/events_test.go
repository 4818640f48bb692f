package node

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/state"
	"northstar/telemetry"
)

func servers(voters ...cluster.NodeID) (all []cluster.Server) {
	for _, id := range voters {
		all = append(all, cluster.Server{ID: id, Suffrage: cluster.Voter})
	}
	return all
}

func TestDiffEvents(t *testing.T) {
	base := func(change func(*stateSnapshot)) stateSnapshot {
		o := stateSnapshot{
			status: cluster.NodeStatus{Lifecycle: cluster.Active, Servers: servers("n1", "n2")},
			members: map[cluster.NodeID]cluster.Member{
				"n1": {ID: "n1", Priority: 100, Eligible: true},
				"n2": {ID: "n2", Priority: 100, Eligible: true, HTTPAddress: "a:1"},
			},
			peers: map[cluster.NodeID]cluster.PeerStatus{"n2": {ID: "n2", Healthy: true}},
		}
		if change != nil {
			change(&o)
		}
		return o
	}
	for _, c := range []struct {
		name       string
		prev, next stateSnapshot
		want       []string // "!" in front of those that need attention
	}{
		{"nothing", base(nil), base(nil), nil},
		{"first configuration", stateSnapshot{}, base(nil), nil},
		{"joins", base(nil), base(func(o *stateSnapshot) {
			o.status.Servers = append(o.status.Servers, cluster.Server{ID: "n3", Suffrage: cluster.NonVoter})
		}), []string{"member: member n3 joined as nonvoter"}},
		{
			"promoted", base(func(o *stateSnapshot) { o.status.Servers[1].Suffrage = cluster.NonVoter }), base(nil),
			[]string{"member: member n2 is now a voter"},
		},
		{
			"leaves", base(nil), base(func(o *stateSnapshot) { o.status.Servers = o.status.Servers[:1] }),
			[]string{"member: member n2 was removed from the Raft configuration"},
		},
		{"record", base(nil), base(func(o *stateSnapshot) {
			o.members["n2"] = cluster.Member{ID: "n2", Priority: 5, Zone: "eu", HTTPAddress: "b:1"}
		}), []string{`member: member n2 has priority 5 (was 100), eligible set to false, is in zone "eu", has HTTP address b:1`}},
		{"sick", base(nil), base(func(o *stateSnapshot) {
			o.peers["n2"] = cluster.PeerStatus{ID: "n2", Reasons: []string{"no contact for 2s"}}
		}), []string{"!health: member n2 is not healthy: no contact for 2s"}},
		{
			"well", base(func(o *stateSnapshot) { o.peers["n2"] = cluster.PeerStatus{ID: "n2"} }), base(nil),
			[]string{"health: member n2 is healthy again"},
		},
		{
			"new leader looks for the first time", base(func(o *stateSnapshot) { o.peers = nil }),
			base(func(o *stateSnapshot) {
				o.peers["n2"] = cluster.PeerStatus{ID: "n2", Reasons: []string{"x"}}
			}),
			[]string{"!health: member n2 is not healthy: x"},
		},
		{"a new leader, and all are well", base(func(o *stateSnapshot) { o.peers = nil }), base(nil), nil},
		{
			"disk", base(nil), base(func(o *stateSnapshot) {
				o.status.Disk.Stalled, o.status.Disk.ReadOnly = true,
					true
			}),
			[]string{
				"!disk: disk stalled: an I/O operation does not complete",
				"!disk: the disk has less space left than the reserve: this node is read-only",
			},
		},
		{
			"disk recovers", base(func(o *stateSnapshot) { o.status.Disk.ReadOnly = true }), base(nil),
			[]string{"disk: disk space recovered: node accepts writes"},
		},
		{"dead", base(nil), base(func(o *stateSnapshot) {
			o.status.Lifecycle, o.status.DeadReason = cluster.Dead,
				"removed"
		}), []string{"!node: this node is dead: removed"}},
		{
			"warning", base(nil), base(func(o *stateSnapshot) { o.warnings = []string{"priority differs"} }),
			[]string{"!node: priority differs"},
		},
		{
			"old warning", base(func(o *stateSnapshot) { o.warnings = []string{"a"} }),
			base(func(o *stateSnapshot) { o.warnings = []string{"a"} }), nil,
		},
		{"paused", base(nil), base(func(o *stateSnapshot) {
			o.pause = pause{true, state.Settings{PausedUntil: 3e9, Operator: "anna", Reason: "new switch"}}
		}), []string{"!failover: automatic failover is paused until 1970-01-01T00:00:03Z, by anna: new switch"}},
		{"paused for longer", base(func(o *stateSnapshot) {
			o.pause = pause{true, state.Settings{PausedUntil: 3e9, Operator: "anna"}}
		}), base(func(o *stateSnapshot) {
			o.pause = pause{
				true,
				state.Settings{Operator: "anna"},
			}
		}), []string{"!failover: automatic failover is paused, by anna"}},
		{
			"paused still", base(func(o *stateSnapshot) { o.pause.paused = true }),
			base(func(o *stateSnapshot) { o.pause.paused = true }), nil,
		},
		{"resumed", base(func(o *stateSnapshot) { o.pause.paused = true }), base(func(o *stateSnapshot) {
			o.pause.set = state.Settings{AutoFailover: true, Operator: "anna", Reason: "done"}
		}), []string{"failover: automatic failover is on again, by anna: done"}},
		{"the pause runs out", base(func(o *stateSnapshot) {
			o.pause = pause{
				true,
				state.Settings{PausedUntil: 3e9, Operator: "anna"},
			}
		}), base(func(o *stateSnapshot) {
			o.pause.set = state.Settings{PausedUntil: 3e9, Operator: "anna"}
		}), []string{"failover: automatic failover resumed (pause expired)"}},
		{"set again as it was", base(nil), base(func(o *stateSnapshot) {
			o.pause.set = state.Settings{
				AutoFailover: true,
				Operator:     "anna",
			}
		}), nil},
		{
			"quota", base(nil), base(func(o *stateSnapshot) { o.quotaExceeded = true }),
			[]string{"!quota: quota exceeded: the state, or an identity's share of it, is full and does not grow"},
		},
		{
			"quota still", base(func(o *stateSnapshot) { o.quotaExceeded = true }),
			base(func(o *stateSnapshot) { o.quotaExceeded = true }), nil,
		},
		{
			"no quota any longer", base(func(o *stateSnapshot) { o.quotaExceeded = true }),
			base(func(o *stateSnapshot) { o.status.Role = cluster.Leader }),
			[]string{"quota: no request was refused by a quota for a minute"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, e := range diffEvents(c.prev, c.next) {
				line := e.Type + ": " + e.Message
				if e.warn {
					line = "!" + line
				}
				got = append(got, line)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// TestWokenLeaderWarnsOfNoPeer: after a pause of this process all peers seem silent until they are heard again. A peer
// that stays silent is reported.
func TestWokenLeaderWarnsOfNoPeer(t *testing.T) {
	for _, returns := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			eventLog := telemetry.NewEventLog("n1", "boot", 64, hclog.NewNullLogger())
			woke := time.Now().Add(8 * time.Second)
			look := func() stateSnapshot {
				now := time.Now()
				if now.Before(woke) && woke.Sub(now) < 3*time.Second {
					time.Sleep(time.Until(woke)) // the process is stopped
					now = woke
				}
				healthy := now.Before(woke) || returns && now.Sub(woke) > healthWarmup/2
				return stateSnapshot{peers: map[cluster.NodeID]cluster.PeerStatus{"n2": {ID: "n2", Healthy: healthy}}}
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { _ = recordEvents(ctx, eventLog, look) })
			time.Sleep(20 * time.Second)
			cancel()
			wg.Wait()
			items, _, _ := eventLog.Latest("health", 10)
			if want := map[bool]int{true: 0, false: 1}[returns]; len(items) != want {
				t.Errorf("peer returns %v: %d events, want %d: %+v", returns, len(items), want, items)
			}
		})
	}
}
