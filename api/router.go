package api

import (
	"net/http"
	"slices"
	"strings"

	"northstar/api/token"
)

// route is one row of the table: how a request is served, and everything that
// the OpenAPI document says about it.
type route struct {
	method        string
	pattern       string // /a/b, /a/{name}/b, or /a/{name} whose name is the rest of the path; one segment unless deep
	catchAll      bool   // the parameter may hold slashes and is taken as it is
	role          token.Role
	allowNodeCert bool // a node certificate will do too
	skipAudit     bool // leaves no audit record
	limitExempt   bool // served also when the node has too many requests
	responseKind  responseKind
	handle        func(*request) error

	summary       string
	query         []param
	headers       []param
	body          any           // zero value of the JSON body, or raw
	bodyDoc       string        // of a raw body
	responses     []responseDoc // the successful ones
	errorStatuses []int         // statuses beyond those of every route
}

// responseKind says whether a route's answer is a stream, or comes late: it may last
// and is counted apart.
type responseKind int

const (
	unary          responseKind = iota
	stream                      // whoever asks
	streamOnAccept              // with Accept: text/event-stream
	longPoll                    // no stream, but its answer may take as long
	attachStream                // a stream that holds a session
)

// param is a query parameter or header.
type param struct {
	name string
	kind string // string, integer, boolean
	doc  string
}

// responseDoc is one successful answer.
type responseDoc struct {
	status int
	media  string // "": no body
	value  any    // zero value of the JSON, nil for other media
	doc    string
	header []param
}

// raw marks a body that is not JSON.
type raw struct{}

// resource is all methods of one path.
type resource struct {
	pattern  string
	prefix   string // of a path with a parameter: what comes before it …
	suffix   string // … and after it
	catchAll bool
	methods  map[string]*route
	allow    string
}

type router struct {
	exact     map[string]*resource
	prefixes  []*resource
	resources []*resource // in the table's order
}

func newRouter(rows []route) *router {
	rt := &router{exact: make(map[string]*resource)}
	byPattern := make(map[string]*resource)
	for i := range rows {
		row := &rows[i]
		res := byPattern[row.pattern]
		if res == nil {
			res = &resource{pattern: row.pattern, methods: make(map[string]*route), catchAll: row.catchAll}
			byPattern[row.pattern] = res
			rt.resources = append(rt.resources, res)
			if before, rest, ok := strings.Cut(row.pattern, "{"); ok {
				_, after, _ := strings.Cut(rest, "}")
				res.prefix, res.suffix = before, after
				rt.prefixes = append(rt.prefixes, res)
			} else {
				rt.exact[row.pattern] = res
			}
		}
		res.methods[row.method] = row
		// As everywhere on the web, HEAD is GET without the body.
		if row.method == http.MethodGet && row.responseKind == unary && res.methods[http.MethodHead] == nil {
			res.methods[http.MethodHead] = row
		}
	}
	for _, res := range rt.resources {
		methods := make([]string, 0, len(res.methods))
		for m := range res.methods {
			methods = append(methods, m)
		}
		slices.Sort(methods)
		res.allow = strings.Join(methods, ", ")
	}
	return rt
}

// find gives the resource of a request and the parameter in its path. Fixed
// parts are compared in escaped form; the parameter is decoded exactly once,
// which net/http has done, and never cleaned.
func (rt *router) find(escaped, decoded string) (*resource, string) {
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
		// Prefix and suffix have no escapes, so that they are as long in both forms.
		return res, decoded[len(res.prefix) : len(decoded)-len(res.suffix)]
	}
	return nil, ""
}
