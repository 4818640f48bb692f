package state

// Command versions that introduced a feature.
const (
	auditVersion      = 2 // the audit log
	revocationVersion = 3 // RoleTransfer.AwaitPreviousHolder, RoleRelease.Token
	lockDelayVersion  = 4 // Recovery.LockDelay, Role.LockDelay, View.ClusterLockDelay
	ownerVersion      = 5 // SessionCreate.Owner, Session.Owner
	limitsVersion     = 5 // KindLimits, View.Limits
	// kinds 13 to 17, keys above maxShortKey, previous items in the history, Idempotency.After
	txnVersion = 6
	// NumberVersion introduced Idempotency.Number.
	NumberVersion = 7
	// RoleCampaign.Required, Role.Required
	requiredVersion = 7
	// BoundsVersion introduced Limits.KeysPerSession, and the decisions that ask for it.
	BoundsVersion = 8
	// RolesVersion introduced LimitsChange.RolesVersion, and decisions about candidates and required roles.
	RolesVersion = 9
)

// MinVersion returns the command version that a node needs to apply c. A field that changes the effect of a command
// must raise it, because older nodes skip unknown fields.
func (c *Command) MinVersion() uint32 {
	if c.Idempotency != nil && c.Idempotency.Number != 0 {
		return max(c.versionWithoutNumber(), NumberVersion)
	}
	return c.versionWithoutNumber()
}

// NeededVersion returns the command version that all members must support for c, where inUse is a version in the log. A
// member needs that in any case: a lower one adds nothing, also if a new member has not said what it supports.
func (c *Command) NeededVersion(inUse uint32) uint32 {
	if v := c.MinVersion(); v > inUse {
		return v
	}
	return 1
}

func (c *Command) versionWithoutNumber() uint32 {
	version := c.Kind.info().version
	if c.Audit != nil {
		version = max(version, auditVersion)
	}
	if c.Kind == KindRecovery && c.Recovery != nil && c.Recovery.LockDelay {
		version = max(version, lockDelayVersion)
	}
	if c.Kind == KindRoleTransfer && c.RoleTransfer != nil && c.RoleTransfer.AwaitPreviousHolder ||
		c.Kind == KindRoleRelease && c.RoleRelease != nil && c.RoleRelease.Token != 0 {
		version = max(version, revocationVersion)
	}
	if c.Kind == KindSessionCreate && c.SessionCreate != nil && c.SessionCreate.Owner != "" {
		version = max(version, ownerVersion)
	}
	if c.Kind == KindRoleCampaign && c.RoleCampaign != nil && c.RoleCampaign.Required {
		version = max(version, requiredVersion)
	}
	if c.Kind == KindLimits && c.Limits != nil && c.Limits.KeysPerSession != 0 {
		version = max(version, BoundsVersion)
	}
	if c.Kind == KindLimits && c.Limits != nil && c.Limits.RolesVersion {
		version = max(version, RolesVersion)
	}
	if c.Idempotency != nil && c.Idempotency.After != 0 && c.Idempotency.Number == 0 {
		version = max(version, txnVersion)
	}
	if c.Put != nil && len(c.Put.Key) > maxShortKey || c.Delete != nil && len(c.Delete.Key) > maxShortKey {
		version = max(version, txnVersion)
	}
	return version
}

// DropOwner removes the owner of a new session, which members below ownerVersion cannot read.
func (c *Command) DropOwner() {
	if c.SessionCreate != nil && c.SessionCreate.Owner != "" {
		without := *c.SessionCreate
		without.Owner = ""
		c.SessionCreate = &without
	}
}

// DropRequired removes the mark of a required role, which members below requiredVersion cannot read.
func (c *Command) DropRequired() {
	if c.RoleCampaign != nil && c.RoleCampaign.Required {
		without := *c.RoleCampaign
		without.Required = false
		c.RoleCampaign = &without
	}
}
