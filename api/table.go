package api

import (
	"northstar/api/apiv1"
	"northstar/api/openapi"
	"northstar/api/token"
)

// handler serves one request.
type handler func(*request) error

// Parameters that several routes share.
var (
	timeoutParam     = openapi.Integer("timeout_ms", "bounds the whole request: 1 to 60000, default 5000")
	redirectParam    = openapi.Boolean("redirect", "answer 307 to the leader instead of forwarding to it")
	consistencyParam = openapi.String("consistency", "linearizable (default), lease (as linearizable while election.lease is off) or stale")
	prefixParam      = openapi.String("prefix", "only keys that start with this")
	limitParam       = openapi.Integer("limit", "at most so many items: 1 or more, default 100; an answer never has more than 1000")
	pageParam        = openapi.Integer("limit", "at most so many items: 1 or more; an answer never has more than 1000, the default")
	ifMatch          = openapi.String("If-Match", `"REV": only while the key has this revision; *: only while it exists`)
	ifNoneMatch      = openapi.String("If-None-Match", "*: only while the key does not exist")
	idempotencyKey   = openapi.String(apiv1.HeaderIdempotencyKey, "1 to 128 bytes: a retried write happens once, and the first answer is repeated; kept 24 h, the last 100,000 at most")
	fenceHeader      = openapi.String(apiv1.HeaderFence, "ROLE=TOKEN: only while TOKEN is the role's current fencing token")
	maxLagParam      = openapi.Integer("max_lag", "and is at most so many log entries behind")
	lastEventID      = openapi.String("Last-Event-ID", "resume after this event")
	etagHeader       = openapi.String("ETag", "the key's revision in quotes")
	revisionHeader   = openapi.Integer(apiv1.HeaderRevision, "the key's revision")
	stateRevision    = openapi.Integer(apiv1.HeaderRevision, "the revision of the state that the answer shows, also of a 404: a watch since it misses nothing")
	contactHeader    = openapi.Integer(apiv1.HeaderLastContact, "stale answers only: how old it may be")
	leaderHeader     = openapi.String(apiv1.HeaderLeader, "only where another node forwarded the request: host:port of the leader, to go there directly")
	clusterHeader    = openapi.String(apiv1.HeaderCluster, "ID of the cluster that the node belongs to")
	generationHeader = openapi.String(apiv1.HeaderGeneration, "N, or N RECOVERY-ID after a quorum-loss recovery")
	checksumTrailer  = openapi.String(apiv1.HeaderChecksum, "trailer: sha256:HEX of the body")
)

func jsonResponse(v any, doc string, headers ...openapi.Param) []openapi.Response {
	return []openapi.Response{{Status: 200, Media: apiv1.TypeJSON, Value: v, Doc: doc, Headers: headers}}
}

// planResponse is the response to a call that may be a dry run.
func planResponse(v any, doc string, headers ...openapi.Param) []openapi.Response {
	return append(jsonResponse(v, doc+"; with dry_run: what would be done", headers...), jsonResponse(apiv1.Plan{}, "")...)
}

func textResponse(doc string) []openapi.Response {
	return []openapi.Response{{Status: 200, Media: "text/plain", Doc: doc}}
}

// list returns a route that lists the leader's applied state or, with ?consistency=stale, this node's.
func list(pattern string, h handler, summary string, value any, doc string, query ...openapi.Param) openapi.Route[handler] {
	return openapi.Route[handler]{
		Method: "GET", Pattern: pattern, Role: token.Observer, Handle: h, Summary: summary,
		Query:     append(query, consistencyParam, timeoutParam, redirectParam),
		Responses: jsonResponse(value, doc, contactHeader, leaderHeader), ErrorStatuses: []int{307, 503},
	}
}

// item is list for one item, which may not exist.
func item(pattern string, h handler, summary string, value any, doc string) openapi.Route[handler] {
	route := list(pattern, h, summary, value, doc)
	route.ErrorStatuses = []int{307, 404, 503}
	return route
}

// planned returns an operator's route whose request may be a dry run or name a plan.
func planned(method, pattern string, h handler, summary string, body, value any, doc string) openapi.Route[handler] {
	return openapi.Route[handler]{
		Method: method, Pattern: pattern, Role: token.Operator, Handle: h, Summary: summary, Body: body,
		Responses: planResponse(value, doc, leaderHeader), ErrorStatuses: []int{404, 409, 413, 415, 503, 504},
	}
}

// table returns all routes.
var table = []openapi.Route[handler]{
	// Discovery and health: without authentication, and served even if the node is busy.
	{
		Method: "GET", Pattern: "/leader", Role: token.None, LimitExempt: true, Handle: getLeader,
		Summary: "The leader that this node knows", Responses: jsonResponse(apiv1.Leader{}, "the leader", clusterHeader, generationHeader), ErrorStatuses: []int{503},
	},
	{
		Method: "GET", Pattern: "/status", Role: token.None, LimitExempt: true, Handle: getStatus,
		Summary: "This node as it sees itself", Responses: jsonResponse(apiv1.Status{}, "the node"),
	},
	{
		Method: "GET", Pattern: "/livez", Role: token.None, LimitExempt: true, Handle: getLive,
		Summary: "Is the process able to serve?", Query: []openapi.Param{openapi.Boolean("verbose", "one line per check")}, Responses: textResponse("it is"),
	},
	{
		Method: "GET", Pattern: "/readyz", Role: token.None, LimitExempt: true, Handle: getReady,
		Summary: "Should this node get requests?", Query: []openapi.Param{openapi.Boolean("verbose", "one line per check also when it is ready")},
		Responses: textResponse("it has a leader, has caught up, and does not drain"), ErrorStatuses: []int{503},
	},
	{
		Method: "GET", Pattern: "/health/leader", Role: token.None, LimitExempt: true, Handle: getLeaderHealth,
		Summary: "For load balancers: does this node lead, provably?", Responses: textResponse("a majority has just confirmed it"), ErrorStatuses: []int{503},
	},
	{
		Method: "OPTIONS", Pattern: "/health/leader", Role: token.None, LimitExempt: true, Handle: getLeaderHealth,
		Summary: "As GET", Responses: textResponse("a majority has just confirmed it"), ErrorStatuses: []int{503},
	},
	{
		Method: "GET", Pattern: "/health/follower", Role: token.None, LimitExempt: true, Handle: getFollowerHealth,
		Summary: "For load balancers: does this node follow a live leader?", Query: []openapi.Param{maxLagParam},
		Responses: textResponse("it does"), ErrorStatuses: []int{503},
	},
	{
		Method: "OPTIONS", Pattern: "/health/follower", Role: token.None, LimitExempt: true, Handle: getFollowerHealth,
		Summary: "As GET", Query: []openapi.Param{maxLagParam}, Responses: textResponse("it does"), ErrorStatuses: []int{503},
	},
	{
		Method: "GET", Pattern: apiv1.PathCluster, Role: token.None, LimitExempt: true, Handle: getCluster,
		Summary: "The cluster as the leader sees it", Responses: jsonResponse(apiv1.Cluster{}, "the leader's view; the node's own when the leader does not answer (see observed_by)"),
	},
	{
		Method: "GET", Pattern: "/metrics", Role: token.None, LimitExempt: true, Handle: getMetrics,
		Summary: "Metrics for Prometheus", Responses: textResponse("metrics"),
	},
	{
		Method: "GET", Pattern: "/openapi.json", Role: token.None, LimitExempt: true, Handle: getOpenAPI,
		Summary: "This document", Responses: []openapi.Response{{Status: 200, Media: apiv1.TypeJSON, Value: map[string]any{}, Doc: "OpenAPI 3.1"}},
	},
	{
		Method: "GET", Pattern: "/", Role: token.None, LimitExempt: true, Handle: getDashboard,
		Summary: "The dashboard", Responses: []openapi.Response{{Status: 200, Media: "text/html", Doc: "a page"}},
	},
	{
		Method: "GET", Pattern: "/dashboard/{file}", Role: token.None, LimitExempt: true, Handle: getDashboardFile,
		Summary: "Parts of the dashboard", Responses: []openapi.Response{{Status: 200, Media: "text/css", Doc: "style"}, {Status: 200, Media: "text/javascript", Doc: "script"}}, ErrorStatuses: []int{404},
	},

	// Keys.
	{
		Method: "GET", Pattern: "/v1/kv/{key}", CatchAll: true, Role: token.Observer, Handle: getKey,
		Summary: "Read a key", Query: []openapi.Param{consistencyParam, timeoutParam, redirectParam},
		Responses: []openapi.Response{
			{Status: 200, Media: apiv1.TypeBinary, Doc: "the value", Headers: []openapi.Param{etagHeader, revisionHeader, contactHeader, leaderHeader}},
			{Status: 304, Doc: "If-None-Match named the current revision"},
		},
		Headers: []openapi.Param{openapi.String("If-None-Match", `"REV", a list of them, or *: 304 when that is current`)}, ErrorStatuses: []int{307, 404, 503},
	},
	{
		Method: "PUT", Pattern: "/v1/kv/{key}", CatchAll: true, Role: token.Client, Handle: putKey,
		Summary: "Write a key", Query: []openapi.Param{timeoutParam, redirectParam, openapi.String("ttl_session", "ties the key to a session")},
		Headers: []openapi.Param{ifMatch, ifNoneMatch, idempotencyKey, fenceHeader},
		Body:    openapi.Raw{}, BodyDoc: "the value, at most 1 MiB",
		Responses: jsonResponse(apiv1.PutResult{}, "written", etagHeader, revisionHeader, leaderHeader), ErrorStatuses: []int{307, 404, 409, 412, 413, 415, 422, 503, 504},
	},
	{
		Method: "DELETE", Pattern: "/v1/kv/{key}", CatchAll: true, Role: token.Client, Handle: deleteKey,
		Summary: "Delete a key", Query: []openapi.Param{timeoutParam, redirectParam},
		Headers:   []openapi.Param{ifMatch, idempotencyKey, fenceHeader},
		Responses: jsonResponse(apiv1.DeleteResult{}, "deleted", etagHeader, revisionHeader, leaderHeader), ErrorStatuses: []int{307, 404, 409, 412, 415, 422, 503, 504},
	},
	list(apiv1.PathKV, listKeys, "List keys in order",
		apiv1.List{}, "a page, of at most 4 MiB of values",
		prefixParam,
		pageParam,
		openapi.String("after", "only keys greater than this: next of the page before")),
	{
		Method: "GET", Pattern: apiv1.PathWatch, Role: token.Observer, Kind: openapi.Stream, Handle: watchKeys,
		Summary: "Follow the changes of keys as server-sent events", Query: []openapi.Param{prefixParam, openapi.Integer("since", "changes with a greater revision than this; absent: from now")},
		Headers:       []openapi.Param{lastEventID},
		Responses:     []openapi.Response{{Status: 200, Media: apiv1.TypeEventStream, Value: apiv1.Change{}, Doc: "id: the revision, event: put or delete, data as below; event: error with a problem, or moving, ends the stream", Headers: []openapi.Param{openapi.Integer(apiv1.HeaderRevision, "the revision after which the stream starts")}}},
		ErrorStatuses: []int{410},
	},

	// Sessions and roles.
	{
		Method: "POST", Pattern: apiv1.PathSessions, Role: token.Client, Handle: withBody(createSession),
		Summary: "Start a session", Query: []openapi.Param{timeoutParam, redirectParam}, Body: apiv1.SessionCreate{},
		Responses: jsonResponse(apiv1.SessionCreated{}, "started", leaderHeader), ErrorStatuses: []int{307, 413, 415, 503, 504},
	},
	list(apiv1.PathSessions, listSessions, "List the sessions that live, the oldest first",
		apiv1.Sessions{}, "a page",
		pageParam,
		openapi.String("after", "only sessions younger than this: next of the page before")),
	{
		Method: "POST", SkipAudit: true, Pattern: apiv1.PathRenew, Role: token.Client, Handle: withBody(renewSessions),
		Summary: "Renew many sessions at once", Query: []openapi.Param{timeoutParam, redirectParam}, Body: apiv1.RenewMany{},
		Responses: jsonResponse(apiv1.RenewedMany{}, "which live, for their TTL from the request on", leaderHeader), ErrorStatuses: []int{307, 413, 415, 503},
	},
	item("/v1/sessions/{id}", getSession, "A session and what it holds",
		apiv1.Session{}, "it lives"),
	{
		Method: "DELETE", Pattern: "/v1/sessions/{id}", Role: token.Client, Handle: withBody(endSession),
		Summary: "End a session, freeing all that it holds", Query: []openapi.Param{timeoutParam, redirectParam},
		Responses: jsonResponse(apiv1.SessionEnded{}, "ended", leaderHeader), ErrorStatuses: []int{307, 404, 415, 503, 504},
	},
	{
		Method: "POST", SkipAudit: true, Pattern: "/v1/sessions/{id}/renew", Role: token.Client, Handle: withBody(renewSession),
		Summary: "Renew a session", Query: []openapi.Param{timeoutParam, redirectParam},
		Responses: jsonResponse(apiv1.Renewal{}, "it lives for its TTL from the request on", leaderHeader), ErrorStatuses: []int{307, 404, 409, 415, 503},
	},
	{
		Method: "GET", Pattern: "/v1/sessions/{id}/attach", Role: token.Client, Kind: openapi.AttachStream, Handle: attachSession,
		Summary: "Hold a session by this connection, as server-sent events",
		Query: []openapi.Param{
			openapi.Integer("grace_ms", "how long the session lives on when the connection ends, within its TTL; default 0: it ends at once"),
			openapi.Boolean("hold", "default true: the connection renews the session; false: the client renews it besides, and the connection only ends it"),
		},
		Responses:     []openapi.Response{{Status: 200, Media: apiv1.TypeEventStream, Value: apiv1.KeepAlive{}, Doc: "event: alive at each renewal, data as below; event: moving, when the node is about to stop: attach elsewhere, the session lives on for its TTL; event: error with a problem when it has ended, or when a role was taken from it (4011)"}},
		ErrorStatuses: []int{404, 409},
	},
	{
		Method: "POST", SkipAudit: true, Pattern: apiv1.PathAttached, Role: token.Client, AllowNode: true, Handle: withBody(postAttachReport),
		Summary: "Between nodes: renew and end the sessions of attached connections", Body: apiv1.AttachReport{},
		Responses: jsonResponse(apiv1.AttachReportResult{}, "which live"), ErrorStatuses: []int{413, 415, 503},
	},
	list(apiv1.PathRoles, listRoles, "List the roles that somebody holds",
		apiv1.Roles{}, "a page",
		pageParam,
		openapi.String("after", "only roles with a name greater than this: next of the page before"),
		openapi.Boolean("all", "also those that nobody holds")),
	{
		Method: "GET", Pattern: "/v1/roles/{role}", Role: token.Observer, Handle: getRole,
		Summary: "Who holds a role, and who waits for it", Query: []openapi.Param{consistencyParam, timeoutParam, redirectParam},
		Responses: jsonResponse(apiv1.Role{}, "somebody does", stateRevision, contactHeader, leaderHeader), ErrorStatuses: []int{307, 404, 503},
	},
	{
		Method: "DELETE", Pattern: "/v1/roles/{role}", Role: token.Client, Handle: resignRole,
		Summary: "Resign from a role, or from waiting for it, or say that it is known that the role was taken",
		Query: []openapi.Param{
			openapi.String("session_id", "who resigns; must be given"),
			openapi.Integer("token", "of the only tenure that is meant: 409 with any other"),
			timeoutParam, redirectParam,
		},
		Responses: jsonResponse(apiv1.RoleResult{}, "resigned", leaderHeader), ErrorStatuses: []int{307, 404, 409, 503, 504},
	},
	{
		Method: "POST", Pattern: "/v1/roles/{role}/campaign", Role: token.Client, Kind: openapi.LongPoll, Handle: withBody(campaign),
		Summary: "Campaign for a role: at once, or in the queue until elected", Query: []openapi.Param{redirectParam}, Body: apiv1.Campaign{},
		Responses: jsonResponse(apiv1.Role{}, "this session holds it", leaderHeader), ErrorStatuses: []int{307, 404, 409, 413, 415, 503, 504},
	},
	item("/v1/roles/{role}/history", getRoleHistory, "Who has held a role, the newest first",
		apiv1.RoleHistory{}, "the present tenure and the last 32 before it"),
	{
		Method: "GET", Pattern: "/v1/roles/{role}/watch", Role: token.Observer, Kind: openapi.Stream, Handle: watchRole,
		Summary: "Follow elections and vacancies of a role as server-sent events", Query: []openapi.Param{openapi.Integer("since", "events with a greater revision than this; absent: from now")},
		Headers:       []openapi.Param{lastEventID},
		Responses:     []openapi.Response{{Status: 200, Media: apiv1.TypeEventStream, Value: apiv1.RoleEvent{}, Doc: "id: the revision, which for elected is the token; event: elected or vacated, data as below; event: error with a problem, or moving, ends the stream", Headers: []openapi.Param{openapi.Integer(apiv1.HeaderRevision, "the revision after which the stream starts")}}},
		ErrorStatuses: []int{410},
	},

	// The registry of application nodes.
	list(apiv1.PathNodes, listNodes, "List application nodes",
		apiv1.Nodes{}, "a page",
		openapi.String("status", "only those that are joining, active, draining or dead"),
		openapi.String("role", "only those with this role"),
		openapi.String("capability", "only those with this capability"),
		pageParam,
		openapi.String("after", "only nodes with an ID greater than this: next of the page before")),
	list("/v1/nodes/counts", countNodes, "Count application nodes by status",
		apiv1.Counts{}, "how many there are"),
	{
		Method: "GET", Pattern: "/v1/nodes/watch", Role: token.Observer, Kind: openapi.Stream, Handle: watchNodes,
		Summary: "Follow the changes of application nodes as server-sent events", Query: []openapi.Param{openapi.Integer("since", "changes with a greater revision than this; absent: from now")},
		Headers:       []openapi.Param{lastEventID},
		Responses:     []openapi.Response{{Status: 200, Media: apiv1.TypeEventStream, Value: apiv1.Node{}, Doc: "id: the revision, event: put or delete, data as below; event: error with a problem, or moving, ends the stream", Headers: []openapi.Param{openapi.Integer(apiv1.HeaderRevision, "the revision after which the stream starts")}}},
		ErrorStatuses: []int{410},
	},
	item("/v1/nodes/{id}", getNode, "An application node",
		apiv1.Node{}, "it is registered"),
	{
		Method: "PUT", Pattern: "/v1/nodes/{id}", Role: token.Client, Handle: withBody(putNode),
		Summary: "Register an application node, or say what it is now", Query: []openapi.Param{timeoutParam, redirectParam}, Body: apiv1.NodePut{},
		Responses: jsonResponse(apiv1.Node{}, "registered", leaderHeader), ErrorStatuses: []int{307, 404, 413, 415, 503, 504},
	},
	{
		Method: "DELETE", Pattern: "/v1/nodes/{id}", Role: token.Client, Handle: withBody(removeNode),
		Summary: "Remove an application node from the registry", Query: []openapi.Param{timeoutParam, redirectParam},
		Responses: jsonResponse(apiv1.NodeRemoved{}, "removed", leaderHeader), ErrorStatuses: []int{307, 404, 415, 503, 504},
	},

	// What happened.
	{
		Method: "GET", Pattern: apiv1.PathEvents, Role: token.Observer, Kind: openapi.StreamOnAccept, Handle: listEvents,
		Summary: "Events of all nodes that can be reached, each since its process began", Query: []openapi.Param{openapi.String("since", "after the event with this seq; absent: the newest, of a stream: from now"), openapi.String("type", "only these; split-brain and split_brain are splitbrain"), limitParam},
		Headers:   []openapi.Param{openapi.String("Accept", "text/event-stream: as a stream"), lastEventID},
		Responses: jsonResponse(apiv1.Events{}, "oldest first"), ErrorStatuses: []int{410},
	},
	{
		Method: "GET", Pattern: apiv1.PathElection, Role: token.Observer, Handle: listElections,
		Summary: "Elections, newest first: those that gave a leader, and those that came to nothing as far as the nodes that stood can be reached and still know", Query: []openapi.Param{limitParam},
		Responses: jsonResponse(apiv1.Elections{}, "the newest first"),
	},

	// Operating.
	{
		Method: "POST", Pattern: apiv1.PathMembers, Role: token.Operator, AllowNode: true, Handle: withBody(addMember),
		Summary: "Add a member as non-voter", Body: apiv1.MemberAdd{},
		Responses: planResponse(apiv1.MemberResult{}, "added", leaderHeader), ErrorStatuses: []int{409, 413, 415, 503, 504},
	},
	planned("PATCH", "/admin/members/{id}", withBody(patchMember), "Change a member",
		apiv1.MemberPatch{}, apiv1.MemberResult{}, "changed"),
	planned("DELETE", "/admin/members/{id}", withBody(removeMember), "Remove a member",
		apiv1.MemberRemove{}, apiv1.MemberResult{}, "removed"),
	planned("POST", "/admin/nodes/{id}/drain", withBody(drainNode), "Take a node out of the way: it does not lead, is not ready, and moves attached clients; it goes on voting",
		apiv1.Drain{}, apiv1.MemberResult{}, "set"),
	planned("POST", "/admin/nodes/{id}/undrain", withBody(undrainNode), "End a drain",
		apiv1.Drain{}, apiv1.MemberResult{}, "set"),
	{
		Method: "POST", Pattern: apiv1.PathRecover, Role: token.Operator, Handle: withBody(postRecover),
		Summary: "Recover a lost quorum: one survivor becomes the only voter of a new generation", Body: apiv1.Recover{},
		Responses: planResponse(apiv1.RecoverResult{}, "the recovered node leads", leaderHeader), ErrorStatuses: []int{409, 413, 415, 503, 504},
	},
	planned("POST", apiv1.PathTransfer, withBody(postTransfer), "Planned transfer of leadership",
		apiv1.Transfer{}, apiv1.TransferResult{}, "the target is seen leading"),
	planned("POST", apiv1.PathFailover, withBody(postFailover), "Manual failover: by the leader when it can take part, else by an election",
		apiv1.Failover{}, apiv1.TransferResult{}, "the target leads"),
	planned("POST", apiv1.PathEmergency, withBody(postEmergency), "Emergency failover: the target stands at once, without any check but the voters' own",
		apiv1.Emergency{}, apiv1.TransferResult{}, "the target leads"),
	{
		Method: "GET", Pattern: apiv1.PathAuto, Role: token.Operator, Handle: getAutoFailover,
		Summary:   "Does the cluster replace a failed leader by itself?",
		Responses: jsonResponse(apiv1.AutoFailoverState{}, "as this node has applied it"),
	},
	{
		Method: "POST", Pattern: apiv1.PathAuto, Role: token.Operator, Handle: withBody(postAutoFailover),
		Summary: "Pause or resume automatic failover for the whole cluster", Body: apiv1.AutoFailover{},
		Responses: planResponse(apiv1.AutoFailoverState{}, "set, and known to every node that answers"), ErrorStatuses: []int{409, 413, 415, 503, 504},
	},
	planned("POST", "/admin/roles/{role}/transfer", withBody(transferRole), "Hand a role over to a candidate",
		apiv1.RoleTransfer{}, apiv1.RoleChange{}, "handed over, or taken from its holder, who is waited for: message says which"),
	planned("DELETE", "/admin/roles/{role}", withBody(evictRole), "Take a role from its holder",
		apiv1.RoleEvict{}, apiv1.RoleChange{}, "the next candidate holds it, or nobody, or the holder is waited for: message says which"),
	{
		Method: "GET", Pattern: apiv1.PathSplit, Role: token.Operator, LimitExempt: true, Handle: getSplitBrain,
		Summary:   "Is there another leader, or another cluster? What this node makes of what the members say",
		Responses: jsonResponse(apiv1.SplitBrain{}, "of the last check"), ErrorStatuses: []int{503},
	},
	{
		Method: "POST", Pattern: apiv1.PathCheck, Role: token.Operator, Handle: withBody(postSplitBrain),
		Summary: "Check now", Body: apiv1.SplitBrainCheck{},
		Responses: jsonResponse(apiv1.SplitBrain{}, "of this check"), ErrorStatuses: []int{413, 415, 503},
	},
	{
		Method: "GET", Pattern: apiv1.PathAudit, Role: token.Operator, Handle: listAudit,
		Summary: "Who called what, from where, why, and what came of it: calls that are not GET, and those that were forbidden",
		Query: []openapi.Param{
			openapi.String("since", "records after the one with this seq; absent: the newest"),
			limitParam,
			openapi.String("class", "only operators (calls of /admin that were allowed) or clients (all others)"),
			openapi.String("who", "only of this token or certificate"),
			consistencyParam, timeoutParam, redirectParam,
		},
		Responses: jsonResponse(apiv1.Audit{}, "oldest first", contactHeader, leaderHeader), ErrorStatuses: []int{307, 503},
	},
	{
		Method: "GET", Pattern: apiv1.PathSnapshot, Role: token.Operator, Kind: openapi.Stream, Handle: getSnapshot,
		Summary:   "Backup of the keys and settings",
		Responses: []openapi.Response{{Status: 200, Media: apiv1.TypeBinary, Doc: "the backup, with checksums inside and as trailer", Headers: []openapi.Param{checksumTrailer, leaderHeader}}}, ErrorStatuses: []int{503},
	},
	{
		Method: "POST", Pattern: apiv1.PathRestore, Role: token.Operator, Kind: openapi.Stream, Handle: postRestore,
		Summary: "Restore a backup: keys and settings are replaced", Body: openapi.Raw{}, BodyDoc: "what GET /admin/snapshot gave",
		Responses: jsonResponse(apiv1.RestoreResult{}, "restored; all watches have ended", leaderHeader), ErrorStatuses: []int{415, 503, 504},
	},
}
