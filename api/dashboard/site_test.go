package dashboard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/chaos/proc"
)

// Tokens of the test cluster.
const (
	operatorToken = "operator-of-the-test"
	observerToken = "observer-of-the-test"
)

// site is a cluster of real nodes, with tokens.
type site struct {
	t *testing.T
	*proc.Cluster
}

// nodeProgram returns the path of northstar-node. In pictures it has a version.
func nodeProgram(t *testing.T) string {
	t.Helper()
	build := func(dir string) (string, error) { return proc.Program(dir, "northstar-node") }
	if os.Getenv(screenshotsEnv) != "" || os.Getenv(stepsEnv) != "" {
		build = func(dir string) (string, error) {
			return proc.Build(dir, "northstar/cmd/northstar-node", "-ldflags", "-X northstar/node.Version=v1.0.0")
		}
	}
	bin, err := build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func startSite(t *testing.T) *site {
	t.Helper()
	bin := nodeProgram(t)
	tokens := filepath.Join(t.TempDir(), "tokens.toml")
	var file bytes.Buffer
	for _, who := range [][3]string{{"ann", "operator", operatorToken}, {"olga", "observer", observerToken}} {
		fmt.Fprintf(&file, "[[token]]\nname = %q\nrole = %q\nhash = %q\n", who[0], who[1], token.Sum(who[2]).String())
	}
	if err := os.WriteFile(tokens, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := proc.NorthStar(bin, 3, "--auth-tokens", tokens, "--cluster-name", "harbour",
		"--election-timeout-min", "2s", "--election-timeout-max", "4s", // for machines with much to do
		"--failover-takeover-delay", "1h") // only the test moves leadership: a plan holds for one term
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		c.Close()
	})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	s := &site{t, c}
	s.leader()
	return s
}

func (s *site) leader() *proc.Node {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), showTimeout)
	defer cancel()
	n, err := s.Leader(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// call makes a call to a node as the operator, and decodes the response.
func (s *site) call(n *proc.Node, method, path string, in, out any) {
	s.t.Helper()
	var body io.Reader
	switch v := in.(type) {
	case nil:
	case string:
		body = strings.NewReader(v)
	default:
		text, err := json.Marshal(in)
		if err != nil {
			s.t.Fatal(err)
		}
		body = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), showTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+n.HTTP+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+operatorToken)
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err == nil && w.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", w.Status)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		s.t.Fatalf("%s %s: %v: %s", method, path, err, text)
	}
}

// fillIn makes sessions, roles with a candidate in the queue, keys and application nodes.
func (s *site) fillIn() (sessions map[string]string) {
	s.t.Helper()
	sessions = map[string]string{}
	n := s.leader()
	ttl := int64(600_000)
	for name, role := range map[string]string{"crane-a": "crane", "pilot-a": "pilot"} {
		var made apiv1.SessionCreated
		s.call(n, "POST", apiv1.PathSessions, apiv1.SessionCreate{Name: name, TTLMS: &ttl}, &made)
		sessions[name] = made.SessionID
		s.call(n, "POST", "/v1/roles/"+role+"/campaign",
			apiv1.Campaign{SessionID: made.SessionID, Value: name + ".example:9000"}, nil)
		s.call(n, "PUT", "/v1/nodes/"+name, apiv1.NodePut{
			SessionID: made.SessionID, Hostname: name + ".example", Address: "192.0.2.7", HTTPPort: 8080,
			Roles: []string{role}, Version: "3.2.1",
		}, nil)
	}
	s.queue(n, "crane-b", "crane")
	s.call(n, "PUT", "/v1/kv/config/berths", `{"berths":[1,2,3],"tide":"high"}`, nil)
	s.call(n, "PUT", "/v1/kv/config/lamps", "green", nil)
	s.call(n, "PUT", "/v1/kv/motto", "<b>fair winds</b>", nil)
	return sessions
}

// queue has another session wait for a role until the test ends.
func (s *site) queue(n *proc.Node, name, role string) {
	s.t.Helper()
	ttl := int64(600_000)
	var made apiv1.SessionCreated
	s.call(n, "POST", apiv1.PathSessions, apiv1.SessionCreate{Name: name, TTLMS: &ttl}, &made)
	body := fmt.Sprintf(`{"session_id": %q, "wait_ms": 300000}`, made.SessionID)
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		r, err := http.NewRequestWithContext(ctx, "POST", "http://"+n.HTTP+"/v1/roles/"+role+"/campaign",
			strings.NewReader(body))
		if err != nil {
			return
		}
		r.Header.Set("Authorization", "Bearer "+operatorToken)
		if w, err := http.DefaultClient.Do(r); err == nil {
			_ = w.Body.Close()
		}
	})
	s.t.Cleanup(func() { cancel(); waiting.Wait() })
}
