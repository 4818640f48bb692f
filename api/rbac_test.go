package api

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/api/token"
	"northstar/cluster"
)

// rule is who may call a route.
type rule struct {
	name     string // as in docs/security.md
	outcomes string // one for each of rbacCallers: yes, 401 or 403
}

// rbacCallers are the kinds of callers. A node is the holder of a node certificate.
var rbacCallers = []string{
	"no identity", "observer", "client", "operator", "member", "other node", "removed node", "node of another cluster",
	"certificate of another authority",
}

// The rules of the contract, section 7.
var (
	ruleOpen = &rule{
		"discovery, health checks, dashboard, `/openapi.json`",
		"yes yes yes yes yes yes yes yes yes",
	}
	ruleViews = &rule{
		"`/status`, `/v1/cluster`, `/metrics`",
		"yes yes yes yes yes yes yes yes yes",
	}
	rulePrivateViews = &rule{
		"the same with `auth.public = false`",
		"401 yes yes yes yes yes yes 401 401",
	}
	ruleReads = &rule{
		"`GET` under `/v1`, and `GET /dashboard/feed`",
		"401 yes yes yes 403 403 403 401 401",
	}
	ruleWrites = &rule{
		"other calls under `/v1`, and `GET /v1/sessions/{id}/attach`",
		"401 403 yes yes 403 403 403 401 401",
	}
	ruleBetweenNodes = &rule{
		"`POST /v1/sessions/attached`",
		"401 403 403 403 yes 403 403 401 401",
	}
	ruleOwnMembership = &rule{
		"`POST /admin/members`, by a node for itself",
		"401 403 403 yes yes yes 403 401 401",
	}
	ruleOperation = &rule{
		"all else under `/admin`",
		"401 403 403 yes 403 403 403 401 401",
	}
	rbacRules = []*rule{
		ruleOpen, ruleViews, rulePrivateViews, ruleReads, ruleWrites, ruleBetweenNodes, ruleOwnMembership,
		ruleOperation,
	}
)

// rbacRoutes states the rule of each route. A new route needs a line here.
var rbacRoutes = map[*rule][]string{
	ruleOpen: {
		"GET /leader", "GET /livez", "GET /readyz", "GET /health/leader", "OPTIONS /health/leader",
		"GET /health/follower", "OPTIONS /health/follower", "GET /openapi.json", "GET /", "GET /dashboard/{file}",
	},
	ruleViews: {"GET /status", "GET /v1/cluster", "GET /metrics"},
	ruleReads: {
		"GET /v1/kv/{key}", "GET /v1/kv", "GET /v1/watch",
		"GET /v1/sessions", "GET /v1/sessions/{id}",
		"GET /v1/roles", "GET /v1/roles/{role}", "GET /v1/roles/{role}/history", "GET /v1/roles/{role}/watch",
		"GET /v1/nodes", "GET /v1/nodes/counts", "GET /v1/nodes/watch", "GET /v1/leader/watch", "GET /v1/nodes/{id}",
		"GET /v1/events", "GET /v1/elections", "GET /dashboard/feed",
	},
	ruleWrites: {
		"PUT /v1/kv/{key}", "DELETE /v1/kv/{key}",
		"POST /v1/sessions", "DELETE /v1/sessions", "POST /v1/sessions/renew", "DELETE /v1/sessions/{id}",
		"POST /v1/sessions/{id}/renew", "GET /v1/sessions/{id}/attach",
		"DELETE /v1/roles/{role}", "POST /v1/roles/{role}/campaign",
		"PUT /v1/nodes/{id}", "DELETE /v1/nodes/{id}",
	},
	ruleBetweenNodes:  {"POST /v1/sessions/attached"},
	ruleOwnMembership: {"POST /admin/members"},
	ruleOperation: {
		"PATCH /admin/members/{id}", "DELETE /admin/members/{id}",
		"POST /admin/nodes/{id}/drain", "POST /admin/nodes/{id}/undrain", "POST /admin/recover",
		"POST /admin/transfer", "POST /admin/failover", "POST /admin/failover/emergency",
		"GET /admin/auto-failover", "POST /admin/auto-failover",
		"POST /admin/roles/{role}/transfer", "DELETE /admin/roles/{role}",
		"GET /admin/splitbrain", "POST /admin/splitbrain/check", "GET /admin/audit",
		"GET /admin/snapshot", "POST /admin/snapshot/restore",
	},
}

func ruleOf(method, pattern string) *rule {
	for r, routes := range rbacRoutes {
		if slices.Contains(routes, method+" "+pattern) {
			return r
		}
	}
	return nil
}

// rbacCaller is one way to be a caller of a kind.
type rbacCaller struct {
	kind     int // index in rbacCallers
	how      string
	noTokens bool           // at a node without auth.tokens
	node     cluster.NodeID // adds itself
	prepare  func(r *http.Request)
}

const (
	someAddress = "192.0.2.7:1234"
	loopback    = "127.0.0.1:1234"
)

// everyCaller returns the callers of all kinds, the authorities that the nodes trust, and the token file.
func everyCaller(t *testing.T) (callers []rbacCaller, roots *x509.CertPool, file []byte) {
	t.Helper()
	file, tokens := tokenFile()
	trusted, foreign := newAuthority(t), newAuthority(t)
	add := func(kind, how string, c rbacCaller) {
		c.kind, c.how = slices.Index(rbacCallers, kind), how
		callers = append(callers, c)
	}
	bearer := func(tok string) rbacCaller {
		return rbacCaller{prepare: func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+tok) }}
	}
	certificate := func(a *authority, uri string, forwards ...string) rbacCaller {
		state := a.certified(t, uri, time.Hour)
		id := cluster.NodeID(uri[strings.LastIndex(uri, "/")+1:])
		return rbacCaller{node: id, prepare: func(r *http.Request) {
			r.TLS = state
			for i := 0; i < len(forwards); i += 2 {
				r.Header.Set(forwards[i], forwards[i+1])
			}
		}}
	}
	from := func(addr string, noTokens bool) rbacCaller {
		return rbacCaller{noTokens: noTokens, prepare: func(r *http.Request) { r.RemoteAddr = addr }}
	}
	add("no identity", "from afar", from(someAddress, false))
	add("no identity", "on this machine, with tokens", from(loopback, false))
	add("no identity", "from afar, without tokens", from(someAddress, true))
	add("no identity", "bad token", bearer("ns_bad"))
	add("operator", "on this machine, without tokens", from(loopback, true))
	for _, role := range []token.Role{token.Observer, token.Client, token.Operator} {
		uri := "northstar://test/" + string(role) + "/ann"
		add(string(role), "token", bearer(tokens[role]))
		add(string(role), "certificate", certificate(trusted, uri))
		add(string(role), "forwarded by a member",
			certificate(trusted, "northstar://test/node/n2", forwardedAs(string(role)+" ann")...))
		add("node of another cluster", "of a client", certificate(trusted, "northstar://other/"+string(role)+"/ann"))
		add("certificate of another authority", string(role), certificate(foreign, uri))
	}
	for kind, uri := range map[string]string{
		"member": "northstar://test/node/n2", "other node": "northstar://test/node/n7",
		"removed node": "northstar://test/node/n8", "node of another cluster": "northstar://other/node/n2",
	} {
		add(kind, "certificate", certificate(trusted, uri))
		if kind != "member" {
			add(kind, "forwards an operator", certificate(trusted, uri, forwardedAs("operator ann")...))
		}
	}
	add("certificate of another authority", "member", certificate(foreign, "northstar://test/node/n2"))
	return callers, trusted.pool, file
}

// call returns yes, 401 or 403. from is an address of its own, so that no caller has too many bad tokens.
func (c rbacCaller) call(t *testing.T, s *Server, row route, from string) string {
	t.Helper()
	path, body := concrete(row.Pattern), "{"
	if ruleOf(row.Method, row.Pattern) == ruleOwnMembership {
		body = fmt.Sprintf(`{"id":%q,"raft_address":"h:1","http_address":"h:2"}`, cmp.Or(c.node, "n9"))
	}
	r := httptest.NewRequest(row.Method, "http://127.0.0.1"+path, strings.NewReader(body))
	r.RemoteAddr = from
	c.prepare(r)
	if res, _ := s.routes.Find(r.URL.EscapedPath(), r.URL.Path); res == nil || res.Pattern != row.Pattern {
		t.Fatalf("%s is not the path of %s", path, row.Pattern)
	}
	switch got := serveBriefly(s, r).Code; got {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Sprint(got)
	case http.StatusTooManyRequests:
		t.Fatalf("%s %s, %s: %d", row.Method, row.Pattern, c.how, got)
	}
	return "yes" // what the call answers does not matter
}

// TestRBACMatrix calls every route as every kind of caller. The rules are those of the contract, and a route without a
// rule is an error. testdata/rbac.txt has the matrix, and docs/security.md its table.
func TestRBACMatrix(t *testing.T) {
	virtual(t, func(t *testing.T) {
		callers, roots, file := everyCaller(t)
		lines := "# call: " + strings.Join(rbacCallers, ", ") + "\n"
		for i, row := range table {
			name := row.Method + " " + row.Pattern
			stated := ruleOf(row.Method, row.Pattern)
			if stated == nil {
				t.Errorf("%s: no rule is stated", name)
				continue
			}
			rules := map[string]*rule{name: stated}
			if stated == ruleViews {
				rules[name+" (auth.public = false)"] = rulePrivateViews
			}
			for _, name := range slices.Sorted(maps.Keys(rules)) {
				servers := map[bool]*Server{}
				for _, noTokens := range []bool{false, true} {
					servers[noTokens] = bareServer(t, func(d *Deps) {
						d.PrivateViews = rules[name] == rulePrivateViews
						d.ClientRoots = func() *x509.CertPool { return roots }
						d.Reads.(*fakeCluster).removeRecord("n8")
						if !noTokens {
							withTokens(file)(d)
						}
					})
				}
				want := strings.Fields(rules[name].outcomes)
				for k, c := range callers {
					from := fmt.Sprintf("192.0.%d.%d:1234", i+10, k+1)
					if got := c.call(t, servers[c.noTokens], row, from); got != want[c.kind] {
						t.Errorf("%s as %s (%s): %s, want %s", name, rbacCallers[c.kind], c.how, got, want[c.kind])
					}
				}
				lines += fmt.Sprintf("%-46s %s\n", name, rules[name].outcomes)
			}
		}
		checkFile(t, "testdata/rbac.txt", "", lines)
		checkFile(t, "../docs/security.md", "<!-- rbac -->\n", rbacTable())
	})
}

// rbacTable returns the rules as a Markdown table.
func rbacTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| call | %s |\n|%s\n", strings.Join(rbacCallers, " | "),
		strings.Repeat("---|", len(rbacCallers)+1))
	for _, r := range rbacRules {
		fmt.Fprintf(&b, "| %s | %s |\n", r.name, strings.ReplaceAll(r.outcomes, " ", " | "))
	}
	return b.String()
}

// checkFile compares a file with want, or its part between two marks.
func checkFile(t *testing.T, file, mark, want string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	text, before, after := string(data), "", ""
	if mark != "" {
		parts := strings.Split(text, mark)
		if len(parts) != 3 {
			t.Fatalf("%s: want the mark %q twice", file, mark)
		}
		before, text, after = parts[0]+mark, parts[1], mark+parts[2]
	}
	switch {
	case text == want:
	case *update:
		if err := os.WriteFile(file, []byte(before+want+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs: run go test ./api -run TestRBACMatrix -update\n%s\nwant\n%s", file, text, want)
	}
}

// TestRBACRules checks that each route of the rules exists, once, and that the table of routes follows the rules.
func TestRBACRules(t *testing.T) {
	t.Parallel()
	served, stated := map[string]bool{}, map[string]bool{}
	for _, row := range table {
		served[row.Method+" "+row.Pattern] = true
	}
	for r, routes := range rbacRoutes {
		for _, name := range routes {
			if !served[name] || stated[name] {
				t.Errorf("%q under %q: served %v, stated before %v", name, r.name, served[name], stated[name])
			}
			stated[name] = true
			method, path, _ := strings.Cut(name, " ")
			want := r // of a route in this place, by its name alone
			switch {
			case r == ruleOpen, r == ruleViews, r == ruleBetweenNodes, r == ruleOwnMembership:
			case strings.HasPrefix(path, "/admin"):
				want = ruleOperation
			case method == http.MethodGet && !strings.HasSuffix(path, "/attach"):
				want = ruleReads
			default:
				want = ruleWrites
			}
			if r != want {
				t.Errorf("%q: %q, want %q", name, r.name, want.name)
			}
		}
	}
}
