package api

import (
	"northstar/api/apiv1"
	"northstar/api/token"
)

// Parameters that several routes share.
var (
	timeoutParam     = param{"timeout_ms", "integer", "bounds the whole request: 1 to 60000, default 5000"}
	redirectParam    = param{"redirect", "boolean", "answer 307 to the leader instead of forwarding to it"}
	consistencyParam = param{"consistency", "string", "linearizable (default), lease (as linearizable while election.lease is off) or stale"}
	prefixParam      = param{"prefix", "string", "only keys that start with this"}
	limitParam       = param{"limit", "integer", "at most so many items: 1 or more, default 100; an answer never has more than 1000"}
	pageParam        = param{"limit", "integer", "at most so many items: 1 or more; an answer never has more than 1000, the default"}
	ifMatch          = param{"If-Match", "string", `"REV": only while the key has this revision; *: only while it exists`}
	ifNoneMatch      = param{"If-None-Match", "string", "*: only while the key does not exist"}
	idempotencyKey   = param{apiv1.HeaderIdempotencyKey, "string", "1 to 128 bytes: a retried write happens once, and the first answer is repeated; kept 24 h, the last 100,000 at most"}
	fenceHeader      = param{apiv1.HeaderFence, "string", "ROLE=TOKEN: only while TOKEN is the role's current fencing token"}
	maxLagParam      = param{"max_lag", "integer", "and is at most so many log entries behind"}
	lastEventID      = param{"Last-Event-ID", "string", "resume after this event"}
	etagHeader       = param{"ETag", "string", "the key's revision in quotes"}
	revisionHeader   = param{apiv1.HeaderRevision, "integer", "the key's revision"}
	stateRevision    = param{apiv1.HeaderRevision, "integer", "the revision of the state that the answer shows, also of a 404: a watch since it misses nothing"}
	contactHeader    = param{apiv1.HeaderLastContact, "integer", "stale answers only: how old it may be"}
	leaderHeader     = param{apiv1.HeaderLeader, "string", "only where another node forwarded the request: host:port of the leader, to go there directly"}
	clusterHeader    = param{apiv1.HeaderCluster, "string", "ID of the cluster that the node belongs to"}
	generationHeader = param{apiv1.HeaderGeneration, "string", "N, or N RECOVERY-ID after a quorum-loss recovery"}
	checksumTrailer  = param{apiv1.HeaderChecksum, "string", "trailer: sha256:HEX of the body"}
)

func jsonResponse(v any, doc string, headers ...param) []responseDoc {
	return []responseDoc{{status: 200, media: apiv1.TypeJSON, value: v, doc: doc, header: headers}}
}

// planResponse is of a call that can be a dry run.
func planResponse(v any, doc string, headers ...param) []responseDoc {
	return append(jsonResponse(v, doc+"; with dry_run: what would be done", headers...), jsonResponse(apiv1.Plan{}, "")...)
}

func textResponse(doc string) []responseDoc {
	return []responseDoc{{status: 200, media: "text/plain", doc: doc}}
}

// table is every route there is.
var table = []route{
	// Discovery and health: open to all, and served also when the node is busy.
	{
		method: "GET", pattern: "/leader", role: token.None, limitExempt: true, handle: getLeader,
		summary: "The leader that this node knows", responses: jsonResponse(apiv1.Leader{}, "the leader", clusterHeader, generationHeader), errorStatuses: []int{503},
	},
	{
		method: "GET", pattern: "/status", role: token.None, limitExempt: true, handle: getStatus,
		summary: "This node as it sees itself", responses: jsonResponse(apiv1.Status{}, "the node"),
	},
	{
		method: "GET", pattern: "/livez", role: token.None, limitExempt: true, handle: getLive,
		summary: "Is the process able to serve?", query: []param{{"verbose", "boolean", "one line per check"}}, responses: textResponse("it is"),
	},
	{
		method: "GET", pattern: "/readyz", role: token.None, limitExempt: true, handle: getReady,
		summary: "Should this node get requests?", query: []param{{"verbose", "boolean", "one line per check also when it is ready"}},
		responses: textResponse("it has a leader, has caught up, and does not drain"), errorStatuses: []int{503},
	},
	{
		method: "GET", pattern: "/health/leader", role: token.None, limitExempt: true, handle: getLeaderHealth,
		summary: "For load balancers: does this node lead, provably?", responses: textResponse("a majority has just confirmed it"), errorStatuses: []int{503},
	},
	{
		method: "OPTIONS", pattern: "/health/leader", role: token.None, limitExempt: true, handle: getLeaderHealth,
		summary: "As GET", responses: textResponse("a majority has just confirmed it"), errorStatuses: []int{503},
	},
	{
		method: "GET", pattern: "/health/follower", role: token.None, limitExempt: true, handle: getFollowerHealth,
		summary: "For load balancers: does this node follow a live leader?", query: []param{maxLagParam},
		responses: textResponse("it does"), errorStatuses: []int{503},
	},
	{
		method: "OPTIONS", pattern: "/health/follower", role: token.None, limitExempt: true, handle: getFollowerHealth,
		summary: "As GET", query: []param{maxLagParam}, responses: textResponse("it does"), errorStatuses: []int{503},
	},
	{
		method: "GET", pattern: apiv1.PathCluster, role: token.None, limitExempt: true, handle: getCluster,
		summary: "The cluster as the leader sees it", responses: jsonResponse(apiv1.Cluster{}, "the leader's view; the node's own when the leader does not answer (see observed_by)"),
	},
	{
		method: "GET", pattern: "/metrics", role: token.None, limitExempt: true, handle: getMetrics,
		summary: "Metrics for Prometheus", responses: textResponse("metrics"),
	},
	{
		method: "GET", pattern: "/openapi.json", role: token.None, limitExempt: true, handle: getOpenAPI,
		summary: "This document", responses: []responseDoc{{status: 200, media: apiv1.TypeJSON, value: map[string]any{}, doc: "OpenAPI 3.1"}},
	},
	{
		method: "GET", pattern: "/", role: token.None, limitExempt: true, handle: getDashboard,
		summary: "The dashboard", responses: []responseDoc{{status: 200, media: "text/html", doc: "a page"}},
	},
	{
		method: "GET", pattern: "/dashboard/{file}", role: token.None, limitExempt: true, handle: getDashboardFile,
		summary: "Parts of the dashboard", responses: []responseDoc{{status: 200, media: "text/css", doc: "style"}, {status: 200, media: "text/javascript", doc: "script"}}, errorStatuses: []int{404},
	},

	// Keys.
	{
		method: "GET", pattern: "/v1/kv/{key}", catchAll: true, role: token.Observer, handle: getKey,
		summary: "Read a key", query: []param{consistencyParam, timeoutParam, redirectParam},
		responses: []responseDoc{
			{status: 200, media: apiv1.TypeBinary, doc: "the value", header: []param{etagHeader, revisionHeader, contactHeader, leaderHeader}},
			{status: 304, doc: "If-None-Match named the current revision"},
		},
		headers: []param{{"If-None-Match", "string", `"REV", a list of them, or *: 304 when that is current`}}, errorStatuses: []int{307, 404, 503},
	},
	{
		method: "PUT", pattern: "/v1/kv/{key}", catchAll: true, role: token.Client, handle: putKey,
		summary: "Write a key", query: []param{timeoutParam, redirectParam, {"ttl_session", "string", "ties the key to a session"}},
		headers: []param{ifMatch, ifNoneMatch, idempotencyKey, fenceHeader},
		body:    raw{}, bodyDoc: "the value, at most 1 MiB",
		responses: jsonResponse(apiv1.PutResult{}, "written", etagHeader, revisionHeader, leaderHeader), errorStatuses: []int{307, 404, 409, 412, 413, 415, 422, 503, 504},
	},
	{
		method: "DELETE", pattern: "/v1/kv/{key}", catchAll: true, role: token.Client, handle: deleteKey,
		summary: "Delete a key", query: []param{timeoutParam, redirectParam},
		headers:   []param{ifMatch, idempotencyKey, fenceHeader},
		responses: jsonResponse(apiv1.DeleteResult{}, "deleted", etagHeader, revisionHeader, leaderHeader), errorStatuses: []int{307, 404, 409, 412, 415, 422, 503, 504},
	},
	{
		method: "GET", pattern: apiv1.PathKV, role: token.Observer, handle: listKeys,
		summary: "List keys in order", query: []param{prefixParam, pageParam, {"after", "string", "only keys greater than this: next of the page before"}, consistencyParam, timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.List{}, "a page, of at most 4 MiB of values", contactHeader, leaderHeader), errorStatuses: []int{307, 503},
	},
	{
		method: "GET", pattern: apiv1.PathWatch, role: token.Observer, responseKind: stream, handle: watchKeys,
		summary: "Follow the changes of keys as server-sent events", query: []param{prefixParam, {"since", "integer", "changes with a greater revision than this; absent: from now"}},
		headers:       []param{lastEventID},
		responses:     []responseDoc{{status: 200, media: apiv1.TypeEventStream, value: apiv1.Change{}, doc: "id: the revision, event: put or delete, data as below; event: error with a problem, or moving, ends the stream", header: []param{{apiv1.HeaderRevision, "integer", "the revision after which the stream starts"}}}},
		errorStatuses: []int{410},
	},

	// Sessions and roles.
	{
		method: "POST", pattern: apiv1.PathSessions, role: token.Client, handle: createSession,
		summary: "Start a session", query: []param{timeoutParam, redirectParam}, body: apiv1.SessionCreate{},
		responses: jsonResponse(apiv1.SessionCreated{}, "started", leaderHeader), errorStatuses: []int{307, 413, 415, 503, 504},
	},
	{
		method: "GET", pattern: apiv1.PathSessions, role: token.Observer, handle: listSessions,
		summary: "List the sessions that live, the oldest first", query: []param{pageParam, {"after", "string", "only sessions younger than this: next of the page before"}, consistencyParam, timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.Sessions{}, "a page", contactHeader, leaderHeader), errorStatuses: []int{307, 503},
	},
	{
		method: "POST", skipAudit: true, pattern: apiv1.PathRenew, role: token.Client, handle: renewSessions,
		summary: "Renew many sessions at once", query: []param{timeoutParam, redirectParam}, body: apiv1.RenewMany{},
		responses: jsonResponse(apiv1.RenewedMany{}, "which live, for their TTL from the request on", leaderHeader), errorStatuses: []int{307, 413, 415, 503},
	},
	{
		method: "GET", pattern: "/v1/sessions/{id}", role: token.Observer, handle: getSession,
		summary: "A session and what it holds", query: []param{consistencyParam, timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.Session{}, "it lives", contactHeader, leaderHeader), errorStatuses: []int{307, 404, 503},
	},
	{
		method: "DELETE", pattern: "/v1/sessions/{id}", role: token.Client, handle: endSession,
		summary: "End a session, freeing all that it holds", query: []param{timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.SessionEnded{}, "ended", leaderHeader), errorStatuses: []int{307, 404, 415, 503, 504},
	},
	{
		method: "POST", skipAudit: true, pattern: "/v1/sessions/{id}/renew", role: token.Client, handle: renewSession,
		summary: "Renew a session", query: []param{timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.Renewal{}, "it lives for its TTL from the request on", leaderHeader), errorStatuses: []int{307, 404, 409, 415, 503},
	},
	{
		method: "GET", pattern: "/v1/sessions/{id}/attach", role: token.Client, responseKind: attachStream, handle: attachSession,
		summary: "Hold a session by this connection, as server-sent events",
		query: []param{
			{"grace_ms", "integer", "how long the session lives on when the connection ends, within its TTL; default 0: it ends at once"},
			{"hold", "boolean", "default true: the connection renews the session; false: the client renews it besides, and the connection only ends it"},
		},
		responses:     []responseDoc{{status: 200, media: apiv1.TypeEventStream, value: apiv1.KeepAlive{}, doc: "event: alive at each renewal, data as below; event: moving, when the node is about to stop: attach elsewhere, the session lives on for its TTL; event: error with a problem when it has ended, or when a role was taken from it (4011)"}},
		errorStatuses: []int{404, 409},
	},
	{
		method: "POST", skipAudit: true, pattern: apiv1.PathAttached, role: token.Client, allowNodeCert: true, handle: postAttachReport,
		summary: "Between nodes: renew and end the sessions of attached connections", body: apiv1.AttachReport{},
		responses: jsonResponse(apiv1.AttachReportResult{}, "which live"), errorStatuses: []int{413, 415, 503},
	},
	{
		method: "GET", pattern: apiv1.PathRoles, role: token.Observer, handle: listRoles,
		summary: "List the roles that somebody holds", query: []param{pageParam, {"after", "string", "only roles with a name greater than this: next of the page before"}, {"all", "boolean", "also those that nobody holds"}, consistencyParam, timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.Roles{}, "a page", contactHeader, leaderHeader), errorStatuses: []int{307, 503},
	},
	{
		method: "GET", pattern: "/v1/roles/{role}", role: token.Observer, handle: getRole,
		summary: "Who holds a role, and who waits for it", query: []param{consistencyParam, timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.Role{}, "somebody does", stateRevision, contactHeader, leaderHeader), errorStatuses: []int{307, 404, 503},
	},
	{
		method: "DELETE", pattern: "/v1/roles/{role}", role: token.Client, handle: resignRole,
		summary: "Resign from a role, or from waiting for it, or say that it is known that the role was taken",
		query: []param{
			{"session_id", "string", "who resigns; must be given"},
			{"token", "integer", "of the only tenure that is meant: 409 with any other"},
			timeoutParam, redirectParam,
		},
		responses: jsonResponse(apiv1.RoleResult{}, "resigned", leaderHeader), errorStatuses: []int{307, 404, 409, 503, 504},
	},
	{
		method: "POST", pattern: "/v1/roles/{role}/campaign", role: token.Client, responseKind: longPoll, handle: campaign,
		summary: "Campaign for a role: at once, or in the queue until elected", query: []param{redirectParam}, body: apiv1.Campaign{},
		responses: jsonResponse(apiv1.Role{}, "this session holds it", leaderHeader), errorStatuses: []int{307, 404, 409, 413, 415, 503, 504},
	},
	{
		method: "GET", pattern: "/v1/roles/{role}/history", role: token.Observer, handle: getRoleHistory,
		summary: "Who has held a role, the newest first", query: []param{consistencyParam, timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.RoleHistory{}, "the present tenure and the last 32 before it", contactHeader, leaderHeader), errorStatuses: []int{307, 404, 503},
	},
	{
		method: "GET", pattern: "/v1/roles/{role}/watch", role: token.Observer, responseKind: stream, handle: watchRole,
		summary: "Follow elections and vacancies of a role as server-sent events", query: []param{{"since", "integer", "events with a greater revision than this; absent: from now"}},
		headers:       []param{lastEventID},
		responses:     []responseDoc{{status: 200, media: apiv1.TypeEventStream, value: apiv1.RoleEvent{}, doc: "id: the revision, which for elected is the token; event: elected or vacated, data as below; event: error with a problem, or moving, ends the stream", header: []param{{apiv1.HeaderRevision, "integer", "the revision after which the stream starts"}}}},
		errorStatuses: []int{410},
	},

	// The registry of application nodes.
	{
		method: "GET", pattern: apiv1.PathNodes, role: token.Observer, handle: listNodes,
		summary: "List application nodes", query: []param{
			{"status", "string", "only those that are joining, active, draining or dead"},
			{"role", "string", "only those with this role"},
			{"capability", "string", "only those with this capability"},
			pageParam,
			{"after", "string", "only nodes with an ID greater than this: next of the page before"},
			consistencyParam, timeoutParam, redirectParam,
		},
		responses: jsonResponse(apiv1.Nodes{}, "a page", contactHeader, leaderHeader), errorStatuses: []int{307, 503},
	},
	{
		method: "GET", pattern: "/v1/nodes/counts", role: token.Observer, handle: countNodes,
		summary: "Count application nodes by status", query: []param{consistencyParam, timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.Counts{}, "how many there are", contactHeader, leaderHeader), errorStatuses: []int{307, 503},
	},
	{
		method: "GET", pattern: "/v1/nodes/watch", role: token.Observer, responseKind: stream, handle: watchNodes,
		summary: "Follow the changes of application nodes as server-sent events", query: []param{{"since", "integer", "changes with a greater revision than this; absent: from now"}},
		headers:       []param{lastEventID},
		responses:     []responseDoc{{status: 200, media: apiv1.TypeEventStream, value: apiv1.Node{}, doc: "id: the revision, event: put or delete, data as below; event: error with a problem, or moving, ends the stream", header: []param{{apiv1.HeaderRevision, "integer", "the revision after which the stream starts"}}}},
		errorStatuses: []int{410},
	},
	{
		method: "GET", pattern: "/v1/nodes/{id}", role: token.Observer, handle: getNode,
		summary: "An application node", query: []param{consistencyParam, timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.Node{}, "it is registered", contactHeader, leaderHeader), errorStatuses: []int{307, 404, 503},
	},
	{
		method: "PUT", pattern: "/v1/nodes/{id}", role: token.Client, handle: putNode,
		summary: "Register an application node, or say what it is now", query: []param{timeoutParam, redirectParam}, body: apiv1.NodePut{},
		responses: jsonResponse(apiv1.Node{}, "registered", leaderHeader), errorStatuses: []int{307, 404, 413, 415, 503, 504},
	},
	{
		method: "DELETE", pattern: "/v1/nodes/{id}", role: token.Client, handle: removeNode,
		summary: "Remove an application node from the registry", query: []param{timeoutParam, redirectParam},
		responses: jsonResponse(apiv1.NodeRemoved{}, "removed", leaderHeader), errorStatuses: []int{307, 404, 415, 503, 504},
	},

	// What happened.
	{
		method: "GET", pattern: apiv1.PathEvents, role: token.Observer, responseKind: streamOnAccept, handle: listEvents,
		summary: "Events of all nodes that can be reached, each since its process began", query: []param{{"since", "string", "after the event with this seq; absent: the newest, of a stream: from now"}, {"type", "string", "only these; split-brain and split_brain are splitbrain"}, limitParam},
		headers:   []param{{"Accept", "string", "text/event-stream: as a stream"}, lastEventID},
		responses: jsonResponse(apiv1.Events{}, "oldest first"), errorStatuses: []int{410},
	},
	{
		method: "GET", pattern: apiv1.PathElection, role: token.Observer, handle: listElections,
		summary: "Elections, newest first: those that gave a leader, and those that came to nothing as far as the nodes that stood can be reached and still know", query: []param{limitParam},
		responses: jsonResponse(apiv1.Elections{}, "the newest first"),
	},

	// Operating.
	{
		method: "POST", pattern: apiv1.PathMembers, role: token.Operator, allowNodeCert: true, handle: addMember,
		summary: "Add a member as non-voter", body: apiv1.MemberAdd{},
		responses: planResponse(apiv1.MemberResult{}, "added", leaderHeader), errorStatuses: []int{409, 413, 415, 503, 504},
	},
	{
		method: "PATCH", pattern: "/admin/members/{id}", role: token.Operator, handle: patchMember,
		summary: "Change a member", body: apiv1.MemberPatch{},
		responses: planResponse(apiv1.MemberResult{}, "changed", leaderHeader), errorStatuses: []int{404, 409, 413, 415, 503, 504},
	},
	{
		method: "DELETE", pattern: "/admin/members/{id}", role: token.Operator, handle: removeMember,
		summary: "Remove a member", body: apiv1.MemberRemove{},
		responses: planResponse(apiv1.MemberResult{}, "removed", leaderHeader), errorStatuses: []int{404, 409, 413, 415, 503, 504},
	},
	{
		method: "POST", pattern: "/admin/nodes/{id}/drain", role: token.Operator, handle: drainNode,
		summary: "Take a node out of the way: it does not lead, is not ready, and moves attached clients; it goes on voting", body: apiv1.Drain{},
		responses: planResponse(apiv1.MemberResult{}, "set", leaderHeader), errorStatuses: []int{404, 409, 413, 415, 503, 504},
	},
	{
		method: "POST", pattern: "/admin/nodes/{id}/undrain", role: token.Operator, handle: undrainNode,
		summary: "End a drain", body: apiv1.Drain{},
		responses: planResponse(apiv1.MemberResult{}, "set", leaderHeader), errorStatuses: []int{404, 409, 413, 415, 503, 504},
	},
	{
		method: "POST", pattern: apiv1.PathRecover, role: token.Operator, handle: postRecover,
		summary: "Recover a lost quorum: one survivor becomes the only voter of a new generation", body: apiv1.Recover{},
		responses: planResponse(apiv1.RecoverResult{}, "the recovered node leads", leaderHeader), errorStatuses: []int{409, 413, 415, 503, 504},
	},
	{
		method: "POST", pattern: apiv1.PathTransfer, role: token.Operator, handle: postTransfer,
		summary: "Planned transfer of leadership", body: apiv1.Transfer{},
		responses: planResponse(apiv1.TransferResult{}, "the target is seen leading", leaderHeader), errorStatuses: []int{404, 409, 413, 415, 503, 504},
	},
	{
		method: "POST", pattern: apiv1.PathFailover, role: token.Operator, handle: postFailover,
		summary: "Manual failover: by the leader when it can take part, else by an election", body: apiv1.Failover{},
		responses: planResponse(apiv1.TransferResult{}, "the target leads", leaderHeader), errorStatuses: []int{404, 409, 413, 415, 503, 504},
	},
	{
		method: "POST", pattern: apiv1.PathEmergency, role: token.Operator, handle: postEmergency,
		summary: "Emergency failover: the target stands at once, without any check but the voters' own", body: apiv1.Emergency{},
		responses: planResponse(apiv1.TransferResult{}, "the target leads", leaderHeader), errorStatuses: []int{404, 409, 413, 415, 503, 504},
	},
	{
		method: "GET", pattern: apiv1.PathAuto, role: token.Operator, handle: getAutoFailover,
		summary:   "Does the cluster replace a failed leader by itself?",
		responses: jsonResponse(apiv1.AutoFailoverState{}, "as this node has applied it"),
	},
	{
		method: "POST", pattern: apiv1.PathAuto, role: token.Operator, handle: postAutoFailover,
		summary: "Pause or resume automatic failover for the whole cluster", body: apiv1.AutoFailover{},
		responses: planResponse(apiv1.AutoFailoverState{}, "set, and known to every node that answers"), errorStatuses: []int{409, 413, 415, 503, 504},
	},
	{
		method: "POST", pattern: "/admin/roles/{role}/transfer", role: token.Operator, handle: transferRole,
		summary: "Hand a role over to a candidate", body: apiv1.RoleTransfer{},
		responses: planResponse(apiv1.RoleChange{}, "handed over, or taken from its holder, who is waited for: message says which", leaderHeader), errorStatuses: []int{404, 409, 413, 415, 503, 504},
	},
	{
		method: "DELETE", pattern: "/admin/roles/{role}", role: token.Operator, handle: evictRole,
		summary: "Take a role from its holder", body: apiv1.RoleEvict{},
		responses: planResponse(apiv1.RoleChange{}, "the next candidate holds it, or nobody, or the holder is waited for: message says which", leaderHeader), errorStatuses: []int{404, 409, 413, 415, 503, 504},
	},
	{
		method: "GET", pattern: apiv1.PathSplit, role: token.Operator, limitExempt: true, handle: getSplitBrain,
		summary:   "Is there another leader, or another cluster? What this node makes of what the members say",
		responses: jsonResponse(apiv1.SplitBrain{}, "of the last check"), errorStatuses: []int{503},
	},
	{
		method: "POST", pattern: apiv1.PathCheck, role: token.Operator, handle: postSplitBrain,
		summary: "Check now", body: apiv1.SplitBrainCheck{},
		responses: jsonResponse(apiv1.SplitBrain{}, "of this check"), errorStatuses: []int{413, 415, 503},
	},
	{
		method: "GET", pattern: apiv1.PathAudit, role: token.Operator, handle: listAudit,
		summary: "Who called what, from where, why, and what came of it: calls that are not GET, and those that were forbidden",
		query: []param{
			{"since", "string", "records after the one with this seq; absent: the newest"},
			limitParam,
			{"class", "string", "only operators (calls of /admin that were allowed) or clients (all others)"},
			{"who", "string", "only of this token or certificate"},
			consistencyParam, timeoutParam, redirectParam,
		},
		responses: jsonResponse(apiv1.Audit{}, "oldest first", contactHeader, leaderHeader), errorStatuses: []int{307, 503},
	},
	{
		method: "GET", pattern: apiv1.PathSnapshot, role: token.Operator, responseKind: stream, handle: getSnapshot,
		summary:   "Backup of the keys and settings",
		responses: []responseDoc{{status: 200, media: apiv1.TypeBinary, doc: "the backup, with checksums inside and as trailer", header: []param{checksumTrailer, leaderHeader}}}, errorStatuses: []int{503},
	},
	{
		method: "POST", pattern: apiv1.PathRestore, role: token.Operator, responseKind: stream, handle: postRestore,
		summary: "Restore a backup: keys and settings are replaced", body: raw{}, bodyDoc: "what GET /admin/snapshot gave",
		responses: jsonResponse(apiv1.RestoreResult{}, "restored; all watches have ended", leaderHeader), errorStatuses: []int{415, 503, 504},
	},
}
