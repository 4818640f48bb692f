package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/api/openapi"
	"northstar/api/token"
)

// object is a JSON object under construction. encoding/json sorts its keys, so every run returns the same document.
type object = map[string]any

// generateDocument returns the OpenAPI 3.1 document of the table.
func generateDocument() ([]byte, error) {
	schemas := make(object)
	paths := make(object)
	for _, res := range openapi.NewRouter(table).Resources {
		item := make(object)
		for method, row := range res.Methods {
			item[strings.ToLower(method)] = operation(row, method, schemas)
		}
		if name := paramName(res.Pattern); name != "" {
			item["parameters"] = []any{object{
				"name": name, "in": "path", "required": true, "schema": object{"type": "string"},
				"description": paramDoc(res.Methods["GET"]),
			}}
		}
		paths[res.Pattern] = item
	}
	schemaOf(reflect.TypeFor[apiv1.Problem](), schemas)
	closeRequests(paths, schemas)
	doc := object{
		"openapi": "3.1.0",
		"info": object{
			"title":       "NorthStar",
			"version":     "1", // of the API; a node serves its own version here
			"description": "Errors are RFC 9457 problems with a code. Times are RFC 3339 UTC, durations integers in milliseconds.",
			"license":     object{"name": "MPL-2.0", "identifier": "MPL-2.0"},
		},
		"servers": []any{object{"url": "/"}},
		"paths":   paths,
		"components": object{
			"schemas": schemas,
			"securitySchemes": object{
				"bearer": object{"type": "http", "scheme": "bearer", "description": "a token of auth.tokens"},
				"certificate": object{
					"type":        "mutualTLS",
					"description": "URI SAN northstar://<cluster-name>/<role>/<name>",
				},
			},
		},
	}
	return json.MarshalIndent(doc, "", " ")
}

const schemaPath = "#/components/schemas/"

// closeRequests adds to the schemas of requests that unknown fields are refused. Answers are open: a later version may
// add fields.
func closeRequests(paths, schemas object) {
	var bodies, answers []any
	for _, item := range paths {
		for _, op := range item.(object) {
			if op, ok := op.(object); ok {
				bodies, answers = append(bodies, op["requestBody"]), append(answers, op["responses"])
			}
		}
	}
	answered := make(map[string]bool)
	eachReference(answers, schemas, answered, func(object, string) {})
	eachReference(bodies, schemas, make(map[string]bool), func(ref object, name string) {
		if answered[name] {
			ref["unevaluatedProperties"] = false
		} else {
			schemas[name].(object)["additionalProperties"] = false
		}
	})
}

// eachReference calls visit with each reference in v, and in the schemas that it leads to.
func eachReference(v any, schemas object, seen map[string]bool, visit func(ref object, name string)) {
	switch v := v.(type) {
	case []any:
		for _, inner := range v {
			eachReference(inner, schemas, seen, visit)
		}
	case object:
		if ref, ok := v["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, schemaPath)
			visit(v, name)
			if !seen[name] {
				seen[name] = true
				eachReference(schemas[name], schemas, seen, visit)
			}
			return
		}
		for _, inner := range v {
			eachReference(inner, schemas, seen, visit)
		}
	}
}

func paramName(pattern string) string {
	_, rest, _ := strings.Cut(pattern, "{")
	name, _, _ := strings.Cut(rest, "}")
	return name
}

func paramDoc(row *route) string {
	if row != nil && row.CatchAll {
		return "the rest of the path, decoded once and taken as it is, slashes included"
	}
	return "one segment of the path"
}

func operation(row *route, method string, schemas object) object {
	op := object{
		"operationId":      operationID(method, row.Pattern),
		"summary":          row.Summary,
		"responses":        responses(row, method, schemas),
		"x-northstar-role": string(row.Role),
	}
	op["security"] = []any{} // no token needed
	if row.Role != token.None {
		op["security"] = []any{object{"bearer": []any{}}, object{"certificate": []any{}}}
	}
	if row.AllowNode {
		op["x-northstar-node-certificate"] = true
	}
	var params []any
	for _, p := range row.Query {
		params = append(params, parameter(p, "query"))
	}
	for _, p := range row.Headers {
		// OpenAPI reserves Accept: it follows from the media types of the responses
		if p.Name != "Accept" {
			params = append(params, parameter(p, "header"))
		}
	}
	if params != nil {
		op["parameters"] = params
	}
	if row.Body != nil {
		op["requestBody"] = requestBody(row, schemas)
	}
	return op
}

func operationID(method, pattern string) string {
	var b strings.Builder
	b.WriteString(strings.ToLower(method))
	for _, part := range strings.FieldsFunc(pattern, func(r rune) bool { return strings.ContainsRune("/{}._", r) }) {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// limits are the default limits of a parameter's type.
var limits = map[string]object{
	"timeout_ms":  {"minimum": 1, "maximum": apiv1.MaxTimeoutMS, "default": apiv1.DefaultTimeoutMS},
	"consistency": {"enum": []string{apiv1.Linearizable, apiv1.Lease, apiv1.Stale}, "default": apiv1.Linearizable},
	"max_lag":     {"minimum": 0},
}

func parameter(p openapi.Param, in string) object {
	schema := object{"type": p.Type}
	maps.Copy(schema, limits[p.Name])
	switch p { // a larger limit is accepted
	case limitParam:
		maps.Copy(schema, object{"minimum": 1, "default": apiv1.DefaultListLimit})
	case pageParam:
		maps.Copy(schema, object{"minimum": 1, "default": apiv1.MaxListLimit})
	}
	o := object{"name": p.Name, "in": in, "schema": schema, "description": p.Doc}
	if p.Type == "boolean" {
		o["allowEmptyValue"] = true
	}
	return o
}

func requestBody(row *route, schemas object) object {
	if row.Body == (openapi.Raw{}) {
		return object{
			"required": true, "description": row.BodyDoc,
			"content": object{apiv1.TypeBinary: object{"schema": object{}}},
		}
	}
	return object{"content": object{apiv1.TypeJSON: object{"schema": schemaOf(reflect.TypeOf(row.Body), schemas)}}}
}

// commonErrors are the error statuses of every route; authenticated routes have more.
var commonErrors = []int{400, 405, 500}

func responses(row *route, method string, schemas object) object {
	out := make(object)
	for _, a := range row.Responses {
		r, _ := out[strconv.Itoa(a.Status)].(object)
		if r == nil {
			r = object{"description": a.Doc}
			out[strconv.Itoa(a.Status)] = r
		}
		if a.Media != "" && method != "HEAD" {
			content, _ := r["content"].(object)
			if content == nil {
				content = make(object)
				r["content"] = content
			}
			media, _ := content[a.Media].(object)
			if media == nil {
				media = make(object)
				content[a.Media] = media
			}
			if a.Value != nil {
				media["schema"] = either(media["schema"], schemaOf(reflect.TypeOf(a.Value), schemas))
			}
		}
		if len(a.Headers) > 0 {
			headers := make(object)
			for _, h := range a.Headers {
				headers[h.Name] = object{"schema": object{"type": h.Type}, "description": h.Doc}
			}
			r["headers"] = headers
		}
	}
	fails := slices.Concat(commonErrors, row.ErrorStatuses)
	if row.Role != token.None {
		fails = append(fails, 401, 403, 429)
	}
	if !row.LimitExempt {
		fails = append(fails, 503) // too many requests or streams
	}
	if forwardedRoute(row) {
		fails = append(fails, 409) // this node or the leader is part of a split brain (4004)
	}
	for _, status := range fails {
		if status == 307 {
			location := object{"schema": object{"type": "string"}}
			out["307"] = object{"description": "with ?redirect: to the leader", "headers": object{"Location": location}}
			continue
		}
		r := object{"description": "problem"}
		if method != "HEAD" {
			r["content"] = object{apiv1.TypeProblem: object{"schema": object{"$ref": "#/components/schemas/Problem"}}}
		}
		out[strconv.Itoa(status)] = r
	}
	return out
}

// forwardedRoute reports whether only the leader serves the route.
func forwardedRoute(row *route) bool {
	return slices.ContainsFunc(row.Responses, func(a openapi.Response) bool {
		return slices.ContainsFunc(a.Headers, func(h openapi.Param) bool { return h.Name == apiv1.HeaderLeader })
	})
}

// either returns the schema of a value with two possible forms; before is nil if it has one form.
func either(before any, next object) object {
	if before == nil {
		return next
	}
	return object{"oneOf": []any{before, next}}
}

var timeType = reflect.TypeFor[time.Time]()

// schemaOf returns the JSON schema of a wire type. It adds structs to schemas, under their name.
func schemaOf(t reflect.Type, schemas object) object {
	switch {
	case t == timeType:
		return object{"type": "string", "format": "date-time"}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return object{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		inner := schemaOf(t.Elem(), schemas)
		if name, ok := inner["type"].(string); ok {
			inner["type"] = []string{name, "null"}
			return inner
		}
		return object{"oneOf": []any{inner, object{"type": "null"}}}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		return object{"type": "array", "items": schemaOf(t.Elem(), schemas)}
	case reflect.Map:
		return object{"type": "object"}
	case reflect.Struct:
		if schemas[t.Name()] == nil {
			schemas[t.Name()] = object{} // ends a recursion
			schemas[t.Name()] = structSchema(t, schemas)
		}
		return object{"$ref": schemaPath + t.Name()}
	}
	panic(fmt.Sprintf("api: no JSON schema for %s", t)) // a wire type of this module: every test would fail
}

func structSchema(t reflect.Type, schemas object) object {
	props := make(object)
	required := []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		s := schemaOf(f.Type, schemas)
		if doc := f.Tag.Get("doc"); doc != "" {
			s["description"] = doc
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			s["enum"] = strings.Split(enum, ",")
		}
		props[name] = s
		if options == "" {
			required = append(required, name)
		}
	}
	return object{"type": "object", "properties": props, "required": required}
}
