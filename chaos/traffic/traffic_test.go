package traffic

import (
	"testing"
	"testing/synctest"
	"time"

	"northstar/chaos/check"
)

// noCluster is a cluster that no client reaches.
type noCluster struct{ violations []check.Violation }

func (c *noCluster) Nodes() []Node              { return nil }
func (c *noCluster) Leader() int                { return 0 }
func (c *noCluster) Machine(string) *Machine    { return nil }
func (c *noCluster) Epoch() uint64              { return 0 }
func (c *noCluster) Key(int) string             { return "k" }
func (c *noCluster) Acknowledged()              {}
func (c *noCluster) Violated(v check.Violation) { c.violations = append(c.violations, v) }

// A gap lasts from the start-up or an acknowledgement to the next one, or to the end.
func TestCheckGap(t *testing.T) {
	t.Parallel()
	const ms, limit = time.Millisecond, time.Second
	for name, tt := range map[string]struct {
		acks []time.Duration
		end  time.Duration
		want int
	}{
		"none in the start-up":       {nil, 3000 * ms, 0},
		"none":                       {nil, 3001 * ms, 1},
		"the first one is late":      {[]time.Duration{3001 * ms}, 3100 * ms, 1},
		"in time":                    {[]time.Duration{3000 * ms, 4000 * ms}, 5000 * ms, 0},
		"before the start-up's end":  {[]time.Duration{500 * ms}, 1501 * ms, 1},
		"a gap between two":          {[]time.Duration{500 * ms, 1501 * ms}, 1600 * ms, 1},
		"not since the last of them": {[]time.Duration{500 * ms, 1500 * ms}, 2501 * ms, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, start := &noCluster{}, time.Now()
				traffic := New(t.Context(), Config{Start: start}, c)
				for _, at := range tt.acks {
					time.Sleep(time.Until(start.Add(at)))
					traffic.acknowledged(time.Now())
				}
				time.Sleep(time.Until(start.Add(tt.end)))
				if traffic.CheckGap(limit); len(c.violations) != tt.want {
					t.Errorf("%v, want %d", c.violations, tt.want)
				}
			})
		})
	}
}
