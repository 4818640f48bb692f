package sim

import (
	"slices"
	"testing"
	"time"

	"northstar/chaos/traffic"
	"northstar/node"
)

// The preferred node fails under writes, comes back, and takes leadership over
// again: that takes no longer than a transfer to it that an operator requests. That
// its log then holds what was committed is checked in every run.
//
// Where each sync of all disks takes 30 ms, either takes some 95 ms from the TimeoutNow on: its term, its own vote and
// the first entries wait for one after the other. Writes waited for 157 to 267 ms there, with its appends before and
// the write itself.
func TestSimPreferredNodeReturns(t *testing.T) {
	for name, disk := range map[string]time.Duration{
		"ordinary disks":       0,
		"all disks take 30 ms": 30 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			requested, own := preferredReturns(t, 0, disk)
			t.Logf("requested transfers to it took %v, its take-overs %v", requested, own)
			opt := DefaultDiskOptions()
			if most := slices.Max(requested) + 3*opt.FsyncMax + disk; slices.Max(own) > most {
				t.Errorf("a take-over took %v, want at most %v", slices.Max(own), most)
			}
		})
	}
}

// preferredReturns returns the times that the preferred node, n1, took from a TimeoutNow
// to its first entries: in transfers that an operator requested, and in its own takeovers.
func preferredReturns(t *testing.T, seed uint64, disk time.Duration) (requested, own []time.Duration) {
	const delay, away, apart = time.Second, 2 * time.Second, 6 * time.Second
	cfg := DefaultConfig(seed, 3)
	cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners = 2, 0, 0, 0
	cfg.AnyNodeRatio, cfg.ThinkTime = 0, traffic.Between(0, 10*time.Millisecond)
	for n := range 3 {
		cfg.Plan = append(cfg.Plan, Fault{Kind: SlowDisk, A: n, For: time.Hour, Delay: disk})
	}
	first := 4 * time.Second // n1 leads by then
	cfg.Length = first
	var requests []time.Duration
	for _, kind := range []FaultKind{Kill, PowerLoss, Pause} {
		order := cfg.Length + apart + delay/2 // before n1 takes over on its own
		cfg.Plan = append(cfg.Plan, Fault{Kind: kind, A: 0, At: cfg.Length, For: away},
			Fault{Kind: Transfer, A: 0, B: 1, At: order - delay/2, For: away},
			Fault{Kind: Transfer, A: 1, B: 0, At: order, For: away})
		requests = append(requests, order)
		cfg.Length += apart + apart/2
	}
	v := placed(&cfg, func(c *node.Config) { c.Failover.TakeoverDelay = delay })
	if _, report := Run(t, cfg); report != "" {
		t.Fatal(report)
	}
	for _, won := range v.ordered() {
		led := won.at.Sub(v.start)
		if won.leader != "n1" || led < first {
			continue
		}
		took := &own
		if slices.ContainsFunc(requests, func(at time.Duration) bool { return led > at && led < at+delay/2 }) {
			took = &requested
		}
		*took = append(*took, won.wrote.Sub(won.timeoutNow))
	}
	if len(own) != len(requests) || len(requested) != len(requests) {
		t.Fatalf("%d take-overs and %d requested transfers of %d each", len(own), len(requested), len(requests))
	}
	return requested, own
}
