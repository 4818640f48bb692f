package proc

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The contract_*_test.go files check the contract from outside, as third-party clients see it: over HTTP, signals, exit
// codes and files, without this project's own types.

// contract sends requests to nodes over HTTP and checks every response: an error is a problem document, and the OpenAPI
// document lists it.
type contract struct {
	t      *testing.T
	client *http.Client
	scheme string

	once sync.Once
	doc  map[string]any
}

func newContract(t *testing.T) *contract {
	return &contract{t: t, scheme: "http", client: &http.Client{
		Timeout:       20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// heard is one complete response.
type heard struct {
	t      *testing.T
	what   string
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// ask sends one request. The path is sent unchanged.
func (c *contract) ask(n *Node, method, path, body string, headers ...string) heard {
	c.t.Helper()
	h, err := c.try(n, method, path, body, headers...)
	if err != nil {
		c.t.Fatalf("%s %s at %s: %v", method, path, n.ID, err)
	}
	c.check(n, method, path, h)
	return h
}

func (c *contract) try(n *Node, method, path, body string, headers ...string) (heard, error) {
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.scheme+"://"+n.HTTP+path, strings.NewReader(body))
	if err != nil {
		return heard{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	start := time.Now()
	resp, err := c.client.Do(req)
	if err != nil {
		return heard{}, err
	}
	defer resp.Body.Close()
	h := heard{t: c.t, what: method + " " + path + " at " + n.ID, status: resp.StatusCode, header: resp.Header}
	h.body, err = io.ReadAll(resp.Body)
	h.took = time.Since(start)
	for name, values := range resp.Trailer {
		h.header[name] = values
	}
	return h, err
}

// check checks what holds for every response.
func (c *contract) check(n *Node, method, path string, h heard) {
	c.t.Helper()
	if h.status >= 400 && method != http.MethodHead {
		c.checkProblem(h)
	}
	if op := c.operation(n, method, path); op != nil &&
		op["responses"].(map[string]any)[strconv.Itoa(h.status)] == nil {
		c.t.Errorf("%s: status %d is not in the OpenAPI document: %s", h.what, h.status, h.body)
	}
}

func (c *contract) checkProblem(h heard) {
	c.t.Helper()
	var p struct {
		Type, Title, Detail, Name *string
		Status, Code              *int
		Retryable                 *bool
	}
	if err := json.Unmarshal(h.body, &p); err != nil || h.header.Get("Content-Type") != "application/problem+json" {
		c.t.Errorf("%s: %d is no problem: %s %s", h.what, h.status, h.header.Get("Content-Type"), h.body)
		return
	}
	if p.Type == nil || p.Title == nil || p.Detail == nil || p.Name == nil || p.Status == nil || p.Code == nil ||
		p.Retryable == nil {
		c.t.Errorf("%s: a field of the problem is missing: %s", h.what, h.body)
		return
	}
	if *p.Status != h.status {
		c.t.Errorf("%s: answered with %d, the problem says %d", h.what, h.status, *p.Status)
	}
	if *p.Retryable && h.header.Get("Retry-After") == "" {
		c.t.Errorf("%s: retryable, without Retry-After", h.what)
	}
}

// operation returns the OpenAPI document's entry for a request, nil if it has none.
func (c *contract) operation(n *Node, method, path string) map[string]any {
	c.once.Do(func() {
		h, err := c.try(n, http.MethodGet, "/openapi.json", "")
		if err != nil || json.Unmarshal(h.body, &c.doc) != nil {
			c.t.Fatalf("/openapi.json: %v %s", err, h.body)
		}
	})
	path, _, _ = strings.Cut(path, "?")
	paths := c.doc["paths"].(map[string]any)
	item, ok := paths[path].(map[string]any)
	for pattern, it := range paths {
		if prefix, _, templated := strings.Cut(pattern, "{"); !ok && templated && strings.HasPrefix(path, prefix) {
			item = it.(map[string]any)
		}
	}
	op, _ := item[strings.ToLower(method)].(map[string]any)
	return op
}

func (h heard) fields() map[string]any {
	h.t.Helper()
	dec := json.NewDecoder(bytes.NewReader(h.body))
	dec.UseNumber()
	var m map[string]any
	if err := dec.Decode(&m); err != nil {
		h.t.Fatalf("%s: %d %s: %v", h.what, h.status, h.body, err)
	}
	return m
}

// is requires a status, and a code if it is an error.
func (h heard) is(status int, code ...int) heard {
	h.t.Helper()
	if h.status != status {
		h.t.Errorf("%s: %d, want %d: %.300s", h.what, h.status, status, h.body)
		return h
	}
	if len(code) > 0 && h.fields()["code"] != json.Number(strconv.Itoa(code[0])) {
		h.t.Errorf("%s: code %v, want %d", h.what, h.fields()["code"], code[0])
	}
	return h
}

// has requires exactly these keys.
func (h heard) has(keys ...string) map[string]any {
	h.t.Helper()
	m := h.fields()
	for _, k := range keys {
		if _, ok := m[k]; !ok {
			h.t.Errorf("%s: no %s: %s", h.what, k, h.body)
		}
	}
	if len(m) != len(keys) {
		h.t.Errorf("%s: %d keys, want %d: %s", h.what, len(m), len(keys), h.body)
	}
	return m
}

func (h heard) revision() uint64 {
	h.t.Helper()
	n, err := strconv.ParseUint(string(h.fields()["revision"].(json.Number)), 10, 53)
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// contractCluster returns a running cluster, its leader, and a follower.
func contractCluster(t *testing.T, size int, extra ...string) (c *Cluster, lead *Node, follower *Node) {
	t.Helper()
	c = newCluster(t, size, extra...)
	lead = start(t, c)
	for _, n := range c.Nodes {
		if n != lead {
			follower = n
		}
	}
	return c, lead, follower
}

const jsonType = "application/json"
