package client

import (
	"northstar/api/apiv1"
	"northstar/cluster"
)

// The types of requests and responses, as the HTTP API has them. They are aliases: a program names every type of this
// package's functions by this package alone, and the wire has one definition.
type (
	// Leader is the leader as a node knows it.
	Leader = apiv1.Leader
	// Cluster is the members, their health and the quorum.
	Cluster = apiv1.Cluster
	// Member is one member of a Cluster.
	Member = apiv1.Member
	// Quorum is the number of voters, and how many of them are needed and healthy.
	Quorum = apiv1.Quorum
	// Counts is a number of nodes by lifecycle.
	Counts = apiv1.Counts
	// StateSize is the size of the replicated state and its limits.
	StateSize = apiv1.StateSize
	// Status is one node's view of itself.
	Status = apiv1.Status
	// Silence is how long the leader may be silent before the survivors ask each other.
	Silence = apiv1.Silence
	// Disk is the state of a node's disk.
	Disk = apiv1.Disk
	// SplitBrain is a report about two leaders or foreign clusters.
	SplitBrain = apiv1.SplitBrain
	// SplitBrainFinding is one inconsistency of a SplitBrain.
	SplitBrainFinding = apiv1.SplitBrainFinding
	// SplitBrainClaim is what one node reports about itself and the leader.
	SplitBrainClaim = apiv1.SplitBrainClaim
	// SplitBrainCheck is the request for a check.
	SplitBrainCheck = apiv1.SplitBrainCheck
	// Election is one election of a leader.
	Election = apiv1.Election
	// Elections is a list of elections.
	Elections = apiv1.Elections
	// Vote is one voter's response in an Election.
	Vote = apiv1.Vote
	// Event is one event of one node.
	Event = apiv1.Event
	// Events is a list of events.
	Events = apiv1.Events
	// Audit is a list of audit records.
	Audit = apiv1.Audit
	// AuditRecord is the caller, origin, reason and result of one call.
	AuditRecord = apiv1.AuditRecord
	// AuditDropped is the number of audit records that are missing.
	AuditDropped = apiv1.AuditDropped

	// PutResult is the result of Put.
	PutResult = apiv1.PutResult
	// DeleteResult is the result of Delete.
	DeleteResult = apiv1.DeleteResult
	// List is one page of keys.
	List = apiv1.List
	// Item is one key of a List.
	Item = apiv1.Item

	// Campaign is the request of CampaignRole.
	Campaign = apiv1.Campaign
	// Role is a role, its holder and its candidates.
	Role = apiv1.Role
	// RoleCandidate is a session that waits for a Role.
	RoleCandidate = apiv1.RoleCandidate
	// Roles is one page of roles.
	Roles = apiv1.Roles
	// RoleResult is a role after a resignation.
	RoleResult = apiv1.RoleResult
	// RoleHistory is the past holders of a role.
	RoleHistory = apiv1.RoleHistory
	// Tenure is one session's time as holder of a role.
	Tenure = apiv1.Tenure
	// RoleEvent is the data of a RoleChange.
	RoleEvent = apiv1.RoleEvent
	// RoleTransfer is the request of TransferRole.
	RoleTransfer = apiv1.RoleTransfer
	// RoleEvict is the request of EvictRole.
	RoleEvict = apiv1.RoleEvict
	// RoleMove is the result of TransferRole and EvictRole.
	RoleMove = apiv1.RoleChange

	// SessionCreate is the request of CreateSession.
	SessionCreate = apiv1.SessionCreate
	// SessionCreated is the result of CreateSession.
	SessionCreated = apiv1.SessionCreated
	// SessionInfo is a session as the cluster has it.
	SessionInfo = apiv1.Session
	// Sessions is one page of sessions.
	Sessions = apiv1.Sessions
	// SessionsEnded is the result of EndSessions.
	SessionsEnded = apiv1.SessionsEnded
	// Renewal is the result of RenewSession.
	Renewal = apiv1.Renewal
	// RenewedMany is the result of RenewSessions.
	RenewedMany = apiv1.RenewedMany
	// Revocation is a tenure that an operator revoked from a session.
	Revocation = apiv1.Revocation

	// NodePut is what an application node registers.
	NodePut = apiv1.NodePut
	// Load is the load of an application node.
	Load = apiv1.Load
	// Node is a registered application node.
	Node = apiv1.Node
	// Nodes is one page of application nodes.
	Nodes = apiv1.Nodes

	// MemberAdd is the request of AddMember.
	MemberAdd = apiv1.MemberAdd
	// MemberPatch is the request of PatchMember.
	MemberPatch = apiv1.MemberPatch
	// MemberRemove is the request of RemoveMember.
	MemberRemove = apiv1.MemberRemove
	// MemberResult is the result of a change of a member.
	MemberResult = apiv1.MemberResult
	// Drain is the request of Client.Drain and Client.Undrain.
	Drain = apiv1.Drain
	// Transfer is the request of Client.Transfer.
	Transfer = apiv1.Transfer
	// Failover is the request of Client.Failover.
	Failover = apiv1.Failover
	// Emergency is the request of EmergencyFailover.
	Emergency = apiv1.Emergency
	// TransferResult is the result of a move of leadership.
	TransferResult = apiv1.TransferResult
	// AutoFailover is the request of SetAutoFailover.
	AutoFailover = apiv1.AutoFailover
	// AutoFailoverState is the setting of automatic failover.
	AutoFailoverState = apiv1.AutoFailoverState
	// Recover is the request of Client.Recover.
	Recover = apiv1.Recover
	// RecoverFollow names a generation of the cluster in a Recover.
	RecoverFollow = apiv1.RecoverFollow
	// RecoverResult is the result of Client.Recover.
	RecoverResult = apiv1.RecoverResult
	// Survivor is a surviving node of a recovery.
	Survivor = apiv1.Survivor
	// RestoreResult is the result of SnapshotRestore.
	RestoreResult = apiv1.RestoreResult
	// Plan is what an operator's call would do.
	Plan = apiv1.Plan
	// PlannedError is the error of a call that a Plan refuses.
	PlannedError = apiv1.PlannedError
	// TargetCandidate is a node that a Plan considers.
	TargetCandidate = apiv1.TargetCandidate
	// Affected is what a Plan affects in addition to the leader.
	Affected = apiv1.Affected

	// NodeID is the ID of a member.
	NodeID = cluster.NodeID
	// Problem is an error of the cluster: its code, status and detail.
	Problem = cluster.Error
	// Code is the number of a kind of Problem, such as 4002.
	Code = cluster.Code
	// VoterAnswer is one voter's answer in a Problem.
	VoterAnswer = cluster.Vote
)
