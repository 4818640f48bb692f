package sim

import (
	"testing"
	"time"

	"northstar/chaos/testenv"
)

// A node that comes back with an empty disk is refused permanently and neither
// votes nor keeps the others from going on.
func TestSimWiped(t *testing.T) {
	for _, seed := range seeds(t, testenv.Repeats(5)) {
		cfg := DefaultConfig(seed, 3)
		cfg.Weights[WipeRejoin] = 3
		if _, report := Run(t, cfg); report != "" {
			t.Errorf("NORTHSTAR_SIM_SEED=%d go test ./chaos/sim -run '%s$'\n%s", seed, t.Name(), report)
		}
	}
}

// Disks lost in the first moments of a cluster: n1 has elected and stored with n3
// (and n2, of five), and is wiped. The others have never been reached by a leader
// with a cluster ID, and meet the wiped node while those who know the ID are cut
// off. The two sides must not both go on; in the end the others do.
var firstMoments = []struct {
	name  string
	nodes int
	plan  []Fault
}{
	{"bootstraps again", 3, []Fault{
		{Kind: Isolate, A: 1, At: 100 * time.Millisecond, For: 1900 * time.Millisecond},
		{Kind: WipeRejoin, A: 0, At: time.Second, For: 100 * time.Millisecond},
		{Kind: Isolate, A: 2, At: time.Second, For: 3 * time.Second},
	}},
	{"waits to be admitted, and is asked for its vote", 3, []Fault{
		{Kind: Isolate, A: 1, At: 100 * time.Millisecond, For: 1900 * time.Millisecond},
		{Kind: WipeRejoin, A: 0, At: time.Second, For: 100 * time.Millisecond},
		{Kind: Isolate, A: 2, At: 1600 * time.Millisecond, For: 3 * time.Second},
	}},
	{"asks a node that has restarted since it met it", 3, []Fault{
		{Kind: Isolate, A: 1, At: 100 * time.Millisecond, For: 1900 * time.Millisecond},
		{Kind: PowerLoss, A: 1, At: 800 * time.Millisecond, For: 500 * time.Millisecond},
		{Kind: WipeRejoin, A: 0, At: time.Second, For: 100 * time.Millisecond},
		{Kind: Isolate, A: 2, At: time.Second, For: 3 * time.Second},
	}},
	{"asks a node that it had never met", 3, []Fault{
		{Kind: CutOne, A: 0, B: 1, For: 2 * time.Second},
		{Kind: CutOne, A: 1, B: 0, For: 2 * time.Second},
		{Kind: Isolate, A: 1, At: 100 * time.Millisecond, For: 1900 * time.Millisecond},
		{Kind: WipeRejoin, A: 0, At: time.Second, For: 100 * time.Millisecond},
		{Kind: Isolate, A: 2, At: time.Second, For: 3 * time.Second},
	}},
	{"asks two of five", 5, []Fault{
		{Kind: Split, Bits: 0b11000, At: 100 * time.Millisecond, For: 1900 * time.Millisecond},
		{Kind: WipeRejoin, A: 0, At: time.Second, For: 100 * time.Millisecond},
		{Kind: Isolate, A: 1, At: time.Second, For: 3 * time.Second},
		{Kind: Isolate, A: 2, At: time.Second, For: 3 * time.Second},
	}},
}

func TestSimWipedInTheFirstMoments(t *testing.T) {
	for _, tt := range firstMoments {
		t.Run(tt.name, func(t *testing.T) {
			for _, seed := range seeds(t, testenv.Repeats(3)) {
				cfg := DefaultConfig(seed, tt.nodes)
				cfg.Plan, cfg.Length = tt.plan, 5*time.Second
				if _, report := Run(t, cfg); report != "" {
					t.Errorf("seed %d\n%s", seed, report)
				}
			}
		})
	}
}
