package state

import (
	"fmt"

	"northstar/cluster"
)

// Kind is the kind of a Command. Kinds are written to the log and are never renumbered or reused.
type Kind uint32

// The kinds. The comment of each names its payload in Command.
const (
	KindPut          Kind = 1 // Put
	KindDelete       Kind = 2 // Delete
	KindLeaderStart  Kind = 3 // LeaderStart
	KindClusterInit  Kind = 4 // ClusterInit
	KindMember       Kind = 5 // Member
	KindMemberPatch  Kind = 6 // MemberPatch
	KindMemberRemove Kind = 7 // MemberRemove
	KindSettings     Kind = 8 // Settings
	KindAudit        Kind = 9 // AuditBatch

	KindRecovery Kind = 11 // Recovery
	KindLimits   Kind = 12 // Limits
	KindTxn      Kind = 13 // Txn
	KindCompact  Kind = 14 // Compact
	// KindFirstRevision raises revision 0 to 1, the revision of an empty etcd. Later its only effect is that of every
	// command of its version, see View.KeepsReplaced.
	KindFirstRevision Kind = 15 // FirstRevision
	KindLeaseGrant    Kind = 16 // LeaseGrant
	KindLeaseRevoke   Kind = 17 // LeaseRevoke

	// The kinds from SessionCreate to AppNodeRemove belong to sessions; see Kind.ofSessions.
	KindSessionCreate Kind = 20 // SessionCreate
	KindSessionEnd    Kind = 21 // SessionEnd
	KindRoleCampaign  Kind = 25 // RoleCampaign
	KindRoleWithdraw  Kind = 26 // RoleWithdraw
	KindRoleRelease   Kind = 27 // RoleRelease
	KindRoleTransfer  Kind = 28 // RoleTransfer
	KindRoleElect     Kind = 29 // RoleElect
	KindAppNodePut    Kind = 30 // AppNodePut
	KindAppNodeRemove Kind = 31 // AppNodeRemove
)

// Command is one change of the replicated state. Only the payload that belongs to Kind is used. A command must not
// be changed after it was passed on.
type Command struct {
	Kind Kind
	// Now is the wall clock of the proposing leader in Unix nanoseconds. It is the only clock of the state: the
	// state's time is the highest Now applied.
	Now         int64
	Idempotency *Idempotency  // nil: not idempotent
	Fence       *FencingToken // nil: not fenced
	// Audit is the record of the call that the command carries out, nil if it is not recorded. apply adds the result.
	Audit *AuditRecord

	Put          *Put
	Delete       *Delete
	LeaderStart  *LeaderStart
	ClusterInit  *ClusterInit
	Member       *cluster.Member
	MemberPatch  *MemberPatch
	MemberRemove *MemberRemove
	Settings     *SettingsChange
	AuditBatch   *AuditBatch
	Recovery     *Recovery
	Limits       *LimitsChange

	Txn           *Txn
	Compact       *Compact
	FirstRevision *FirstRevision
	LeaseGrant    *LeaseGrant
	LeaseRevoke   *LeaseRevoke

	SessionCreate *SessionCreate
	SessionEnd    *SessionEnd
	RoleCampaign  *RoleCampaign
	RoleWithdraw  *RoleWithdraw
	RoleRelease   *RoleRelease
	RoleTransfer  *RoleTransfer
	RoleElect     *RoleElect
	AppNodePut    *AppNodePut
	AppNodeRemove *AppNodeRemove
	//lint:ignore U1000 it has fields in builds with the tag northstar_next
	extension
}

// Idempotency executes a retried command only once: later commands with the same Key and RequestHash get the first
// result. The same Key with another RequestHash is CodeBadRequest with status 422.
type Idempotency struct {
	Key         string // 1 to MaxIdempotencyKey bytes, with the caller's identity
	RequestHash []byte // of the request; at most MaxRequestHash bytes
	// After is an index that was committed before the command was first proposed, so it cannot have been applied up to
	// there. 0: unknown. With it, a repeated command whose result is no longer kept is CodeOutcomeUnknown.
	After uint64
	// Number, if not 0, makes Key name a sender and not a request: the request is the one with this number. See sender.
	Number uint64
	// AnsweredBelow is a number up to Number. The sender will not repeat commands with lower numbers.
	AnsweredBelow uint64
}

// FencingToken makes a command fail with CodeFenced unless Token is the current token of Role.
type FencingToken struct {
	Role  string
	Token uint64
}

// Put writes a key.
type Put struct {
	Key        string
	Value      []byte
	IfRevision *uint64 // required revision of the key; 0: the key must be absent
	IfAbsent   bool    // the key must be absent
	IfPresent  bool    // the key must be present
	Session    string  // "": none; the key is deleted when that session ends
}

// Delete removes a key.
type Delete struct {
	Key        string
	IfRevision *uint64 // the key's revision must be this
	IfPresent  bool    // an absent key is CodeConditionFailed instead of CodeBadRequest
}

// LeaderStart is the first command of a term: its leader can commit. It records the election.
type LeaderStart struct {
	Term      uint64 // must be the term of the log entry, else CodeTermStale
	Node      cluster.NodeID
	Trigger   string // startup, timeout, connection_lost, …
	Reason    string
	StartedAt int64  // start of the election, Unix nanoseconds; 0: unknown
	Votes     []byte // opaque here; not recorded when longer than 8 KiB
	Operator  string // operator that requested the election; "": none
	// LeaderlessAt is when the winner last heard the previous leader, or lost it. Unix nanoseconds; 0: unknown.
	LeaderlessAt int64
}

// ClusterInit sets the identity of a new cluster. Only the first one has an effect. The result of a later one has
// Created false and no error.
type ClusterInit struct {
	ClusterID    string
	Generation   cluster.Generation
	Members      []cluster.Member          // initial records
	Roster       map[cluster.NodeID]string // incarnation by node, written to Members; a node without a record gets one
	AutoFailover bool                      // initial setting
}

// MemberPatch sets the fields of a member's record that are not nil. A member that is removed or has no record is
// CodeBadRequest with status 404.
type MemberPatch struct {
	ID          cluster.NodeID
	RaftAddress *string
	HTTPAddress *string
	Priority    *int
	Eligible    *bool
	Zone        *string
	// Incarnation "" re-admits the node: the next data directory seen is recorded. A recorded incarnation is never
	// replaced directly: CodeConditionFailed. So the first of two data directories with one ID stays.
	Incarnation      *string
	Lifecycle        *cluster.Lifecycle
	Version          *string
	SupportedVersion *uint32
}

// MemberRemove marks a member as removed. The record stays as a tombstone.
type MemberRemove struct {
	ID cluster.NodeID
}

// SettingsChange replaces the settings of automatic failover.
type SettingsChange Settings

// Recovery begins a new generation after the permanent loss of a quorum. The lost nodes may have acknowledged writes
// and granted roles that this state does not have. So every key gets a new revision above all previous ones, and all
// sessions, tenures and watches end. Only a higher generation has an effect; otherwise the result has Created false.
type Recovery struct {
	Generation cluster.Generation
	Voters     []cluster.NodeID // become voters again when they have caught up
	Readmit    []cluster.NodeID // nodes whose data was set aside: the next data directory seen is recorded
	// LockDelay sets the lock delay of the cluster (View.ClusterLockDelay). Without it, as in logs of older builds,
	// the next candidate is elected immediately.
	LockDelay bool
}

// payload is the part of a command that depends on the kind. An implementation belongs to one command and is used
// by one goroutine at a time.
type payload interface {
	record
	// check validates the payload without the state.
	check() *cluster.Error
	apply(w *txn) Result
}

// kindInfo describes a kind.
type kindInfo struct {
	version uint32 // command version that introduced the kind
	// payload returns the payload in a command, nil if it has none. With create it first sets an empty payload.
	payload func(c *Command, create bool) payload
}

var kinds = [...]kindInfo{
	KindPut:         kindOf(1, func(c *Command) **Put { return &c.Put }),
	KindDelete:      kindOf(1, func(c *Command) **Delete { return &c.Delete }),
	KindLeaderStart: kindOf(1, func(c *Command) **LeaderStart { return &c.LeaderStart }),
	KindClusterInit: kindOf(1, func(c *Command) **ClusterInit { return &c.ClusterInit }),
	KindMember: {version: 1, payload: func(c *Command, create bool) payload {
		if create {
			c.Member = new(cluster.Member)
		}
		if c.Member == nil {
			return nil
		}
		return (*memberRecord)(c.Member)
	}},
	KindMemberPatch:  kindOf(1, func(c *Command) **MemberPatch { return &c.MemberPatch }),
	KindMemberRemove: kindOf(1, func(c *Command) **MemberRemove { return &c.MemberRemove }),
	KindSettings:     kindOf(1, func(c *Command) **SettingsChange { return &c.Settings }),
	KindAudit:        kindOf(auditVersion, func(c *Command) **AuditBatch { return &c.AuditBatch }),
	KindRecovery:     kindOf(1, func(c *Command) **Recovery { return &c.Recovery }),
	KindLimits:       kindOf(limitsVersion, func(c *Command) **LimitsChange { return &c.Limits }),

	KindTxn:           kindOf(txnVersion, func(c *Command) **Txn { return &c.Txn }),
	KindCompact:       kindOf(txnVersion, func(c *Command) **Compact { return &c.Compact }),
	KindFirstRevision: kindOf(txnVersion, func(c *Command) **FirstRevision { return &c.FirstRevision }),
	KindLeaseGrant:    kindOf(txnVersion, func(c *Command) **LeaseGrant { return &c.LeaseGrant }),
	KindLeaseRevoke:   kindOf(txnVersion, func(c *Command) **LeaseRevoke { return &c.LeaseRevoke }),

	KindSessionCreate: kindOf(1, func(c *Command) **SessionCreate { return &c.SessionCreate }),
	KindSessionEnd:    kindOf(1, func(c *Command) **SessionEnd { return &c.SessionEnd }),
	KindRoleCampaign:  kindOf(1, func(c *Command) **RoleCampaign { return &c.RoleCampaign }),
	KindRoleWithdraw:  kindOf(1, func(c *Command) **RoleWithdraw { return &c.RoleWithdraw }),
	KindRoleRelease:   kindOf(1, func(c *Command) **RoleRelease { return &c.RoleRelease }),
	KindRoleTransfer:  kindOf(1, func(c *Command) **RoleTransfer { return &c.RoleTransfer }),
	KindRoleElect:     kindOf(1, func(c *Command) **RoleElect { return &c.RoleElect }),
	KindAppNodePut:    kindOf(1, func(c *Command) **AppNodePut { return &c.AppNodePut }),
	KindAppNodeRemove: kindOf(1, func(c *Command) **AppNodeRemove { return &c.AppNodeRemove }),
}

// kindOf returns the kindInfo of a payload in a field of Command.
func kindOf[T any, P interface {
	*T
	payload
}](version uint32, field func(*Command) *P) kindInfo {
	return kindInfo{version: version, payload: func(c *Command, create bool) payload {
		p := field(c)
		if create {
			*p = P(new(T))
		}
		if *p == nil {
			return nil
		}
		return *p
	}}
}

func (k Kind) info() *kindInfo {
	if int(k) < len(kinds) && kinds[k].payload != nil {
		return &kinds[k]
	}
	return k.extension()
}

// ofSessions reports whether the kind belongs to sessions of clients.
func (k Kind) ofSessions() bool { return k >= KindSessionCreate && k <= KindAppNodeRemove }

// payload returns the payload of the kind, nil if there is none.
func (c *Command) payload() payload { return c.Kind.info().payload(c, false) }

// newPayload creates an empty payload of the kind. It returns nil for an unknown kind.
func (c *Command) newPayload() payload { return c.Kind.info().payload(c, true) }

var unknownKind = kindInfo{payload: func(*Command, bool) payload { return nil }}

// Administrative reports whether the kind may change members, settings or the cluster's identity.
func (k Kind) Administrative() bool { return !k.WritesKeys() && !k.ofSessions() }

// WritesKeys reports whether the kind is a write of keys or leases: its effect depends only on the state that it is
// applied to.
func (k Kind) WritesKeys() bool {
	return k == KindPut || k == KindDelete || k >= KindTxn && k <= KindLeaseRevoke
}

// Validate checks what does not depend on the state: presence, sizes and forms. Errors are CodeBadRequest and name
// the field. A value that is too long has status 413. Apply repeats these checks.
func (c *Command) Validate() *cluster.Error {
	p := c.payload()
	if p == nil {
		return badRequest("command kind %d is unknown or has no payload", c.Kind)
	}
	var err *cluster.Error
	if id := c.Idempotency; id != nil {
		if c.Kind.ofSessions() && id.Number == 0 { // their results hold more than what is recorded
			return badRequest("idempotency key: only for writes of keys")
		}
		if id.AnsweredBelow > id.Number {
			return badRequest("idempotency key: number %d is below %d, which is answered", id.Number, id.AnsweredBelow)
		}
		err = firstError(
			checkBytes("idempotency key", id.Key, MaxIdempotencyKey),
			checkRange("idempotency request hash", len(id.RequestHash), 0, MaxRequestHash))
	}
	if c.Fence != nil {
		err = firstError(err, checkBytes("fence role", c.Fence.Role, maxShortKey))
	}
	if c.Audit != nil {
		err = firstError(err, c.Audit.check())
	}
	return firstError(err, p.check())
}

// UnknownCommandError means that a log entry or a snapshot needs a newer build. The node must stop.
type UnknownCommandError struct {
	Kind    Kind   // 0 if the error is not about one command
	Version uint32 // command version needed, as recorded by the writer
}

func (e *UnknownCommandError) Error() string {
	return fmt.Sprintf("command version %d (kind %d) is not supported by this build (maximum %d): upgrade this node",
		e.Version, e.Kind, CommandVersion)
}
