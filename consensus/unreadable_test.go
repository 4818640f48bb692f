package consensus

import (
	"testing"

	"northstar/state"
)

// TestDropUnreadable: during an upgrade a session is made without its owner, and only where that is not enough
// without the audit record.
func TestDropUnreadable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reads          uint32
		owner, audited bool
	}{
		{state.CommandVersion, true, true},
		{4, false, true},
		{2, false, true},
		{1, false, false},
	} {
		create := state.SessionCreate{Owner: "client alice"}
		cmd := state.Command{
			Kind: state.KindSessionCreate, SessionCreate: &create, Audit: &state.AuditRecord{Who: "alice"},
		}
		unaudited := dropUnreadable(&cmd, c.reads)
		if owner, audited := cmd.SessionCreate.Owner != "", cmd.Audit != nil; owner != c.owner || audited != c.audited ||
			unaudited == audited || create.Owner == "" || cmd.MinVersion() > c.reads {
			t.Errorf("a member reads version %d: owner %v, audited %v, reported %v", c.reads, owner, audited, !unaudited)
		}
	}
}

// A campaign for a required role goes without that mark while some member cannot read it, and with its audit record.
func TestDropUnreadable_RequiredRole(t *testing.T) {
	t.Parallel()
	for _, reads := range []uint32{2, 6, state.CommandVersion} {
		cmd := state.Command{
			Kind: state.KindRoleCampaign, Audit: &state.AuditRecord{Who: "alice"},
			RoleCampaign: &state.RoleCampaign{Role: "r", Session: "s", Required: true},
		}
		unaudited := dropUnreadable(&cmd, reads)
		if cmd.RoleCampaign.Required != (reads == state.CommandVersion) || unaudited || cmd.MinVersion() > reads {
			t.Errorf("a member reads version %d: %+v, unaudited %v", reads, cmd.RoleCampaign, unaudited)
		}
	}
}
