package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"northstar/api/token"
)

var pathParameter = regexp.MustCompile(`\{[^}]+\}`)

// TestRoleMatrixOfTheDocument calls every operation of the OpenAPI document as every kind of caller: with a token,
// with a certificate, as another node, from this machine, and unauthenticated. It does so with and without a token
// file.
func TestRoleMatrixOfTheDocument(t *testing.T) {
	t.Parallel()
	data, tokens := tokenFile()
	with, without := bareServer(t, withTokens(data)), bareServer(t)
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	w := serveBriefly(with, local("/openapi.json"))
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || len(doc.Paths) < 20 {
		t.Fatalf("%d paths: %v", len(doc.Paths), err)
	}
	const remote, here = "192.0.2.7:1234", "127.0.0.1:1234"
	callers := map[string]struct {
		server *Server
		from   string
		bearer string
		cert   string // role/name
		role   token.Role
		node   bool
		known  bool // is anybody at all: 403 and not 401 where that is not enough
	}{
		"nobody":       {server: with, from: remote, role: token.None},
		"nobody, here": {server: with, from: here, role: token.None},
		"a bad token":  {server: with, from: remote, bearer: "ns_bad", role: token.None},
		"observer": {
			server: with, from: remote, bearer: tokens[token.Observer],
			role: token.Observer, known: true,
		},
		"client": {
			server: with, from: remote, bearer: tokens[token.Client],
			role: token.Client, known: true,
		},
		"operator": {
			server: with, from: remote, bearer: tokens[token.Operator],
			role: token.Operator, known: true,
		},
		"observer's certificate": {
			server: with, from: remote, cert: "observer/o", role: token.Observer,
			known: true,
		},
		"client's certificate": {
			server: without, from: remote, cert: "client/c", role: token.Client,
			known: true,
		},
		"operator's certificate": {
			server: without, from: remote, cert: "operator/o", role: token.Operator,
			known: true,
		},
		"a node": {
			server: with, from: remote, cert: "node/n3", role: token.None, node: true,
			known: true,
		},
		"without tokens, here":      {server: without, from: here, role: token.Operator, known: true},
		"without tokens, from afar": {server: without, from: remote, role: token.None},
		"without tokens, with some token": {
			server: without, from: remote, bearer: tokens[token.Operator],
			role: token.None,
		},
	}
	asked := 0
	for path, methods := range doc.Paths {
		for method, raw := range methods {
			if method == "parameters" {
				continue
			}
			var op struct {
				Role  string `json:"x-northstar-role"`
				Nodes bool   `json:"x-northstar-node-certificate"`
			}
			if json.Unmarshal(raw, &op) != nil || op.Role == "" {
				t.Errorf("%s %s: the document names no role: %s", method, path, raw)
				continue
			}
			for name, who := range callers {
				r := httptest.NewRequest(strings.ToUpper(method), "http://127.0.0.1"+
					pathParameter.ReplaceAllString(path, "x"), strings.NewReader("{"))
				r.RemoteAddr = who.from
				if who.bearer != "" {
					r.Header.Set("Authorization", "Bearer "+who.bearer)
				}
				if who.cert != "" {
					clientCertificate(r, "northstar://test/"+who.cert, true)
				}
				want := 0 // authorized; the status does not matter
				switch {
				case who.role.Allows(token.Role(op.Role)), who.node && op.Nodes:
				case who.known:
					want = http.StatusForbidden
				default:
					want = http.StatusUnauthorized
				}
				got := serveBriefly(who.server, r).Code
				if got == http.StatusTooManyRequests && who.bearer == "ns_bad" {
					got = http.StatusUnauthorized // so many of them are answered so
				}
				if got != http.StatusUnauthorized && got != http.StatusForbidden {
					got = 0
				}
				if got != want {
					t.Errorf("%s %s as %s: %d, want %d", method, path, name, got, want)
				}
				asked++
			}
		}
	}
	if asked < 300 {
		t.Errorf("only %d questions", asked)
	}
}
