package sim

import (
	"slices"
	"testing"
	"time"

	"northstar/chaos/traffic"
	"northstar/cluster"
	"northstar/node"
)

// Nodes that may not lead still vote, and refuse candidates with an older log. With
// the leader they can be a majority, so that only they and the leader have the
// committed entries. Then no leader is elected until the old one is back, or an
// operator orders one of them to lead. Otherwise there is a leader within a second,
// also when a node that may not lead has the newest entry.
func TestSimBarredNodeHasTheNewestLog(t *testing.T) {
	const cutAt, away = 9 * time.Second, 3 * time.Second
	for _, tt := range []struct {
		name   string
		nodes  int
		barred []cluster.NodeID
		behind []int         // nodes that the leader does not reach before it dies
		cut    time.Duration // for so long
		waits  bool
		order  time.Duration // that the first barred node shall lead, so long after the loss
	}{
		{
			name: "one of three", nodes: 3, barred: []cluster.NodeID{"n2"}, behind: []int{2}, cut: time.Second,
			waits: true,
		},
		{
			name: "one of three, by order", nodes: 3, barred: []cluster.NodeID{"n2"}, behind: []int{2},
			cut:   time.Second,
			order: 1500 * time.Millisecond,
		},
		{
			name: "two of five", nodes: 5, barred: []cluster.NodeID{"n2", "n3"}, behind: []int{3, 4}, cut: time.Second,
			waits: true,
		},
		{
			name: "one of five", nodes: 5, barred: []cluster.NodeID{"n2"}, behind: []int{2, 3, 4},
			cut: 100 * time.Millisecond,
		},
	} {
		newer := 0                    // runs in which the barred node holds the newest entry
		for seed := range uint64(2) { // one for each way to bar a node
			cfg := DefaultConfig(seed, tt.nodes)
			cfg.Length, cfg.Clients, cfg.ThinkTime, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners = 15*time.Second, 3,
				traffic.Between(0, 5*time.Millisecond), 0, 0, 0
			lost := cutAt + tt.cut
			for _, n := range tt.behind {
				cfg.Plan = append(cfg.Plan, Fault{
					Kind: CutOne, A: 0, B: n, At: cutAt,
					For: tt.cut + away - time.Second,
				})
			}
			cfg.Plan = append(cfg.Plan, Fault{Kind: Kill, A: 0, At: lost, For: away})
			if tt.order > 0 {
				cfg.Plan = append(cfg.Plan, Fault{Kind: Emergency, A: 2, B: 1, At: lost + tt.order})
			}
			cfg.MaxGap = away + 2*time.Second
			v := placed(&cfg, func(c *node.Config) { // n1 leads by its priority
				c.Failover.TakeoverDelay = time.Second
				if slices.Contains(tt.barred, c.ID) && seed%2 == 0 {
					c.Priority = 0
				} else if slices.Contains(tt.barred, c.ID) {
					c.Eligible = false
				}
			})
			if _, report := Run(t, cfg); report != "" {
				t.Fatal(report)
			}
			before, after, ok := around(v.ordered(), v.start.Add(lost))
			if !ok || before.leader != "n1" {
				t.Fatalf("%s, seed %d: %s led, and then %s", tt.name, seed, before.leader, after.leader)
			}
			took := after.at.Sub(v.start.Add(lost))
			t.Logf("%s, seed %d: a leader %v after the loss: %s, with %v", tt.name, seed, took, after.leader,
				after.logs)
			if slices.Contains(tt.barred, after.leader) != (tt.order > 0) {
				t.Errorf("%s, seed %d: %s leads", tt.name, seed, after.leader)
			}
			from := tt.order
			if tt.waits {
				from = away
			}
			if took < from || took > from+time.Second {
				t.Errorf("%s, seed %d: a leader after %v, want one within 1 s of %v", tt.name, seed, took, from)
			}
			if after.logs[tt.barred[0]].compare(after.logs[after.leader]) > 0 {
				newer++
			}
		}
		// Whether a write is on its way at the blow hangs on the schedule.
		if !tt.waits && tt.order == 0 && newer == 0 {
			t.Errorf("%s: in no run does the barred node hold the newest entry", tt.name)
		}
	}
}
