package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"

	"northstar/api/apiv1"
	"northstar/api/openapi"
	"northstar/api/token"
	"northstar/cluster"
)

func document(t *testing.T) map[string]any {
	t.Helper()
	r := httptest.NewRecorder()
	bareServer(t).ServeHTTP(r, httptest.NewRequest("GET", "/openapi.json", nil))
	var doc map[string]any
	if err := json.Unmarshal(r.Body.Bytes(), &doc); err != nil || r.Code != 200 {
		t.Fatalf("%d: %v", r.Code, err)
	}
	return doc
}

// documentFile is the document as it is served, for readers and for generators of
// clients. It is written by go test ./api -run TestDocumentFile -update.
const documentFile = "openapi/openapi.json"

// TestDocumentFile holds the committed document, which nodes serve, against the table.
func TestDocumentFile(t *testing.T) {
	t.Parallel()
	generated, err := generateDocument()
	if err != nil {
		t.Fatal(err)
	}
	generated = append(generated, '\n')
	if *update {
		if err := os.WriteFile(documentFile, generated, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	r := httptest.NewRecorder()
	s := bareServer(t, func(d *Deps) { d.Node.Version = `v1 "dirty"` })
	s.ServeHTTP(r, httptest.NewRequest("GET", "/openapi.json", nil))
	served := strings.Replace(r.Body.String(), `"version": "v1 \"dirty\""`, `"version": "1"`, 1)
	if served != string(generated) {
		t.Errorf("%s is not what the table says: run go test ./api -run TestDocumentFile -update", documentFile)
	}
}

// TestDocumentAndRoutesAgree: every route is documented, with its role, and
// every documented operation is served.
func TestDocumentAndRoutesAgree(t *testing.T) {
	virtual(t, func(t *testing.T) {
		doc := document(t)
		paths := doc["paths"].(map[string]any)
		served := openapi.NewRouter(table)
		for _, res := range served.Resources {
			item, ok := paths[res.Pattern].(map[string]any)
			if !ok {
				t.Errorf("%s is not documented", res.Pattern)
				continue
			}
			for method, row := range res.Methods {
				op, ok := item[strings.ToLower(method)].(map[string]any)
				if !ok {
					t.Errorf("%s %s is not documented", method, res.Pattern)
					continue
				}
				if op["x-northstar-role"] != string(row.Role) {
					t.Errorf("%s %s: role %v, want %s", method, res.Pattern, op["x-northstar-role"], row.Role)
				}
			}
		}
		s := bareServer(t)
		for pattern, item := range paths {
			for method := range item.(map[string]any) {
				if method == "parameters" {
					continue
				}
				w := serveBriefly(s, httptest.NewRequest(strings.ToUpper(method), concrete(pattern), nil))
				if w.Code == http.StatusMethodNotAllowed || strings.Contains(w.Body.String(), "there is nothing at") {
					t.Errorf("%s %s is documented and not served: %d", method, pattern, w.Code)
				}
			}
		}
	})
}

// A node that refuses service because of a split brain answers 409 to every request, reads included.
func TestSplitBrainIsDocumented(t *testing.T) {
	virtual(t, func(t *testing.T) {
		paths := document(t)["paths"].(map[string]any)
		s := bareServer(t, func(d *Deps) { d.SplitBrain, d.Insecure = &fakeSplitBrain{refusing: "two leaders"}, true })
		for _, path := range []string{"/v1/kv", "/v1/kv/{key}", "/v1/roles", "/admin/snapshot"} {
			w := serveBriefly(s, httptest.NewRequest("GET", concrete(path), nil))
			if w.Code != 409 {
				t.Errorf("GET %s: %d %s", path, w.Code, w.Body)
			}
			get := paths[path].(map[string]any)["get"].(map[string]any)
			if get["responses"].(map[string]any)["409"] == nil {
				t.Errorf("GET %s: 409 is not documented", path)
			}
		}
	})
}

// TestDocumentIsWhole checks what a validator would: references lead
// somewhere, operation IDs are unique, path parameters are declared, every
// response has a description, every failure is a problem.
// The document names every type of events.
func TestEventTypesAreDocumented(t *testing.T) {
	t.Parallel()
	field, _ := reflect.TypeFor[apiv1.Event]().FieldByName("Type")
	if got, want := field.Tag.Get("doc"), strings.Join(cluster.EventTypes, ", "); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDocumentIsWhole(t *testing.T) {
	t.Parallel()
	doc := document(t)
	if doc["openapi"] != "3.1.0" {
		t.Errorf("openapi is %v", doc["openapi"])
	}
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				if name, found := strings.CutPrefix(ref, "#/components/schemas/"); !found || schemas[name] == nil {
					t.Errorf("%s refers to %s, which is not there", at, ref)
				}
			}
			for k, inner := range v {
				walk(at+"/"+k, inner)
			}
		case []any:
			for _, inner := range v {
				walk(at, inner)
			}
		}
	}
	walk("", doc)
	ids := make(map[string]string)
	for pattern, item := range doc["paths"].(map[string]any) {
		declared := item.(map[string]any)["parameters"] != nil
		if strings.Contains(pattern, "{") != declared {
			t.Errorf("%s: path parameters declared: %v", pattern, declared)
		}
		for method, o := range item.(map[string]any) {
			op, ok := o.(map[string]any)
			if !ok {
				continue
			}
			at := method + " " + pattern
			id := op["operationId"].(string)
			if other := ids[id]; other != "" {
				t.Errorf("%s and %s are both %s", at, other, id)
			}
			ids[id] = at
			for status, r := range op["responses"].(map[string]any) {
				r := r.(map[string]any)
				if r["description"] == "" {
					t.Errorf("%s: response %s has no description", at, status)
				}
				if status < "400" || method == "head" {
					continue
				}
				if r["content"].(map[string]any)[apiv1.TypeProblem] == nil {
					t.Errorf("%s: response %s is no problem", at, status)
				}
			}
			if op["summary"] == "" {
				t.Errorf("%s has no summary", at)
			}
		}
	}
}

// TestOpenAPI_ResponsesMatchSchemas: a key that a JSON answer has is in its
// schema, and the other way round for those that are always there.
func TestOpenAPI_ResponsesMatchSchemas(t *testing.T) {
	virtual(t, func(t *testing.T) {
		schemas := document(t)["components"].(map[string]any)["schemas"].(map[string]any)
		s := bareServer(t)
		for path, v := range map[string]any{
			"/leader": apiv1.Leader{}, "/status": apiv1.Status{}, "/v1/cluster": apiv1.Cluster{},
			"/v1/kv":     apiv1.List{},
			"/v1/events": apiv1.Events{}, "/v1/elections": apiv1.Elections{}, "/nowhere": apiv1.Problem{},
		} {
			w := serveBriefly(s, local(path))
			var got map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatalf("%s: %s: %v", path, w.Body, err)
			}
			schema := schemas[reflect.TypeOf(v).Name()].(map[string]any)
			for _, name := range schema["required"].([]any) {
				if _, ok := got[name.(string)]; !ok {
					t.Errorf("%s: %s is missing in %s", path, name, w.Body)
				}
			}
			for name := range got {
				if schema["properties"].(map[string]any)[name] == nil {
					t.Errorf("%s: %s is not in the schema", path, name)
				}
			}
		}
	})
}

// local is a GET from this machine.
func local(path string) *http.Request {
	r := httptest.NewRequest("GET", "http://127.0.0.1"+path, nil)
	r.RemoteAddr = "127.0.0.1:5"
	return r
}

func TestErrorsOfTheRouter(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for _, tc := range []struct{ path, allow string }{
			{"/leader", "GET, HEAD"},
			{"/v1/kv/k", "DELETE, GET, HEAD, PUT"},
			{"/health/leader", "GET, HEAD, OPTIONS"},
			{"/v1/watch", "GET"},
			{"/v1/events", "GET, HEAD"},
			{"/admin/members", "POST"},
			{"/admin/members/n1", "DELETE, PATCH"},
		} {
			r := n.do("TRACE", tc.path, "")
			r.is(t, 405, cluster.CodeBadRequest)
			if got := r.header.Get("Allow"); got != tc.allow {
				t.Errorf("%s: Allow %q, want %q", tc.path, got, tc.allow)
			}
		}
		for _, path := range []string{
			"/nowhere", "/leader/", "//leader", "/admin/members/a/b",
			"/admin/members/a%2Fb/c", "/dashboard/secret", "/v1/sessions/a/b", "/v1/roles//watch/x", "/admin/audit/x",
		} {
			r := n.do("GET", path, "")
			if r.status != 404 && r.status != 405 {
				t.Errorf("%s: %d", path, r.status)
			}
			r.problem(t)
		}
	})
}

// What a linter asks for: every operation says who may call it, requests refuse unknown fields, answers may get more,
// and parameters have the defaults that handlers have.
func TestDocumentRules(t *testing.T) {
	t.Parallel()
	doc := document(t)
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	for pattern, item := range doc["paths"].(map[string]any) {
		for method, o := range item.(map[string]any) {
			op, ok := o.(map[string]any)
			if !ok {
				continue
			}
			security, ok := op["security"].([]any)
			if open := op["x-northstar-role"] == string(token.None); !ok || open != (len(security) == 0) {
				t.Errorf("%s %s: security %v, role %q", method, pattern, op["security"], op["x-northstar-role"])
			}
			params, _ := op["parameters"].([]any)
			for _, p := range params {
				p := p.(map[string]any)
				if p["name"] != "limit" {
					continue
				}
				want := 1000.0
				if pattern == "/v1/events" || pattern == "/v1/elections" || pattern == "/admin/audit" {
					want = 100
				}
				if schema := p["schema"].(map[string]any); schema["default"] != want || schema["maximum"] != nil {
					t.Errorf("%s: limit %v", pattern, schema)
				}
			}
		}
	}
	for name, closed := range map[string]bool{
		"Problem": false, "List": false, "Session": false, "Node": false, "Load": false, "Cluster": false,
		"SessionCreate": true, "Campaign": true, "Transfer": true, "RenewMany": true, "MemberAdd": true,
	} {
		schema, ok := schemas[name].(map[string]any)
		if !ok || closed != (schema["additionalProperties"] == false) {
			t.Errorf("%s: additionalProperties %v", name, schema["additionalProperties"])
		}
	}
	load := schemas["Node"].(map[string]any)["properties"].(map[string]any)["load"].(map[string]any)
	if forms, _ := load["oneOf"].([]any); len(forms) != 2 {
		t.Errorf("load may be null: %v", load)
	}
	if required := schemas["SessionCreate"].(map[string]any)["required"].([]any); len(required) > 0 {
		t.Errorf("a session needs %v", required)
	}
}
