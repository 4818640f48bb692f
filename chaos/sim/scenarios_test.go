package sim

import "testing"

// A run of every kind but the default one, which TestSim runs. make sim has more.
func TestKinds(t *testing.T) {
	for _, kind := range Scenarios() {
		if kind == DefaultScenario {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			for _, seed := range seeds(t, 1) {
				cfg, err := NewConfig(kind, seed, 3)
				if err != nil {
					t.Fatal(err)
				}
				if res, report := Run(t, cfg); report != "" {
					t.Errorf("make chaos-replay SCENARIO=%s NODES=3 SEED=%d\n%s", kind, seed, report)
				} else if kind == "quorum-loss" && res.Faults[Recover] != 1 {
					t.Errorf("seed %d: nobody was recovered", seed)
				} else if res.Elections == 0 || len(res.History) == 0 {
					t.Errorf("seed %d: %d elections, %d operations", seed, res.Elections, len(res.History))
				} else if f := res.SLO; f != nil && (f.Violations() != "" || len(f.Elections) == 0 ||
					f.Failovers == 0 || f.Total < cfg.Length/3) {
					t.Errorf("seed %d: %s %v", seed, f.Violations(), f)
				}
			}
		})
	}
}
