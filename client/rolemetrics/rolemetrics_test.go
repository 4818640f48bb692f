package rolemetrics

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"northstar/client"
)

// granted is an elector that is elected at its first campaign.
type granted struct{ deadline *client.Deadline }

func (g granted) Campaign(context.Context) (*client.Leadership, error) {
	return g.deadline.Begin(client.Holder{Role: "cron", Token: 7}, nil)
}

func (g granted) Observe(context.Context) iter.Seq2[client.Holder, error] { return nil }

func (g granted) Close(context.Context) error {
	g.deadline.End(client.ErrResigned)
	return nil
}

func TestCollector(t *testing.T) {
	t.Parallel()
	d := client.NewDeadline(nil)
	d.Extend(d.Now(), time.Minute)
	e, err := client.NewElector(granted{d}, client.ElectorConfig{
		Role: "cron", Healthy: func(context.Context) error { return nil }, CheckInterval: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(New(e))
	if v := values(t, registry); v["northstar_elector_is_leader"] != 0 || v["northstar_elector_campaigns_total"] != 0 {
		t.Errorf("%v", v)
	}
	l, err := e.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.Extend(d.Now()-30*time.Second, time.Hour)
	for e.Stats().Checks == 0 {
		time.Sleep(time.Millisecond)
	}
	v := values(t, registry)
	for name, want := range map[string]float64{
		"is_leader": 1, "token": 7, "campaigns_total": 1, "elections_total": 1, "check_passed": 1,
		"check_failures_total": 0, "campaign_duration_seconds": 1, "renewal_duration_seconds": 1,
	} {
		if v["northstar_elector_"+name] != want {
			t.Errorf("%s: %v, want %v", name, v["northstar_elector_"+name], want)
		}
	}
	if age := v["northstar_elector_renewal_age_seconds"]; age <= 0 || age > 60 {
		t.Errorf("renewal age %v", age)
	}
	for _, name := range Names() {
		if _, ok := v[name]; !ok {
			t.Errorf("%s is missing", name)
		}
		delete(v, name)
	}
	if len(v) > 0 {
		t.Errorf("not in Names: %v", v)
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-l.Done()
	if v := values(t, registry); v["northstar_elector_is_leader"] != 0 || v["northstar_elector_token"] != 0 {
		t.Errorf("%v", v)
	}
}

// values returns the first value of each metric.
func values(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	v := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		v[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue() +
			float64(m.GetHistogram().GetSampleCount())
	}
	return v
}

func TestGateCollector(t *testing.T) {
	t.Parallel()
	var gate client.Gate
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewGate("cron", &gate))
	check := func(wantRefused, wantInFlight float64) {
		t.Helper()
		v := values(t, registry)
		for i, want := range []float64{wantRefused, wantInFlight} {
			if name := GateNames()[i]; v[name] != want {
				t.Errorf("%s: %v, want %v", name, v[name], want)
			}
		}
		if len(v) != len(GateNames()) {
			t.Errorf("metrics %v", v)
		}
	}
	check(0, 0)
	if gate.Require() == nil {
		t.Error("the gate is open before anything")
	}
	check(1, 0)
	d := client.NewDeadline(nil)
	d.Extend(d.Now(), time.Minute)
	l, err := d.Begin(client.Holder{Role: "cron", Token: 7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	gate.Bind(l)
	if err := gate.Do(t.Context(), func(context.Context, uint64) error { check(1, 1); return nil }); err != nil {
		t.Error(err)
	}
	check(1, 0)
}

// A process that competes for two roles registers the collectors of both.
func TestCollectors_OfTwoRoles(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	for _, role := range []string{"cron", "mail"} {
		e, err := client.NewElector(granted{client.NewDeadline(nil)}, client.ElectorConfig{Role: role})
		if err != nil {
			t.Fatal(err)
		}
		gate := NewGate(role, new(client.Gate))
		if err := errors.Join(registry.Register(New(e)), registry.Register(gate)); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		roles := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "role" {
					roles[l.GetValue()] = true
				}
			}
		}
		if !roles["cron"] || !roles["mail"] {
			t.Errorf("%s is of the roles %v", f.GetName(), roles)
		}
	}
}
