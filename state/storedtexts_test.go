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

// The texts of refusals are stored, too.
func TestStoredTextsOfRefusals(t *testing.T) {
	t.Parallel()
	for r, want := range map[Refusal]string{
		LeaseNotFound:     "ERR_SESSION_ENDED: the lease does not exist",
		LeaseExists:       "ERR_CONDITION_FAILED: the lease exists already",
		LeaseTTLTooLarge:  "ERR_BAD_REQUEST: the TTL is too large",
		KeyNotFound:       "ERR_CONDITION_FAILED: the key does not exist",
		DuplicateKey:      "ERR_BAD_REQUEST: a key is changed twice",
		TooManyOps:        "ERR_BAD_REQUEST: there are too many operations",
		RequestTooLarge:   "ERR_BAD_REQUEST: the transaction is too large",
		EmptyKey:          "ERR_BAD_REQUEST: the key is empty",
		ValueProvided:     "ERR_BAD_REQUEST: a value is given that is to be ignored",
		LeaseProvided:     "ERR_BAD_REQUEST: a lease is given that is to be ignored",
		InvalidSortOption: "ERR_BAD_REQUEST: the sort option is not known",
		Compacted:         "ERR_HISTORY_COMPACTED: the revision has been compacted",
		FutureRevision:    "ERR_BAD_REQUEST: the revision is in the future",
		InvalidKey:        "ERR_BAD_REQUEST: the key is not valid UTF-8, or too long",
		LeaseNotOwned:     "ERR_FORBIDDEN: the lease belongs to another identity: only that and operators may use it",
		99:                "ERR_BAD_REQUEST: refusal 99",
	} {
		if got := refused(r).Error(); got != want {
			t.Errorf("refusal %d: %q, want %q", r, got, want)
		}
	}
}
