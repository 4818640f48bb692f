package node

import (
	"time"

	"northstar/state"
	"northstar/telemetry"
)

// vacantRoleMetricTTL is how long a vacant role without candidates stays in the metrics: long enough for an
// alert.
const vacantRoleMetricTTL = 24 * time.Hour

// metricRoles returns the metrics of roles and sessions.
func (n *Node) metricRoles(limit int) (roles []telemetry.Role, sessions int) {
	v := n.consensus.View()
	for r := range v.RolesAfter("") {
		if len(roles) == limit {
			break
		}
		if exportRole(r, v.Time()) {
			roles = append(roles, telemetry.Role{Name: r.Name, Token: r.Current.Token, Elections: r.Elections})
		}
	}
	return roles, v.Sessions()
}

func exportRole(r *state.Role, now time.Time) bool {
	if r.Held() || len(r.Queue) > 0 || len(r.History) == 0 {
		return true
	}
	return now.Sub(time.Unix(0, r.History[len(r.History)-1].EndedAt)) < vacantRoleMetricTTL
}
