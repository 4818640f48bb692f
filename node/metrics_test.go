package node

import (
	"fmt"
	"net/http"
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

// The metrics show what an operator may forget, as /status does: that failover is paused, and that the node is drained.
func TestMetricsOfAPauseAndADrain(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 1, nil)
	n := startAll(t, nodes)
	url := "http://" + n.cfg.HTTPAddr
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	shows := func(want ...string) {
		t.Helper()
		eventually(t, strings.Join(want, " "), func() bool {
			_, status, err := request(client, "GET", url+"/status", "")
			_, metrics, err2 := request(client, "GET", url+"/metrics", "")
			return err == nil && err2 == nil &&
				strings.Contains(status, want[0]) && strings.Contains(status, want[1]) &&
				strings.Contains(metrics, "\nnorthstar_auto_failover_paused "+want[2]+"\n") &&
				strings.Contains(metrics, "\nnorthstar_node_draining "+want[3]+"\n")
		})
	}
	post := func(path, body string) {
		t.Helper()
		eventually(t, path, func() bool {
			status, answer, err := request(client, "POST", url+path, body)
			if err == nil && status != http.StatusOK {
				t.Logf("%s: %d %s", path, status, answer)
			}
			return err == nil && status == http.StatusOK
		})
	}
	shows(`"auto_failover":true`, `"lifecycle":"active"`, "0", "0")
	post("/admin/auto-failover", `{"enabled":false,"reason":"test"}`)
	shows(`"auto_failover":false`, `"lifecycle":"active"`, "1", "0")
	post("/admin/nodes/n1/drain", `{"reason":"test"}`)
	shows(`"auto_failover":false`, `"lifecycle":"draining"`, "1", "1")
}
