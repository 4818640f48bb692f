// Package openapi holds the type of the API's routes, the router over them, and the document that describes them.
package openapi

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"northstar/api/token"
)

// document is made from the table by go test ./api -run TestDocumentFile -update.
//
//go:embed openapi.json
var document []byte

// Document returns the OpenAPI 3.1 document of the API, as a node of a version serves it.
func Document(version string) []byte {
	return bytes.Replace(document, []byte(`"version": "1"`), fmt.Appendf(nil, `"version": %q`, version), 1)
}

// Route is one row of the table: how handler H serves a request, and its description for the document.
type Route[H any] struct {
	Method string
	// /a/b, /a/{name}/b, or /a/{name} with the name at the end; the name is one segment unless CatchAll
	Pattern     string
	CatchAll    bool // the parameter may contain slashes and is taken as it is
	Role        token.Role
	Sensitive   bool // needs an observer with auth.public = false
	AllowNode   bool // node certificates are accepted
	SkipAudit   bool // makes no audit record
	LimitExempt bool // served even if the node has too many requests
	Kind        ResponseKind
	Handle      H

	Summary       string
	Query         []Param
	Headers       []Param
	Body          any        // zero value of the JSON body, or Raw
	BodyDoc       string     // of a Raw body
	Responses     []Response // successful responses
	ErrorStatuses []int      // in addition to those of every route
}

// ResponseKind is how long a route's response may last, and which limit counts it.
type ResponseKind int

// The kinds of responses.
const (
	Unary          ResponseKind = iota
	Stream                      // always a stream
	StreamOnAccept              // a stream with Accept: text/event-stream
	LongPoll                    // no stream, but may take as long as one
	AttachStream                // a stream that keeps a session alive
)

// Param is a query parameter or header.
type Param struct {
	Name string
	Type string // string, integer, boolean
	Doc  string
}

// String, Integer and Boolean return a parameter of that type.
func String(name, doc string) Param  { return Param{Name: name, Type: "string", Doc: doc} }
func Integer(name, doc string) Param { return Param{Name: name, Type: "integer", Doc: doc} }
func Boolean(name, doc string) Param { return Param{Name: name, Type: "boolean", Doc: doc} }

// Response is one successful response.
type Response struct {
	Status  int
	Media   string // "": no body
	Value   any    // zero value of the JSON, nil for other media
	Doc     string
	Headers []Param
}

// Raw marks a body that is not JSON.
type Raw struct{}

// Resource has all methods of one path.
type Resource[H any] struct {
	Pattern string
	Methods map[string]*Route[H]
	Allow   string // value of the Allow header

	prefix, suffix string // of a path with a parameter: the text around it
	catchAll       bool
}

// Router finds the route of a request. It does not clean paths: a key must be taken as it is.
type Router[H any] struct {
	Resources []*Resource[H] // in the table's order

	exact    map[string]*Resource[H]
	prefixes []*Resource[H]
}

// NewRouter returns the router over a table of routes.
func NewRouter[H any](rows []Route[H]) *Router[H] {
	rt := &Router[H]{exact: make(map[string]*Resource[H])}
	byPattern := make(map[string]*Resource[H])
	for i := range rows {
		row := &rows[i]
		res := byPattern[row.Pattern]
		if res == nil {
			res = &Resource[H]{Pattern: row.Pattern, Methods: make(map[string]*Route[H]), catchAll: row.CatchAll}
			byPattern[row.Pattern] = res
			rt.Resources = append(rt.Resources, res)
			if before, rest, ok := strings.Cut(row.Pattern, "{"); ok {
				_, after, _ := strings.Cut(rest, "}")
				res.prefix, res.suffix = before, after
				rt.prefixes = append(rt.prefixes, res)
			} else {
				rt.exact[row.Pattern] = res
			}
		}
		res.Methods[row.Method] = row
		// HEAD is GET without the body.
		noStream := row.Kind == Unary || row.Kind == StreamOnAccept
		if row.Method == http.MethodGet && noStream && res.Methods[http.MethodHead] == nil {
			res.Methods[http.MethodHead] = row
		}
	}
	for _, res := range rt.Resources {
		res.Allow = strings.Join(slices.Sorted(maps.Keys(res.Methods)), ", ")
	}
	return rt
}

// Find returns the resource of a request and the parameter in its path, or nil. It compares fixed parts in escaped
// form. The parameter is decoded exactly once, by net/http.
func (rt *Router[H]) Find(escaped, decoded string) (*Resource[H], string) {
	if res := rt.exact[escaped]; res != nil {
		return res, ""
	}
	for _, res := range rt.prefixes {
		fixed := len(res.prefix) + len(res.suffix)
		if len(decoded) < fixed || !strings.HasPrefix(escaped, res.prefix) || !strings.HasSuffix(escaped, res.suffix) {
			continue
		}
		if !res.catchAll && strings.IndexByte(escaped[len(res.prefix):len(escaped)-len(res.suffix)], '/') >= 0 {
			continue
		}
		// Prefix and suffix have no escapes: they have the same length in both forms.
		return res, decoded[len(res.prefix) : len(decoded)-len(res.suffix)]
	}
	return nil, ""
}
