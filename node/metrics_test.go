package node

import (
	"fmt"
	"strings"
	"testing"

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
