package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"northstar/state"
)

// TestNewRolesHideNoOthers: a client that makes many roles, with names that sort first, hides no older role from the
// metrics.
func TestNewRolesHideNoOthers(t *testing.T) {
	t.Parallel()
	s := state.New(state.Options{})
	index := uint64(0)
	apply := func(c state.Command) state.Result {
		index++
		c.Now = int64(index)
		return s.Apply(index, 1, []state.Command{c})[0]
	}
	id := apply(state.Command{Kind: state.KindSessionCreate, SessionCreate: &state.SessionCreate{
		Nonce: strings.Repeat("a", 16), TTL: state.MinSessionTTL,
	}}).Session.ID
	campaign := func(role string) {
		if r := apply(state.Command{Kind: state.KindRoleCampaign, RoleCampaign: &state.RoleCampaign{
			Role: role, Session: id,
		}}); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	campaign("z-backup")
	for i := range 20 {
		campaign(fmt.Sprintf("a%02d", i))
	}
	roles := oldestRoles(s.View(), 5)
	if len(roles) != 5 || roles[0].Name != "z-backup" {
		t.Errorf("%+v", roles)
	}
	if all := oldestRoles(s.View(), 100); len(all) != 21 || all[20].Name != "z-backup" {
		t.Errorf("%d roles: %+v", len(all), all)
	}
}

// A required role stays in the metrics while it is vacant, however many older roles there are.
func TestRequiredRolesAreExported(t *testing.T) {
	t.Parallel()
	old := []state.Tenure{{Token: 9, EndedAt: 1}}
	now := time.Unix(0, 1).Add(2 * vacantRoleMetricTTL)
	if !exportRole(&state.Role{Required: true, History: old}, now) || exportRole(&state.Role{History: old}, now) {
		t.Error("a vacant role stays exported if it is required, and only then")
	}
	s := state.New(state.Options{})
	apply := func(index uint64, c state.Command) state.Result {
		c.Now = int64(index)
		return s.Apply(index, 1, []state.Command{c})[0]
	}
	id := apply(1, state.Command{Kind: state.KindSessionCreate, SessionCreate: &state.SessionCreate{
		Nonce: strings.Repeat("a", 16), TTL: state.MinSessionTTL,
	}}).Session.ID
	for i := range uint64(6) {
		if r := apply(2+i, state.Command{Kind: state.KindRoleCampaign, RoleCampaign: &state.RoleCampaign{
			Role: fmt.Sprintf("r%d", i), Session: id, Required: i == 5,
		}}); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if roles := oldestRoles(s.View(), 2); len(roles) != 2 || roles[0].Name != "r5" || roles[1].Name != "r0" {
		t.Errorf("%+v", roles)
	}
}
