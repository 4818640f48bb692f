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
		unaudited := dropUnreadable(&cmd, 0, c.reads)
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
		unaudited := dropUnreadable(&cmd, 1, reads)
		if cmd.RoleCampaign.Required != (reads == state.CommandVersion) || unaudited || cmd.MinVersion() > reads {
			t.Errorf("a member reads version %d: %+v, unaudited %v", reads, cmd.RoleCampaign, unaudited)
		}
	}
}

// A number needs its version until it is in use. Then it is in the log that every member has to read, and a new member
// that has not said what it supports stops no write.
func TestNumbersInUse(t *testing.T) {
	t.Parallel()
	write := func(key string) *state.Command {
		return &state.Command{
			Kind: state.KindPut, Put: &state.Put{Key: "k"}, Audit: &state.AuditRecord{Who: "alice"},
			Idempotency: &state.Idempotency{Key: key, Number: 2, AnsweredBelow: 1},
		}
	}
	node, client := write(state.NodeIdempotencyPrefix+"n1/1"), write("alice\nns1.x")
	for _, cmd := range []*state.Command{node, client} {
		for _, reads := range []uint32{2, 1} { // 1: it is not known what a new member reads
			if dropUnreadable(cmd, state.NumberVersion, reads) || cmd.Audit == nil || cmd.Idempotency.Number != 2 ||
				cmd.NeededVersion(state.NumberVersion) > reads {
				t.Errorf("numbers are in use, reads %d: %+v, audit %v", reads, cmd.Idempotency, cmd.Audit)
			}
		}
		dropUnreadable(cmd, state.NumberVersion-1, 2)
	}
	if client.Idempotency.Number != 0 || client.Idempotency.Key != "alice\nns1.x.2.1" || client.Audit == nil {
		t.Errorf("key %q, number %d", client.Idempotency.Key, client.Idempotency.Number)
	}
	if node.NeededVersion(state.NumberVersion-1) != state.NumberVersion {
		t.Error("a number was dropped that its node relies on")
	}
}
