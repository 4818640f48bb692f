package api

import (
	"northstar/api/apiv1"
	"northstar/api/openapi"
	"northstar/api/token"
)

type handler func(*request) error

type route = openapi.Route[handler]

// Parameters that several routes share.
var (
	timeoutParam  = openapi.Integer("timeout_ms", "deadline of the whole request: 1 to 60000, default 5000")
	redirectParam = openapi.Boolean("redirect", "answer 307 to the leader instead of forwarding to it")
	consistency   = openapi.String("consistency",
		"linearizable (default), lease (as linearizable while election.lease is off) or stale")
	maxStaleParam = openapi.Integer("max_stale_ms", "with consistency=stale, 0 to 86400000: a node whose state "+
		"may be older reads as linearizable")
	prefixParam = openapi.String("prefix", "only keys with this prefix")
	limitParam  = openapi.Integer("limit",
		"maximum number of items: 1 or more, default 100; a response never has more than 1000")
	pageParam = openapi.Integer("limit",
		"maximum number of items: 1 or more; a response never has more than 1000, the default")
	ifMatch        = openapi.String("If-Match", `"REV": only while the key has this revision; *: only while it exists`)
	ifNoneMatch    = openapi.String("If-None-Match", "*: only while the key does not exist")
	idempotencyKey = openapi.String(apiv1.HeaderIdempotencyKey, "1 to 128 bytes: a retried write is applied once, and "+
		"its first response is repeated; kept for 24 h, the newest 100,000 at most")
	fenceHeader = openapi.String(apiv1.HeaderFence,
		"ROLE=TOKEN: only while TOKEN is the role's current fencing token")
	maxLagParam    = openapi.Integer("max_lag", "and has yet to apply at most this many committed entries")
	verboseParam   = openapi.Boolean("verbose", "one line per check")
	lastEventID    = openapi.String("Last-Event-ID", "resume after this event")
	etagHeader     = openapi.String("ETag", "the key's revision in quotes")
	revisionHeader = openapi.Integer(apiv1.HeaderRevision, "the key's revision")
	stateRevision  = openapi.Integer(apiv1.HeaderRevision,
		"the revision of the state that the response shows, also of a 404: a watch since it misses nothing")
	watchRevision = openapi.Integer(apiv1.HeaderRevision, "the revision after which the stream starts")
	contactHeader = openapi.Integer(apiv1.HeaderLastContact, "stale responses only: their maximum age")
	leaderHeader  = openapi.String(apiv1.HeaderLeader,
		"only if another node forwarded the request: host:port of the leader, for direct requests")
	clusterHeader    = openapi.String(apiv1.HeaderCluster, "ID of the node's cluster")
	generationHeader = openapi.String(apiv1.HeaderGeneration, "N, or N RECOVERY-ID after a quorum-loss recovery")
	checksumTrailer  = openapi.String(apiv1.HeaderChecksum, "trailer: sha256:HEX of the body")
)

func jsonResponse(v any, doc string, headers ...openapi.Param) []openapi.Response {
	return []openapi.Response{{Status: 200, Media: apiv1.TypeJSON, Value: v, Doc: doc, Headers: headers}}
}

func planResponse(v any, doc string) []openapi.Response {
	return append(jsonResponse(v, doc+"; with dry_run: the plan", leaderHeader), jsonResponse(apiv1.Plan{}, "")...)
}

func textResponse(doc string) []openapi.Response {
	return []openapi.Response{{Status: 200, Media: "text/plain", Doc: doc}}
}

// public returns a route without authentication, which a busy node serves too.
func public(method, pattern string, h handler, summary string, responses []openapi.Response, errors ...int) route {
	return route{
		Method: method, Pattern: pattern, Role: token.None, LimitExempt: true, Handle: h, Summary: summary,
		Responses: responses, ErrorStatuses: errors,
	}
}

// list returns a route that lists the leader's applied state or, with ?consistency=stale, this node's.
func list(pattern string, h handler, summary string, value any, doc string, query ...openapi.Param) route {
	return route{
		Method: "GET", Pattern: pattern, Role: token.Observer, Handle: h, Summary: summary,
		Query:     append(query, consistency, maxStaleParam, timeoutParam, redirectParam),
		Responses: jsonResponse(value, doc, contactHeader, leaderHeader), ErrorStatuses: []int{307, 503},
	}
}

// item is list for one item, which may not exist.
func item(pattern string, h handler, summary string, value any, doc string, query ...openapi.Param) route {
	r := list(pattern, h, summary, value, doc, query...)
	r.ErrorStatuses = []int{307, 404, 503}
	return r
}

// write returns a client's route that the leader serves. body is nil if the request has none. Large because a row of
// the table has all its parts in one line.
func write(method, pattern string, h handler, summary string, body, value any, doc string, errors ...int) route {
	return route{
		Method: method, Pattern: pattern, Role: token.Client, Handle: h, Summary: summary, Body: body,
		Query:     []openapi.Param{timeoutParam, redirectParam},
		Responses: jsonResponse(value, doc, leaderHeader), ErrorStatuses: append(errors, 307, 503),
	}
}

// watch returns a route that streams changes.
func watch(pattern string, h handler, summary string, value any, doc string, query ...openapi.Param) route {
	return route{
		Method: "GET", Pattern: pattern, Role: token.Observer, Kind: openapi.Stream, Handle: h, Summary: summary,
		Query: query, Headers: []openapi.Param{lastEventID}, ErrorStatuses: []int{410},
		Responses: []openapi.Response{{
			Status: 200, Media: apiv1.TypeEventStream, Value: value, Headers: []openapi.Param{watchRevision},
			Doc: doc + ", data as below; event: error with a problem, or moving, ends the stream",
		}},
	}
}

// planned returns an operator's route whose request may be a dry run or name a plan. Large because a row of the table
// has all its parts in one line.
func planned(method, pattern string, h handler, summary string, body, value any, doc string) route {
	return route{
		Method: method, Pattern: pattern, Role: token.Operator, Handle: h, Summary: summary, Body: body,
		Responses: planResponse(value, doc), ErrorStatuses: []int{404, 409, 413, 415, 503, 504},
	}
}

// plannedAll is planned for a path without an item that might not exist.
func plannedAll(pattern string, h handler, summary string, body, value any, doc string) route {
	r := planned("POST", pattern, h, summary, body, value, doc)
	r.ErrorStatuses = []int{409, 413, 415, 503, 504}
	return r
}

// with returns r after change, for what few routes have.
func with(r route, change func(r *route)) route {
	change(&r)
	return r
}

func noAudit(r *route) { r.SkipAudit = true }

// sensitive is for routes without authentication that need an observer with auth.public = false.
func sensitive(r *route) {
	r.Sensitive = true
	r.ErrorStatuses = append(r.ErrorStatuses, 401, 403, 429)
}

func query(params ...openapi.Param) func(*route) {
	return func(r *route) { r.Query = params }
}

var table = []route{
	// Discovery and health: without authentication, and served even if the node is busy.
	public("GET", "/leader", getLeader, "Get the leader known to this node",
		jsonResponse(apiv1.Leader{}, "the leader", clusterHeader, generationHeader), 503),
	with(public("GET", "/status", getStatus, "Get this node's view of itself",
		jsonResponse(apiv1.Status{}, "the node")), sensitive),
	with(public("GET", "/livez", getLive, "Liveness check: the process can serve", textResponse("alive")),
		query(verboseParam)),
	with(public("GET", "/readyz", getReady, "Readiness check: the node should get requests",
		textResponse("it has a leader, has caught up, and is not draining"), 503),
		query(openapi.Boolean("verbose", "one line per check, also if ready"))),
	public("GET", "/health/leader", getLeaderHealth, "Load-balancer check: 200 only on a confirmed leader",
		textResponse("a majority has just confirmed this leader"), 503),
	public("OPTIONS", "/health/leader", getLeaderHealth, "As GET",
		textResponse("a majority has just confirmed this leader"), 503),
	with(public("GET", "/health/follower", getFollowerHealth,
		"Load-balancer check: 200 only on a follower of a live leader", textResponse("follower of a live leader"), 503),
		query(maxLagParam)),
	with(public("OPTIONS", "/health/follower", getFollowerHealth, "As GET",
		textResponse("follower of a live leader"), 503), query(maxLagParam)),
	with(public("GET", apiv1.PathCluster, getCluster, "Get the leader's view of the cluster",
		jsonResponse(apiv1.Cluster{},
			"the leader's view, or the node's own if the leader does not respond (see observed_by)")), sensitive),
	with(public("GET", "/metrics", getMetrics, "Get metrics in the Prometheus format", textResponse("metrics")),
		sensitive),
	public("GET", "/openapi.json", getOpenAPI, "Get this document", jsonResponse(map[string]any{}, "OpenAPI 3.1")),
	public("GET", "/", getDashboard, "Get the dashboard",
		[]openapi.Response{{Status: 200, Media: "text/html", Doc: "a page"}}),
	public("GET", "/dashboard/{file}", getDashboardFile, "Get a file of the dashboard", []openapi.Response{
		{Status: 200, Media: "text/css", Doc: "style"}, {Status: 200, Media: "text/javascript", Doc: "script"},
	}, 404),
	{
		Method: "GET", Pattern: apiv1.PathFeed, Role: token.Observer, Kind: openapi.Stream, Handle: getFeed,
		Summary: "Stream the dashboard's data (server-sent events)",
		Responses: []openapi.Response{
			{
				Status: 200, Media: apiv1.TypeEventStream, Value: apiv1.DashboardView{},
				Doc: "each second event: view, data as below, or event: same, data: DashboardSame, if only times differ; " +
					"event: sample, data: DashboardSample; event: entry, data: Event; " +
					"event: error with a problem, or moving, ends the stream",
			},
		},
	},

	// Keys.
	{
		Method: "GET", Pattern: "/v1/kv/{key}", CatchAll: true, Role: token.Observer, Handle: getKey,
		Summary: "Read a key", Query: []openapi.Param{consistency, maxStaleParam, timeoutParam, redirectParam},
		Headers: []openapi.Param{openapi.String("If-None-Match", `"REV", a list of them, or *: 304 if that is current`)},
		Responses: []openapi.Response{
			{
				Status: 200, Media: apiv1.TypeBinary, Doc: "the value",
				Headers: []openapi.Param{etagHeader, revisionHeader, contactHeader, leaderHeader},
			},
			{Status: 304, Doc: "If-None-Match named the current revision"},
		},
		ErrorStatuses: []int{307, 404, 503},
	},
	{
		Method: "PUT", Pattern: "/v1/kv/{key}", CatchAll: true, Role: token.Client, Handle: putKey,
		Summary: "Write a key",
		Query: []openapi.Param{
			timeoutParam, redirectParam,
			openapi.String("ttl_session", "delete the key when this session ends"),
		},
		Headers: []openapi.Param{ifMatch, ifNoneMatch, idempotencyKey, fenceHeader},
		Body:    openapi.Raw{}, BodyDoc: "the value, at most 1 MiB",
		Responses:     jsonResponse(apiv1.PutResult{}, "written", etagHeader, revisionHeader, leaderHeader),
		ErrorStatuses: []int{307, 404, 409, 412, 413, 415, 422, 503, 504, 507},
	},
	{
		Method: "DELETE", Pattern: "/v1/kv/{key}", CatchAll: true, Role: token.Client, Handle: deleteKey,
		Summary: "Delete a key", Query: []openapi.Param{timeoutParam, redirectParam},
		Headers:       []openapi.Param{ifMatch, idempotencyKey, fenceHeader},
		Responses:     jsonResponse(apiv1.DeleteResult{}, "deleted", etagHeader, revisionHeader, leaderHeader),
		ErrorStatuses: []int{307, 404, 409, 412, 413, 415, 422, 503, 504},
	},
	list(apiv1.PathKV, listKeys, "List keys in order", apiv1.List{}, "a page, of at most 4 MiB of values",
		prefixParam, pageParam, openapi.String("after", "only keys greater than this: next of the previous page")),
	watch(apiv1.PathWatch, watchKeys, "Stream changes of keys (server-sent events)",
		apiv1.Change{}, "id: the revision, event: put or delete",
		prefixParam, openapi.Integer("since", "changes with a greater revision than this; absent: from now")),

	// Sessions and roles.
	write("POST", apiv1.PathSessions, withBody(createSession), "Create a session",
		apiv1.SessionCreate{}, apiv1.SessionCreated{}, "created", 413, 415, 504, 507),
	with(write("DELETE", apiv1.PathSessions, withBody(endSessions),
		"End many sessions, at most 1000 in one request; only an operator ends those of others",
		apiv1.SessionEnd{}, apiv1.SessionsEnded{}, "ended; repeat while more is true", 415, 504),
		query(openapi.String("identity", "only sessions made by this identity, such as client alice"),
			openapi.String("prefix", "only sessions whose name starts with this; one of the two is required"),
			timeoutParam, redirectParam)),
	list(apiv1.PathSessions, listSessions, "List live sessions, oldest first", apiv1.Sessions{}, "a page",
		pageParam, openapi.String("after", "only sessions newer than this: next of the previous page")),
	with(write("POST", apiv1.PathRenew, withBody(renewSessions), "Renew a batch of sessions",
		apiv1.RenewMany{}, apiv1.RenewedMany{}, "the live sessions, renewed for their TTL from the request",
		413, 415), noAudit),
	item("/v1/sessions/{id}", getSession, "Get a session with its roles and keys", apiv1.Session{}, "the live session"),
	write("DELETE", "/v1/sessions/{id}", withBody(endSession), "End a session and release its roles and keys",
		apiv1.SessionEnd{}, apiv1.SessionEnded{}, "ended", 404, 415, 504),
	with(write("POST", "/v1/sessions/{id}/renew", withBody(renewSession), "Renew a session",
		nil, apiv1.Renewal{}, "renewed for its TTL from the request", 404, 409, 415), noAudit),
	{
		Method: "GET", Pattern: "/v1/sessions/{id}/attach", Role: token.Client, Kind: openapi.AttachStream,
		Handle: attachSession, Summary: "Keep a session alive over this connection (server-sent events)",
		Query: []openapi.Param{
			openapi.Integer("grace_ms", "how long the session lives on after the connection ends, within its TTL; "+
				"default 0: the session ends immediately"),
			openapi.Boolean("hold", "default true: the connection renews the session; "+
				"false: the client renews it, and the connection only ends it"),
		},
		Responses: []openapi.Response{{
			Status: 200, Media: apiv1.TypeEventStream, Value: apiv1.KeepAlive{},
			Doc: "event: alive at each renewal, data " +
				"as below; event: moving, if the node is stopping, or after 50 to 100 TTLs: attach again, elsewhere if " +
				"the node refuses, the session lives on for its TTL; " +
				"event: error with a problem if the session has ended, or a role was revoked from it (4011)",
		}},
		ErrorStatuses: []int{404, 409},
	},
	{
		Method: "POST", SkipAudit: true, Pattern: apiv1.PathAttached, Role: token.Node, AllowNode: true,
		Handle:  withBody(postAttachReport),
		Summary: "Between nodes: renew and end the sessions of attached connections",
		Body:    apiv1.AttachReport{}, Responses: jsonResponse(apiv1.AttachReportResult{}, "the live sessions"),
		ErrorStatuses: []int{413, 415, 503},
	},
	list(apiv1.PathRoles, listRoles, "List held roles", apiv1.Roles{}, "a page",
		pageParam, openapi.String("after", "only roles with a name greater than this: next of the previous page"),
		openapi.Boolean("all", "also vacant roles")),
	with(item("/v1/roles/{role}", getRole, "Get a role's holder and candidates", apiv1.Role{}, "the role",
		openapi.Boolean("all", "also a vacant role, instead of 404")),
		func(r *route) { r.Responses[0].Headers = append(r.Responses[0].Headers, stateRevision) }),
	with(write("DELETE", "/v1/roles/{role}", withBody(resignRole),
		"Release a role, leave its queue, or acknowledge its revocation",
		nil, apiv1.RoleResult{}, "released", 404, 409, 413, 415, 504),
		query(openapi.String("session_id", "the holder or candidate; required"),
			openapi.Integer("token", "release only the tenure with this token: 409 with another one"),
			timeoutParam, redirectParam)),
	with(write("POST", "/v1/roles/{role}/campaign", withBody(campaign),
		"Campaign for a role: immediately, or in the queue until elected",
		apiv1.Campaign{}, apiv1.Role{}, "this session holds it", 404, 409, 413, 415, 504, 507),
		func(r *route) { r.Kind, r.Query = openapi.LongPoll, []openapi.Param{redirectParam} }),
	item("/v1/roles/{role}/history", getRoleHistory, "List a role's holders, newest first",
		apiv1.RoleHistory{}, "the current tenure and the 32 previous ones"),
	watch("/v1/roles/{role}/watch", watchRole, "Stream elections and vacancies of a role (server-sent events)",
		apiv1.RoleEvent{}, "id: the revision, which for elected is the token; event: elected or vacated",
		openapi.Integer("since", "events with a greater revision than this; absent: from now")),

	// The registry of application nodes.
	list(apiv1.PathNodes, listNodes, "List application nodes", apiv1.Nodes{}, "a page",
		openapi.String("status", "only those that are joining, active, draining or dead"),
		openapi.String("role", "only those with this role"),
		openapi.String("capability", "only those with this capability"),
		pageParam, openapi.String("after", "only nodes with an ID greater than this: next of the previous page")),
	list("/v1/nodes/counts", countNodes, "Count application nodes by status", apiv1.Counts{}, "the counts"),
	watch("/v1/nodes/watch", watchNodes, "Stream changes of application nodes (server-sent events)",
		apiv1.Node{}, "id: the revision, event: put or delete",
		openapi.Integer("since", "changes with a greater revision than this; absent: from now")),
	item("/v1/nodes/{id}", getNode, "Get an application node", apiv1.Node{}, "the registered node"),
	write("PUT", "/v1/nodes/{id}", withBody(putNode), "Register or update an application node",
		apiv1.NodePut{}, apiv1.Node{}, "registered", 404, 413, 415, 504, 507),
	write("DELETE", "/v1/nodes/{id}", withBody(removeNode), "Remove an application node from the registry",
		nil, apiv1.NodeRemoved{}, "removed", 404, 415, 504),

	// Events and elections.
	{
		Method: "GET", Pattern: apiv1.PathLeaderWatch, Role: token.Observer, Kind: openapi.Stream, Handle: watchLeader,
		Summary: "Stream the leader known to this node (server-sent events)",
		Responses: []openapi.Response{{
			Status: 200, Media: apiv1.TypeEventStream, Value: apiv1.Leader{},
			Doc: "event: leader, first and at each change, data as below; leader_id is empty while there is none; " +
				"event: error with a problem, or moving, ends the stream",
		}},
	},
	{
		Method: "GET", Pattern: apiv1.PathEvents, Role: token.Observer, Kind: openapi.StreamOnAccept,
		Handle:  listEvents,
		Summary: "List or stream events of all reachable nodes",
		Query: []openapi.Param{
			openapi.String("since", "after the event with this seq; absent: the newest, of a stream: from now"),
			openapi.String("type", "only this type; split-brain and split_brain are aliases of splitbrain"), limitParam,
		},
		Headers:   []openapi.Param{openapi.String("Accept", "text/event-stream: as a stream"), lastEventID},
		Responses: jsonResponse(apiv1.Events{}, "oldest first"), ErrorStatuses: []int{410},
	},
	{
		Method: "GET", Pattern: apiv1.PathElection, Role: token.Observer, Handle: listElections,
		Summary: "List elections, newest first", Query: []openapi.Param{limitParam},
		Responses: jsonResponse(apiv1.Elections{},
			"newest first; lost elections are those that reachable nodes still know"),
	},

	// Operation.
	with(plannedAll(apiv1.PathMembers, withBody(addMember), "Add a member as non-voter",
		apiv1.MemberAdd{}, apiv1.MemberResult{}, "added"), func(r *route) { r.AllowNode = true }),
	planned("PATCH", "/admin/members/{id}", withBody(patchMember), "Change a member",
		apiv1.MemberPatch{}, apiv1.MemberResult{}, "changed"),
	planned("DELETE", "/admin/members/{id}", withBody(removeMember), "Remove a member",
		apiv1.MemberRemove{}, apiv1.MemberResult{}, "removed"),
	planned("POST", "/admin/nodes/{id}/drain", withBody(drainNode), "Drain a node",
		apiv1.Drain{}, apiv1.MemberResult{}, "set"),
	planned("POST", "/admin/nodes/{id}/undrain", withBody(undrainNode), "End a drain",
		apiv1.Drain{}, apiv1.MemberResult{}, "set"),
	plannedAll(apiv1.PathRecover, withBody(postRecover),
		"Recover a lost quorum: one survivor becomes the only voter of a new generation",
		apiv1.Recover{}, apiv1.RecoverResult{}, "the recovered node leads"),
	planned("POST", apiv1.PathTransfer, withBody(postTransfer), "Planned transfer of leadership",
		apiv1.Transfer{}, apiv1.TransferResult{}, "the target leads"),
	planned("POST", apiv1.PathFailover, withBody(postFailover),
		"Manual failover: a transfer if the leader can take part, else an election",
		apiv1.Failover{}, apiv1.TransferResult{}, "the target leads"),
	planned("POST", apiv1.PathEmergency, withBody(postEmergency),
		"Emergency failover: start an election on the target without health checks",
		apiv1.Emergency{}, apiv1.TransferResult{}, "the target leads"),
	{
		Method: "GET", Pattern: apiv1.PathAuto, Role: token.Operator, Handle: getAutoFailover,
		Summary:   "Get the automatic failover setting",
		Responses: jsonResponse(apiv1.AutoFailoverState{}, "as this node has applied it"),
	},
	plannedAll(apiv1.PathAuto, withBody(postAutoFailover), "Pause or resume automatic failover for the whole cluster",
		apiv1.AutoFailover{}, apiv1.AutoFailoverState{}, "set, and known to every reachable node"),
	planned("POST", "/admin/roles/{role}/transfer", withBody(transferRole), "Transfer a role to a candidate",
		apiv1.RoleTransfer{}, apiv1.RoleChange{}, "transferred, or waiting for the previous holder, as message says"),
	planned("DELETE", "/admin/roles/{role}", withBody(evictRole), "Revoke a role from its holder",
		apiv1.RoleEvict{}, apiv1.RoleChange{},
		"the next candidate holds it, or it is vacant or waiting for the previous holder, as message says"),
	{
		Method: "GET", Pattern: apiv1.PathSplit, Role: token.Operator, LimitExempt: true, Handle: getSplitBrain,
		Summary:   "Get the latest split-brain report",
		Responses: jsonResponse(apiv1.SplitBrain{}, "of the last check"), ErrorStatuses: []int{503},
	},
	{
		Method: "POST", Pattern: apiv1.PathCheck, Role: token.Operator, Handle: withBody(postSplitBrain),
		Summary: "Run the split-brain check", Body: apiv1.SplitBrainCheck{},
		Responses: jsonResponse(apiv1.SplitBrain{}, "of this check"), ErrorStatuses: []int{413, 415, 503},
	},
	with(list(apiv1.PathAudit, listAudit, "List audit records (non-GET calls and 403s)", apiv1.Audit{}, "oldest first",
		openapi.String("since", "records after the one with this seq; absent: the newest"), limitParam,
		openapi.String("class", "only operators (allowed calls of /admin) or clients (all others)"),
		openapi.String("who", "only of this token or certificate")),
		func(r *route) { r.Role = token.Operator }),
	{
		Method: "GET", Pattern: apiv1.PathSnapshot, Role: token.Operator, Kind: openapi.Stream, Handle: getSnapshot,
		Summary: "Back up keys and settings", ErrorStatuses: []int{503}, Responses: []openapi.Response{{
			Status: 200, Media: apiv1.TypeBinary, Doc: "the backup, with checksums inside and as trailer",
			Headers: []openapi.Param{checksumTrailer, leaderHeader},
		}},
	},
	{
		Method: "POST", Pattern: apiv1.PathRestore, Role: token.Operator, Kind: openapi.Stream, Handle: postRestore,
		Summary: "Restore a backup: keys and settings are replaced",
		Body:    openapi.Raw{}, BodyDoc: "the response to GET /admin/snapshot",
		Responses:     jsonResponse(apiv1.RestoreResult{}, "restored; all watches have ended", leaderHeader),
		ErrorStatuses: []int{415, 503, 504},
	},
}
