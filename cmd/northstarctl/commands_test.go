package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"northstar/api/apiv1"
	"northstar/api/openapi"
	"northstar/cluster"
)

// routeCommands maps each route of the API to a command that calls it.
var routeCommands = map[string]string{
	"GET /leader":                       "leader",
	"GET /status":                       "status NODE",
	"GET /v1/cluster":                   "status",
	"GET /v1/kv/{key}":                  "kv get a",
	"PUT /v1/kv/{key}":                  "kv put a b",
	"DELETE /v1/kv/{key}":               "kv del a",
	"GET /v1/kv":                        "kv ls",
	"GET /v1/watch":                     "kv watch --since 1",
	"POST /v1/sessions":                 "role campaign r",
	"GET /v1/sessions":                  "sessions ls",
	"DELETE /v1/sessions":               "sessions end --prefix a --yes",
	"GET /v1/sessions/{id}":             "sessions show s1",
	"DELETE /v1/sessions/{id}":          "sessions end s1 --yes",
	"GET /v1/roles":                     "role ls",
	"GET /v1/roles/{role}":              "role show r",
	"DELETE /v1/roles/{role}":           "role resign r --session s1",
	"POST /v1/roles/{role}/campaign":    "role campaign r --session s1",
	"GET /v1/roles/{role}/history":      "role history r",
	"GET /v1/roles/{role}/watch":        "role watch r --since 1",
	"GET /v1/nodes":                     "nodes ls",
	"GET /v1/nodes/counts":              "nodes counts",
	"GET /v1/nodes/watch":               "nodes watch --since 1",
	"GET /v1/nodes/{id}":                "nodes show web-1",
	"PUT /v1/nodes/{id}":                "nodes drain web-1",
	"DELETE /v1/nodes/{id}":             "nodes rm web-1",
	"GET /v1/events":                    "events",
	"GET /v1/elections":                 "elections ls",
	"POST /admin/members":               "members add n4 --raft a:1 --http a:2",
	"PATCH /admin/members/{id}":         "members set n4 --priority 7",
	"DELETE /admin/members/{id}":        "members remove n4 --yes",
	"POST /admin/nodes/{id}/drain":      "drain n2",
	"POST /admin/nodes/{id}/undrain":    "undrain n2",
	"POST /admin/recover":               "recover --survivors n1 --confirm c --dry-run",
	"POST /admin/transfer":              "transfer",
	"POST /admin/failover":              "failover",
	"POST /admin/failover/emergency":    "failover --emergency --to n2 --reason r --yes",
	"GET /admin/auto-failover":          "auto-failover status",
	"POST /admin/auto-failover":         "auto-failover resume",
	"POST /admin/roles/{role}/transfer": "role transfer r --to s1",
	"DELETE /admin/roles/{role}":        "role evict r",
	"GET /admin/splitbrain":             "splitbrain",
	"POST /admin/splitbrain/check":      "splitbrain --check",
	"GET /admin/audit":                  "audit",
	"GET /admin/snapshot":               "snapshot save FILE",
	"POST /admin/snapshot/restore":      "snapshot restore BACKUP --yes",
}

// routesWithoutCommand are the routes that no command needs, with the reason.
var routesWithoutCommand = map[string]string{
	"GET /livez":                   "for process supervisors",
	"GET /readyz":                  "for load balancers and Kubernetes; status HOST:PORT shows the node's state",
	"GET /health/leader":           "for load balancers; leader shows the leader",
	"OPTIONS /health/leader":       "for load balancers",
	"GET /health/follower":         "for load balancers",
	"OPTIONS /health/follower":     "for load balancers",
	"GET /metrics":                 "for Prometheus",
	"GET /openapi.json":            "for generators of clients",
	"GET /":                        "the dashboard is for browsers",
	"GET /dashboard/{file}":        "the dashboard is for browsers",
	"GET /v1/leader/watch":         "the client library learns of a new leader by it",
	"GET /dashboard/feed":          "for the dashboard; status --watch and events --follow show the same",
	"POST /v1/sessions/attached":   "between nodes",
	"POST /v1/sessions/renew":      "run keeps its session alive with it, see TestRun",
	"POST /v1/sessions/{id}/renew": "role campaign keeps its session alive with it, see TestRoleCampaign_Evicted",
	"GET /v1/sessions/{id}/attach": "run holds its session with it, see TestRun",
}

// Everything that the API can do, the program can do: each route is called by a command, or has a reason why not.
func TestEveryRouteHasACommand(t *testing.T) {
	t.Parallel()
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(openapi.Document("test"), &doc); err != nil {
		t.Fatal(err)
	}
	commands := maps.Clone(routeCommands)
	for path, methods := range doc.Paths {
		for method := range methods {
			route := strings.ToUpper(method) + " " + path
			if method == "head" || method == "parameters" || routesWithoutCommand[route] != "" {
				continue
			}
			args, ok := commands[route]
			if !ok {
				t.Errorf("%s: no command calls it, and no reason says why", route)
				continue
			}
			if called := calls(t, args); !slices.ContainsFunc(called, routePattern(route).MatchString) {
				t.Errorf("%s: %q called %q", route, args, called)
			}
			delete(commands, route)
		}
	}
	for route := range commands {
		t.Errorf("%s is no route", route)
	}
}

func routePattern(route string) *regexp.Regexp {
	wildcard := regexp.MustCompile(`\\\{\w+\\\}`)
	return regexp.MustCompile("^" + wildcard.ReplaceAllString(regexp.QuoteMeta(route), `[^/]+`) + "$")
}

// calls returns the requests of a command to a node that refuses most of them.
func calls(t *testing.T, args string) (called []string) {
	t.Helper()
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		called = append(called, r.Method+" "+r.URL.Path)
		mu.Unlock()
		switch r.Method + " " + r.URL.Path {
		case "GET /leader":
			reply(w, apiv1.Leader{LeaderID: "n1", LeaderAddress: r.Host, Term: 4, ObservedBy: "n1"})
		case "GET /v1/nodes/web-1":
			reply(w, apiv1.Node{ID: "web-1", SessionID: "s1"})
		case "GET /v1/roles/r":
			reply(w, apiv1.Role{Role: "r"})
		default:
			problem(w, cluster.Errorf(cluster.CodeForbidden, "refused"))
		}
	}))
	defer s.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "backup")
	if strings.Contains(args, "BACKUP") {
		if err := os.WriteFile(file, backup(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	words := strings.Fields(strings.NewReplacer("NODE", s.URL, "BACKUP", file, "FILE", file).Replace(args))
	ctl(t, nil, "", append(words, "--endpoints", s.URL, "--timeout", "5s")...)
	mu.Lock()
	defer mu.Unlock()
	return called
}

// leaves returns every visible command with its path.
func leaves(n *kong.Node, path string) map[string]*kong.Node {
	found := map[string]*kong.Node{}
	for _, child := range n.Children {
		at := strings.TrimSpace(path + " " + child.Name)
		switch {
		case child.Hidden:
		case len(child.Children) == 0:
			found[at] = child
		default:
			for k, v := range leaves(child, at) {
				found[k] = v
			}
		}
	}
	return found
}

func newParser(t *testing.T) *kong.Kong {
	t.Helper()
	parser, err := kong.New(&commands{}, kong.Exit(func(int) {}), kong.Vars{"version": ""},
		kong.TypeMapper(reflect.TypeFor[cluster.NodeID](), kong.MapperFunc(decodeNodeID)))
	if err != nil {
		t.Fatal(err)
	}
	return parser
}

var shellWord = regexp.MustCompile(`"[^"]*"|\S+`)

// Each command has examples in its help, and each example is a valid call of that command.
func TestExamples(t *testing.T) {
	t.Parallel()
	all := leaves(newParser(t).Model.Node, "")
	for path := range all {
		if len(examples[path]) == 0 {
			t.Errorf("%s: no example", path)
		}
	}
	for path, lines := range examples {
		if all[path] == nil {
			t.Errorf("%s: there is no such command", path)
		}
		for _, line := range lines {
			line, _, _ := strings.Cut(line, " | ")
			line, _, _ = strings.Cut(line, " > ")
			words := shellWord.FindAllString(line, -1)
			for i := range words {
				words[i] = strings.Trim(words[i], `"`)
			}
			cmd, err := newParser(t).Parse(words)
			if err != nil && strings.Contains(err.Error(), "no such file") {
				continue // a file that the command reads
			}
			if err != nil {
				t.Errorf("%s: %s: %v", path, line, err)
			} else if selected := all[path]; cmd.Selected().Name != selected.Name {
				t.Errorf("%s: %s is %s", path, line, cmd.Selected().FullPath())
			}
		}
	}
}

// Every list has the verb ls, and list as its alias. A group without a verb lists, except kv, whose list can be long.
func TestLists_HaveOneVerb(t *testing.T) {
	t.Parallel()
	n := 0
	for path, node := range leaves(newParser(t).Model.Node, "") {
		if strings.HasSuffix(path, " list") {
			t.Errorf("%s: the verb is ls", path)
		}
		if strings.HasSuffix(path, " ls") {
			n++
			if !slices.Equal(node.Aliases, []string{"list"}) {
				t.Errorf("%s: aliases %q", path, node.Aliases)
			}
			if isDefault := node.Parent.DefaultCmd == node; isDefault == (path == "kv ls") {
				t.Errorf("%s is the default of its group: %v", path, isDefault)
			}
		}
	}
	if n < 7 {
		t.Errorf("only %d lists", n)
	}
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for _, typ := range cluster.EventTypes {
		if help := strings.Join(strings.Fields(must(t, "events", "--help")), " "); !strings.Contains(help, typ) {
			t.Errorf("the help of events does not name the type %q", typ)
		}
	}
	_, want, _ := ctl(t, nil, "", "kv", "put", "--help")
	if code, got, stderr := ctl(t, nil, "", "help", "kv", "put"); code != exitDone || got != want || want == "" {
		t.Errorf("exit %d: %s%s", code, got, stderr)
	}
	if code, got, _ := ctl(t, nil, "", "help"); code != exitDone || !strings.Contains(got, "elections show") {
		t.Errorf("exit %d: %s", code, got)
	}
	for word, hint := range map[string]string{"nonsense": "northstarctl help lists the commands", "stat": `did you mean "status"?`} {
		if code, _, stderr := ctl(t, nil, "", word); code != exitUsage || !strings.HasSuffix(stderr, hint+"\n") {
			t.Errorf("%s: exit %d: %s", word, code, stderr)
		}
	}
	if code, got, _ := ctl(t, nil, "", "--version"); code != exitDone || got != "northstarctl "+version+"\n" {
		t.Errorf("exit %d: %q", code, got)
	}
}

// YAML has the same content as JSON, also where a string looks like something else.
func TestYAML(t *testing.T) {
	t.Parallel()
	in := map[string]any{
		"strings": []any{
			"", "yes", "no", "null", "~", "12", "1e3", "0x1f", "a: b", "- a", "#", "two\nlines\n", " space ",
			"\x1b[31m", "тест", "2026-03-01",
			"\u007f", "a\u0080b", "\u0085", "\u009b2J", "\ufffe", "\uffff", "\ufeff", "\u2028",
		},
		"numbers": []any{float64(1 << 53), 0.5, -1.0}, "none": nil, "yes": true, "empty": []any{},
		"object": map[string]any{},
	}
	text, err := toYAML(in)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := yaml.Unmarshal(text, &out); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	got, _ := json.Marshal(out)
	want, _ := json.Marshal(in)
	if string(got) != string(want) {
		t.Errorf("got  %s\nwant %s\n%s", got, want, text)
	}
}
