package state

import "testing"

// TestStoredTexts holds three of the texts that commands leave in the state, in audit records and idempotency results.
// Members of different builds apply the same entry, so a text changes only with a new command version.
func TestStoredTexts(t *testing.T) {
	t.Parallel()
	s := richState(t)
	mustApply(t, s, limits(MinStateBytes, 1), ownedSession("a", "client alice"))
	for want, c := range map[string]Command{
		`session "x" does not exist: it has ended, or never began`: {
			Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{Role: "r", Session: "x"},
		},
		`role: nobody holds "none"`: {
			Kind: KindRoleTransfer, RoleTransfer: &RoleTransfer{Role: "none"},
		},
		`identity "client alice" has 1 sessions, and 1 are allowed`: ownedSession("b", "client alice"),
		`id: node "none" is not a member`: {
			Kind: KindMemberRemove, MemberRemove: &MemberRemove{ID: "none"},
		},
	} {
		if err := apply(s, c)[0].Err; err == nil || err.Detail != want {
			t.Errorf("%v: %v, want %q", c.Kind, err, want)
		}
	}
}
