package apiv1

import "time"

// PathAudit is the audit log.
const PathAudit = "/admin/audit"

// AuditRecord is the caller, origin, reason and result of one call.
type AuditRecord struct {
	Seq     string         `json:"seq" doc:"place in the log: for since"`
	When    time.Time      `json:"when" doc:"when it was answered; of a write: when it was proposed"`
	Who     string         `json:"who" doc:"name of the token or certificate; empty when nobody was asked for either"`
	Role    string         `json:"role" doc:"observer, client, operator or node"`
	From    string         `json:"from" doc:"address that the call came from"`
	What    string         `json:"what" doc:"method and path"`
	Request map[string]any `json:"request,omitempty" doc:"body of a call to /admin, up to 2 KiB"`
	Reason  string         `json:"reason" doc:"that the caller gave"`
	Result  string         `json:"result" doc:"ok, or the name of the error"`
	Status  int            `json:"status" doc:"of the answer"`
	Code    int            `json:"code" doc:"of the error; 0: none"`
	Detail  string         `json:"detail,omitempty" doc:"of the error"`
	Class   string         `json:"class" enum:"operators,clients" doc:"operators: calls of /admin that were allowed; clients: all others. Each is bounded by itself"`
	Node    string         `json:"node" doc:"that answered"`
	DryRun  bool           `json:"dry_run,omitempty"`
	Delayed bool           `json:"delayed,omitempty" doc:"it waited on the disk of that node until a leader took it"`
}

// AuditDropped is the number of records that are missing.
type AuditDropped struct {
	Operators uint64 `json:"operators" doc:"dropped for age or number"`
	Clients   uint64 `json:"clients" doc:"dropped for age or number"`
	Lost      uint64 `json:"lost" doc:"never replicated: a node could not keep so many"`
}

// Audit is the response to GET /admin/audit.
type Audit struct {
	Items   []AuditRecord `json:"items"`
	Next    string        `json:"next" doc:"for since: what comes after this page"`
	Dropped AuditDropped  `json:"dropped"`
}
