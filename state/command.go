package state

import (
	"fmt"

	"northstar/cluster"
)

// Kind says what a Command does. Kinds are written to the log: they are never
// renumbered or reused.
type Kind uint32

// The kinds of commands. Each names the payload of Command that it needs.
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

// Command is one change of the replicated state. Only the payload that belongs
// to Kind is looked at. A command must not be changed once it is handed over.
type Command struct {
	Kind Kind
	// Now is the proposing leader's wall clock in Unix nanoseconds. It is the
	// only clock that the state has: its time is the highest Now applied.
	Now         int64
	Idempotency *Idempotency  // nil: not idempotent
	Fence       *FencingToken // nil: not fenced
	// Audit is of the call that the command carries out; nil: it is none that is
	// recorded. What came of it is filled in when it is applied.
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

	SessionCreate *SessionCreate
	SessionEnd    *SessionEnd
	RoleCampaign  *RoleCampaign
	RoleWithdraw  *RoleWithdraw
	RoleRelease   *RoleRelease
	RoleTransfer  *RoleTransfer
	RoleElect     *RoleElect
	AppNodePut    *AppNodePut
	AppNodeRemove *AppNodeRemove
	extension
}

// Idempotencypotency makes a retried command happen once. The first result under Key is kept
// and repeated to every later command with the same Key and Fingerprint; the
// same Key with another Fingerprint is CodeBadRequest with status 422.
type Idempotency struct {
	Key         string // 1 to MaxIdempotencyKey bytes; the caller puts its identity into it
	RequestHash []byte // of the request; at most MaxRequestHash bytes
}

// FencingToken makes a command succeed only while Token is the current token of Role:
// CodeFenced otherwise.
type FencingToken struct {
	Role  string
	Token uint64
}

// Put writes a key.
type Put struct {
	Key        string
	Value      []byte
	IfRevision *uint64 // the key's revision must be this; 0: it must be absent
	IfAbsent   bool    // the key must be absent
	IfPresent  bool    // the key must not be absent
	Session    string  // "": none; the key goes when that session ends
}

// Delete removes a key.
type Delete struct {
	Key        string
	IfRevision *uint64 // the key's revision must be this
	IfPresent  bool    // a key that is absent is CodeConditionFailed, not CodeBadRequest
}

// LeaderStart is the first command of a reign: it proves that the term's leader
// can commit, and is the record of its election.
type LeaderStart struct {
	Term      uint64 // must be the term of the log entry, else CodeTermStale
	Node      cluster.NodeID
	Trigger   string // startup, timeout, connection_lost, …
	Reason    string
	StartedAt int64  // when the election began, Unix nanoseconds; 0: not known
	Votes     []byte // opaque here; left out of the record when longer than 8 KiB
	Operator  string // who ordered the election; "": nobody
	// LeaderlessAt is when the winner last heard the leader before it, or began to
	// know none, Unix nanoseconds; 0: not known.
	LeaderlessAt int64
}

// ClusterInit gives a new cluster its identity. Only the first has an effect;
// the result of a later one has Created false and no error.
type ClusterInit struct {
	ClusterID    string
	Generation   cluster.Generation
	Members      []cluster.Member          // first records
	Roster       map[cluster.NodeID]string // node to incarnation, written over Members; a node without a record gets one
	AutoFailover bool                      // first value of the setting
}

// MemberPatch changes the fields of a member's record that are not nil. A
// member that has no record, or is removed, is CodeBadRequest with status 404.
type MemberPatch struct {
	ID          cluster.NodeID
	RaftAddress *string
	HTTPAddress *string
	Priority    *int
	Eligible    *bool
	Zone        *string
	// Incarnation "" re-admits: the next data directory seen is recorded. A
	// recorded incarnation is never replaced by another one directly, so that of
	// two data directories that claim one ID the first stays: CodeConditionFailed.
	Incarnation      *string
	Lifecycle        *cluster.Lifecycle
	Version          *string
	SupportedVersion *uint32
}

// MemberRemove marks a member as removed. The record stays, as a tombstone.
type MemberRemove struct {
	ID cluster.NodeID
}

// SettingsChange replaces the settings of automatic failover.
type SettingsChange struct {
	AutoFailover bool
	PausedUntil  int64 // Unix nanoseconds; with AutoFailover false: when the pause ends; 0: never
	Reason       string
	Operator     string // who set it
}

// Recovery begins a new generation, after a quorum was lost for good. The lost
// nodes may have acknowledged, or handed out, anything that this state does not
// hold: so every key gets a new revision, above all of the generation before,
// all sessions end, roles are vacated, and all watches end. Only a higher generation than the state's has an effect;
// otherwise the result has Created false and no error.
type Recovery struct {
	Generation cluster.Generation
	Voters     []cluster.NodeID // taken back as voters, once they have caught up
	Readmit    []cluster.NodeID // whose data was set aside: the next data directory seen is recorded
	// LockDelay makes every role wait for who may still believe to hold it (View.Awaits).
	// Without it, as in logs of older builds, the next who campaigns is elected.
	LockDelay bool
}

// payload is what every kind's payload does. An implementation is a value of
// one command and is used by one goroutine at a time.
type payload interface {
	record
	// check validates without looking at the state.
	check() *cluster.Error
	apply(w *txn) Result
}

// kindInfo describes a kind. The zero kindInfo is that of a kind that this build does
// not know.
type kindInfo struct {
	version    uint32                 // command version that introduced the kind
	ofSessions bool                   // it is about what the sessions of clients do
	payload    func(*Command) payload // nil when the command has no such payload
	newPayload func(*Command) payload // makes an empty one
}

var kinds = [...]kindInfo{
	KindPut:         kindOf(1, func(c *Command) **Put { return &c.Put }),
	KindDelete:      kindOf(1, func(c *Command) **Delete { return &c.Delete }),
	KindLeaderStart: kindOf(1, func(c *Command) **LeaderStart { return &c.LeaderStart }),
	KindClusterInit: kindOf(1, func(c *Command) **ClusterInit { return &c.ClusterInit }),
	KindMember: {
		version: 1, payload: func(c *Command) payload {
			if c.Member == nil {
				return nil
			}
			return (*memberRecord)(c.Member)
		}, newPayload: func(c *Command) payload {
			c.Member = new(cluster.Member)
			return (*memberRecord)(c.Member)
		},
	},
	KindMemberPatch:  kindOf(1, func(c *Command) **MemberPatch { return &c.MemberPatch }),
	KindMemberRemove: kindOf(1, func(c *Command) **MemberRemove { return &c.MemberRemove }),
	KindSettings:     kindOf(1, func(c *Command) **SettingsChange { return &c.Settings }),
	KindAudit:        kindOf(auditVersion, func(c *Command) **AuditBatch { return &c.AuditBatch }),
	KindRecovery:     kindOf(1, func(c *Command) **Recovery { return &c.Recovery }),

	KindSessionCreate: sessionKindOf(func(c *Command) **SessionCreate { return &c.SessionCreate }),
	KindSessionEnd:    sessionKindOf(func(c *Command) **SessionEnd { return &c.SessionEnd }),
	KindRoleCampaign:  sessionKindOf(func(c *Command) **RoleCampaign { return &c.RoleCampaign }),
	KindRoleWithdraw:  sessionKindOf(func(c *Command) **RoleWithdraw { return &c.RoleWithdraw }),
	KindRoleRelease:   sessionKindOf(func(c *Command) **RoleRelease { return &c.RoleRelease }),
	KindRoleTransfer:  sessionKindOf(func(c *Command) **RoleTransfer { return &c.RoleTransfer }),
	KindRoleElect:     sessionKindOf(func(c *Command) **RoleElect { return &c.RoleElect }),
	KindAppNodePut:    sessionKindOf(func(c *Command) **AppNodePut { return &c.AppNodePut }),
	KindAppNodeRemove: sessionKindOf(func(c *Command) **AppNodeRemove { return &c.AppNodeRemove }),
}

// kindOf describes a kind by the field of Command that holds its payload.
func kindOf[T any, P interface {
	*T
	payload
}](version uint32, field func(*Command) *P) kindInfo {
	return kindInfo{
		version: version, payload: func(c *Command) payload {
			if p := *field(c); p != nil {
				return p
			}
			return nil
		}, newPayload: func(c *Command) payload {
			p := P(new(T))
			*field(c) = p
			return p
		},
	}
}

func sessionKindOf[T any, P interface {
	*T
	payload
}](field func(*Command) *P) kindInfo {
	k := kindOf(1, field)
	k.ofSessions = true
	return k
}

func (k Kind) info() *kindInfo {
	if int(k) < len(kinds) {
		return &kinds[k]
	}
	return k.extension()
}

// payload returns the payload that belongs to the kind, nil when there is none.
func (c *Command) payload() payload {
	if k := c.Kind.info(); k.payload != nil {
		return k.payload(c)
	}
	return nil
}

// newPayload makes an empty payload for the kind, nil when it is not known.
func (c *Command) newPayload() payload {
	if k := c.Kind.info(); k.newPayload != nil {
		return k.newPayload(c)
	}
	return nil
}

// Administrative says whether the kind may concern members, settings or the
// cluster's identity: all that clients do does not.
func (k Kind) Administrative() bool { return k != KindPut && k != KindDelete && !k.info().ofSessions }

// MinVersion is the command version that a node must read to apply c. A field
// that changes what a command does must raise it: older nodes skip fields that
// they do not know.
func (c Command) MinVersion() uint32 {
	version := c.Kind.info().version
	if c.Audit != nil {
		version = max(version, auditVersion)
	}
	if c.Kind == KindRecovery && c.Recovery != nil && c.Recovery.LockDelay {
		version = max(version, lockDelayVersion)
	}
	if c.Kind == KindRoleTransfer && c.RoleTransfer != nil && c.RoleTransfer.AwaitPreviousHolder || c.Kind == KindRoleRelease && c.RoleRelease != nil && c.RoleRelease.Token != 0 {
		version = max(version, revocationVersion)
	}
	return version
}

// Command versions with which something came.
const (
	auditVersion      = 2 // the audit log
	revocationVersion = 3 // RoleTransfer.Part, RoleRelease.Token
	lockDelayVersion  = 4 // Recovery.Wait, Role.Await, View.Awaits
)

// Validate checks everything about c that does not depend on the state: the
// payload's presence, sizes and forms. Errors are CodeBadRequest and name the
// field; a value that is too long has status 413. Apply checks the same again.
func (c Command) Validate() *cluster.Error {
	p := c.payload()
	if p == nil {
		return cluster.Errorf(cluster.CodeBadRequest, "command kind %d has no payload or is not known", c.Kind)
	}
	if c.Idempotency != nil {
		if c.Kind.info().ofSessions { // their results are more than what is remembered
			return cluster.Errorf(cluster.CodeBadRequest, "idempotency key: only writes of keys take one")
		}
		if n := len(c.Idempotency.Key); n < 1 || n > MaxIdempotencyKey {
			return cluster.Errorf(cluster.CodeBadRequest, "idempotency key: want 1 to %d bytes, got %d", MaxIdempotencyKey, n)
		}
		if n := len(c.Idempotency.RequestHash); n > MaxRequestHash {
			return cluster.Errorf(cluster.CodeBadRequest, "idempotency fingerprint: want at most %d bytes, got %d", MaxRequestHash, n)
		}
	}
	if c.Fence != nil && (c.Fence.Role == "" || len(c.Fence.Role) > MaxKey) {
		return cluster.Errorf(cluster.CodeBadRequest, "fence role: want 1 to %d bytes, got %d", MaxKey, len(c.Fence.Role))
	}
	if c.Audit != nil {
		if err := c.Audit.check(); err != nil {
			return err
		}
	}
	return p.check()
}

// UnknownCommandError says that a log entry or a snapshot needs a newer build.
// The node that meets it must stop before it applies anything further.
type UnknownCommandError struct {
	Kind    Kind   // 0 when it is not one command that is too new
	Version uint32 // command version needed, as the writer gave it
}

func (e *UnknownCommandError) Error() string {
	return fmt.Sprintf("command version %d (command kind %d) is needed, this build reads up to %d: upgrade it", e.Version, e.Kind, CommandVersion)
}
