package state

import "testing"

// The last campaign decides whether a role is required, also for the time after its tenure. Older members cannot read
// that, so the mark needs its version; without it, a command is what it was before.
func TestRequiredRoles(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, b := newSession(t, s, "a"), newSession(t, s, "b")
	campaign := func(session string, required, want bool) {
		t.Helper()
		c := Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{
			Role: "r", Session: session, Wait: true, Required: required,
		}}
		if v := c.MinVersion(); required != (v == requiredVersion) || !required && v != 1 {
			t.Errorf("required %v: version %d", required, v)
		}
		mustApply(t, s, c)
		if r, _ := s.View().Role("r"); r.Required != want {
			t.Errorf("%+v", r)
		}
	}
	campaign(a, true, true)
	campaign(a, false, false) // the holder again
	campaign(a, true, true)
	campaign(b, false, false) // in the queue
	campaign(b, true, true)
	mustApply(t, s, end(CauseExpired, a), end(CauseExpired, b))
	if r, ok := s.View().Role("r"); !ok || r.Held() || !r.Required {
		t.Errorf("vacant: %+v", r)
	}
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	if r, _ := again.View().Role("r"); !r.Required {
		t.Errorf("after a restart: %+v", r)
	}
	campaign(newSession(t, s, "c"), false, false)
	c := Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{Role: "r", Session: a, Required: true}}
	shared := c
	c.DropRequired()
	if c.MinVersion() != 1 || !shared.RoleCampaign.Required {
		t.Errorf("dropped: %+v, shared: %+v", c.RoleCampaign, shared.RoleCampaign)
	}
}
