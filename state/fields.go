package state

import (
	"slices"

	"northstar/cluster"
)

// The fields of every record in the log and in snapshots. A number is never reused. A new field must not change the
// effect of a command, because older builds skip it: see Command.MinVersion. A payload's fields start at 16.

// fields declares the common fields of a command and the fields of its payload.
func (cmd *Command) fields(c *codec) {
	number(c, 1, &cmd.Now)
	if cmd.Idempotency == nil && slices.Contains([]int{2, 3, 7, 8, 9}, c.num) {
		cmd.Idempotency = new(Idempotency)
	}
	if cmd.Idempotency != nil {
		textAlways(c, 2, &cmd.Idempotency.Key)
		blob(c, 3, &cmd.Idempotency.RequestHash)
		number(c, 7, &cmd.Idempotency.After)
		number(c, 8, &cmd.Idempotency.Number)
		number(c, 9, &cmd.Idempotency.AnsweredBelow)
	}
	if cmd.Fence == nil && (c.num == 4 || c.num == 5) {
		cmd.Fence = new(FencingToken)
	}
	if cmd.Fence != nil {
		textAlways(c, 4, &cmd.Fence.Role)
		number(c, 5, &cmd.Fence.Token)
	}
	if c.num == 6 {
		cmd.Audit = new(AuditRecord)
	}
	if cmd.Audit != nil {
		nested(c, 6, cmd.Audit)
	}
	cmd.payload().fields(c)
}

func (p *Put) fields(c *codec) {
	textAlways(c, 16, &p.Key)
	blob(c, 17, &p.Value)
	optional(c, 18, &p.IfRevision, numberAlways)
	boolean(c, 19, &p.IfAbsent)
	text(c, 20, &p.Session)
	boolean(c, 21, &p.IfPresent)
}

func (p *Delete) fields(c *codec) {
	textAlways(c, 16, &p.Key)
	optional(c, 17, &p.IfRevision, numberAlways)
	boolean(c, 18, &p.IfPresent)
}

func (p *LeaderStart) fields(c *codec) {
	number(c, 16, &p.Term)
	text(c, 17, &p.Node)
	text(c, 18, &p.Trigger)
	text(c, 19, &p.Reason)
	number(c, 20, &p.StartedAt)
	blob(c, 21, &p.Votes)
	text(c, 22, &p.Operator)
	number(c, 23, &p.LeaderlessAt)
}

func (p *ClusterInit) fields(c *codec) {
	textAlways(c, 16, &p.ClusterID)
	number(c, 17, &p.Generation.Number)
	text(c, 18, &p.Generation.RecoveryID)
	listAs(c, 19, &p.Members, func(m *cluster.Member) record { return (*memberRecord)(m) })
	textMap(c, 20, 16, &p.Roster)
	boolean(c, 21, &p.AutoFailover)
}

func (p *SettingsChange) fields(c *codec) {
	boolean(c, 16, &p.AutoFailover)
	number(c, 17, &p.PausedUntil)
	text(c, 18, &p.Reason)
	text(c, 19, &p.Operator)
}

func (p *Recovery) fields(c *codec) {
	number(c, 16, &p.Generation.Number)
	text(c, 17, &p.Generation.RecoveryID)
	texts(c, 18, &p.Voters)
	texts(c, 19, &p.Readmit)
	boolean(c, 20, &p.LockDelay)
}

func (p *LimitsChange) fields(c *codec) {
	number(c, 16, &p.StateBytes)
	number(c, 17, &p.SessionsPerIdentity)
	number(c, 18, &p.KeysPerSession)
	boolean(c, 19, &p.RolesVersion)
}

// memberRecord is a cluster.Member as a payload that writes the whole record.
type memberRecord cluster.Member

func (m *memberRecord) fields(c *codec) {
	textAlways(c, 16, &m.ID)
	text(c, 17, &m.RaftAddress)
	text(c, 18, &m.HTTPAddress)
	number(c, 19, &m.Priority)
	boolean(c, 20, &m.Eligible)
	text(c, 21, &m.Zone)
	text(c, 22, &m.Incarnation)
	text(c, 23, &m.Lifecycle)
	text(c, 24, &m.Version)
	number(c, 25, &m.Reads)
	boolean(c, 26, &m.Removed)
}

func (p *MemberPatch) fields(c *codec) {
	textAlways(c, 16, &p.ID)
	optional(c, 17, &p.RaftAddress, textAlways)
	optional(c, 18, &p.HTTPAddress, textAlways)
	optional(c, 19, &p.Priority, numberAlways)
	optional(c, 20, &p.Eligible, booleanAlways)
	optional(c, 21, &p.Zone, textAlways)
	optional(c, 22, &p.Incarnation, textAlways)
	optional(c, 23, &p.Lifecycle, textAlways)
	optional(c, 24, &p.Version, textAlways)
	optional(c, 25, &p.SupportedVersion, numberAlways)
}

func (p *MemberRemove) fields(c *codec) { textAlways(c, 16, &p.ID) }

func (p *SessionCreate) fields(c *codec) {
	text(c, 16, &p.Nonce)
	text(c, 17, &p.Name)
	number(c, 18, &p.TTL)
	textMap(c, 19, 1, &p.Meta)
	text(c, 20, &p.Owner)
}

func (p *SessionEnd) fields(c *codec) {
	texts(c, 16, &p.IDs)
	text(c, 17, &p.Cause)
}

func (p *RoleCampaign) fields(c *codec) {
	textAlways(c, 16, &p.Role)
	textAlways(c, 17, &p.Session)
	text(c, 18, &p.Value)
	boolean(c, 19, &p.Wait)
	number(c, 20, &p.TakeoverDelay)
	boolean(c, 21, &p.Ineligible)
	boolean(c, 22, &p.Required)
}

func (p *RoleWithdraw) fields(c *codec) {
	textAlways(c, 16, &p.Role)
	textAlways(c, 17, &p.Session)
}

func (p *RoleRelease) fields(c *codec) {
	textAlways(c, 16, &p.Role)
	textAlways(c, 17, &p.Session)
	number(c, 18, &p.Token)
}

func (p *RoleTransfer) fields(c *codec) {
	textAlways(c, 16, &p.Role)
	text(c, 17, &p.ToSession)
	number(c, 18, &p.IfStateRevision)
	boolean(c, 19, &p.AwaitPreviousHolder)
}

func (p *RoleElect) fields(c *codec) { list(c, 16, &p.Roles) }

func (v *ElectableRole) fields(c *codec) {
	textAlways(c, 1, &v.Role)
	number(c, 2, &v.StateRevision)
}

func (p *AppNodePut) fields(c *codec) { nested(c, 16, &p.Node) }

func (p *AppNodeRemove) fields(c *codec) {
	texts(c, 16, &p.IDs)
	number(c, 17, &p.DeadSince)
}

func (b *AuditBatch) fields(c *codec) {
	textAlways(c, 16, &b.Producer)
	number(c, 17, &b.First)
	number(c, 18, &b.Lost)
	list(c, 19, &b.Records)
}

func (r *AuditRecord) fields(c *codec) {
	number(c, 1, &r.Seq)
	number(c, 2, &r.Class)
	number(c, 3, &r.At)
	text(c, 4, &r.Node)
	text(c, 5, &r.Who)
	text(c, 6, &r.Role)
	text(c, 7, &r.From)
	text(c, 8, &r.What)
	text(c, 9, &r.Request)
	text(c, 10, &r.Reason)
	number(c, 11, &r.Status)
	number(c, 12, &r.Code)
	text(c, 13, &r.Detail)
	boolean(c, 14, &r.DryRun)
	boolean(c, 15, &r.Delayed)
}

func (s *auditProducer) fields(c *codec) {
	textAlways(c, 1, &s.name)
	number(c, 2, &s.last)
	number(c, 3, &s.lost)
	number(c, 4, &s.at)
}

func (m *meta) fields(c *codec) {
	v, rings := &m.view, &m.view.audit.rings
	text(c, 1, &v.clusterID)
	number(c, 2, &v.generation.Number)
	text(c, 3, &v.generation.RecoveryID)
	number(c, 4, &v.revision)
	number(c, 5, &v.index)
	number(c, 6, &v.term)
	number(c, 7, &v.now)
	number(c, 8, &v.epoch)
	number(c, 9, &v.version)
	number(c, 10, &v.history.floor)
	boolean(c, 11, &v.settings.AutoFailover)
	number(c, 12, &v.settings.PausedUntil)
	number(c, 13, &m.records[sectionKeys])
	number(c, 14, &m.keyBytes)
	number(c, 15, &m.records[sectionHistory])
	number(c, 16, &m.records[sectionIdempotency])
	number(c, 17, &m.records[sectionMembers])
	text(c, 18, &v.settings.Reason)
	text(c, 19, &v.settings.Operator)
	number(c, 30, &m.records[sectionSessions])
	number(c, 31, &m.records[sectionRoles])
	number(c, 32, &m.records[sectionRoleLog])
	number(c, 33, &v.roleChanges.floor)
	number(c, 34, &m.records[sectionAppNodes])
	number(c, 35, &m.records[sectionNodeLog])
	number(c, 36, &v.nodeChanges.floor)
	number(c, 37, &v.audit.seq)
	number(c, 38, &v.audit.lost)
	number(c, 39, &rings[AuditClients].dropped)
	number(c, 40, &rings[AuditOperators].dropped)
	number(c, 41, &m.records[sectionAudit])
	number(c, 42, &m.records[sectionProducers])
	number(c, 43, &v.clusterLockDelay)
	number(c, 44, &v.limits.StateBytes)
	number(c, 45, &v.limits.SessionsPerIdentity)
	number(c, 46, &v.leaseSeq)
	number(c, 47, &v.compacted)
	number(c, 48, &v.valuesSince)
	number(c, 49, &v.idempotency.forgotten)
	number(c, 50, &m.records[sectionSenders])
	boolean(c, 51, &v.withoutTxns)
	number(c, 52, &v.limits.KeysPerSession)
}

func (el *Election) fields(c *codec) {
	number(c, 1, &el.Term)
	text(c, 2, &el.Node)
	text(c, 3, &el.Trigger)
	text(c, 4, &el.Reason)
	number(c, 5, &el.StartedAt)
	number(c, 6, &el.LedAt)
	blob(c, 7, &el.Votes)
	text(c, 8, &el.Operator)
	number(c, 9, &el.LeaderlessAt)
}

func (it *Item) fields(c *codec) {
	textAlways(c, 1, &it.Key)
	blob(c, 2, &it.Value)
	numberAlways(c, 3, &it.Revision)
	number(c, 4, &it.CreateRevision)
	number(c, 5, &it.Version)
	text(c, 6, &it.Session)
}

func (ch *change) fields(c *codec) {
	if ch.item == nil {
		ch.item = new(Item)
	}
	ch.item.fields(c)
	boolean(c, 16, &ch.deleted)
}

func (en *idempotencyEntry) fields(c *codec) {
	textAlways(c, 1, &en.key)
	blob(c, 2, &en.requestHash)
	number(c, 3, &en.at)
	number(c, 4, &en.result.Revision)
	boolean(c, 5, &en.result.Created)
	if c.num == 6 {
		en.result.Err = new(cluster.Error)
	}
	if en.result.Err != nil {
		nested(c, 6, (*errorRecord)(en.result.Err))
	}
	number(c, 7, &en.index)
}

// errorRecord is the recorded part of a command's error.
type errorRecord cluster.Error

func (err *errorRecord) fields(c *codec) {
	numberAlways(c, 1, &err.Code)
	text(c, 2, &err.Detail)
	number(c, 3, &err.Status)
	boolean(c, 4, &err.NoRetry)
	number(c, 5, &err.RetryAfter)
	number(c, 6, &err.Revision)
	refusal := refusalOf((*cluster.Error)(err))
	number(c, 7, &refusal)
	if c.decoding && refusal != 0 {
		err.Err = refusal
	}
}

func (s *Session) fields(c *codec) {
	textAlways(c, 1, &s.ID)
	text(c, 2, &s.Name)
	number(c, 3, &s.TTL)
	textMap(c, 4, 1, &s.Meta)
	number(c, 5, &s.CreatedAt)
	text(c, 6, &s.Owner)
	number(c, 7, &s.Lease)
}

func (r *Role) fields(c *codec) {
	textAlways(c, 1, &r.Name)
	if c.decoding || r.Held() {
		nested(c, 2, &r.Current)
	}
	list(c, 3, &r.Queue)
	list(c, 4, &r.History)
	number(c, 5, &r.StateRevision)
	number(c, 6, &r.Elections)
	boolean(c, 7, &r.TakeoverPending)
	text(c, 8, &r.RevokedFrom)
	number(c, 9, &r.LockDelay)
	boolean(c, 10, &r.Required)
}

func (t *Tenure) fields(c *codec) {
	number(c, 1, &t.Token)
	text(c, 2, &t.Session)
	text(c, 3, &t.Holder)
	text(c, 4, &t.Value)
	number(c, 5, &t.AcquiredAt)
	number(c, 6, &t.EndedAt)
	text(c, 7, &t.Cause)
}

func (cd *Candidate) fields(c *codec) {
	textAlways(c, 1, &cd.Session)
	text(c, 2, &cd.Name)
	text(c, 3, &cd.Value)
	number(c, 4, &cd.TakeoverDelay)
	boolean(c, 5, &cd.Ineligible)
	number(c, 6, &cd.Since)
}

func (ev *RoleEvent) fields(c *codec) {
	textAlways(c, 1, &ev.Role)
	boolean(c, 2, &ev.Elected)
	nested(c, 3, &ev.Tenure)
}

func (n *AppNode) fields(c *codec) {
	textAlways(c, 1, &n.ID)
	text(c, 2, &n.Session)
	text(c, 3, &n.Hostname)
	text(c, 4, &n.Address)
	number(c, 5, &n.HTTPPort)
	number(c, 6, &n.GRPCPort)
	texts(c, 7, &n.Roles)
	texts(c, 8, &n.Capabilities)
	text(c, 9, &n.Version)
	text(c, 10, &n.Status)
	number(c, 11, &n.RegisteredAt)
	number(c, 12, &n.ChangedAt)
	number(c, 13, &n.Revision)
	text(c, 14, &n.owner)
}
