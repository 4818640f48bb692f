package dashboard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/dashboard"
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

// buildNode returns the path of a new program of a node.
var buildNode = func(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "northstar-node")
	build := exec.Command("go", "build", "-ldflags", "-X northstar/node.Version=v1.0.0", "-o", bin,
		"northstar/cmd/northstar-node")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

func startSite(t *testing.T) *site {
	t.Helper()
	bin := buildNode(t)
	tokens := filepath.Join(t.TempDir(), "tokens.toml")
	var file bytes.Buffer
	for _, who := range [][3]string{{"ann", "operator", operatorToken}, {"olga", "observer", observerToken}} {
		fmt.Fprintf(&file, "[[token]]\nname = %q\nrole = %q\nhash = %q\n", who[0], who[1], token.Sum(who[2]).String())
	}
	if err := os.WriteFile(tokens, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := proc.NorthStar(bin, 3, "--auth-tokens", tokens, "--cluster-name", "harbour",
		"--election-timeout-min", "2s", "--election-timeout-max", "4s") // for machines with much to do
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
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
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
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
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

// logIn logs in with a token.
func (p *page) logIn(token string) {
	p.t.Helper()
	p.fill("#token", token)
	p.click("button", "Log in")
}

// TestDashboard_Size holds the page small enough for a slow line.
func TestDashboard_Size(t *testing.T) {
	t.Parallel()
	total := 0
	for _, name := range dashboard.Names() {
		data, media, ok := dashboard.File(name)
		if !ok || media == "" || len(data) == 0 {
			t.Errorf("%s cannot be served: %q, %d bytes", name, media, len(data))
		}
		total += len(data)
		if lines := bytes.Count(data, []byte("\n")); lines > 400 {
			t.Errorf("%s: %d lines, at most 400", name, lines)
		}
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("} {
			if bytes.Contains(data, []byte(bad)) {
				t.Errorf("%s uses %s: data must be shown as text", name, bad)
			}
		}
	}
	if total > 150<<10 {
		t.Errorf("the page has %d bytes, at most 150 KiB", total)
	}
}

// TestDashboard_InChromium uses the page as operators do.
func TestDashboard_InChromium(t *testing.T) {
	t.Parallel()
	b := startChromium(t)
	s := startSite(t)
	sessions := s.fillIn()
	// The page is loaded from a follower, which the test kills later.
	leader := s.leader()
	own := s.Nodes[0]
	if own == leader {
		own = s.Nodes[1]
	}
	p := b.open(t, "http://"+own.HTTP+"/", 1280, 900)
	step := func(name string, test func(t *testing.T)) {
		t.Helper()
		if t.Failed() {
			return
		}
		t.Run(name, func(t *testing.T) {
			p.t = t
			defer func() {
				if found := b.pageErrors(); len(found) > 0 {
					t.Errorf("errors in the page: %s", strings.Join(found, "\n"))
				}
			}()
			test(t)
		})
		p.t = t
	}
	step("log in", func(t *testing.T) { logsIn(t, p) })
	step("overview", func(t *testing.T) { showsOverview(t, p, own) })
	step("transfer", func(*testing.T) { transfers(p) })
	step("elections", func(*testing.T) { explainsElections(p) })
	step("roles", func(*testing.T) { evicts(p, s, sessions["crane-a"]) })
	step("sessions", func(*testing.T) { endsSession(p) })
	step("keys", func(t *testing.T) { editsKeys(t, p, s) })
	step("pages", func(*testing.T) { showsOtherPages(p) })
	step("accessibility", func(t *testing.T) { checkAccessibility(t, p) })
	step("pause", func(*testing.T) { pauses(p) })
	step("failover", func(t *testing.T) { movesToAnotherNode(t, p, own) })
	step("lost quorum", func(t *testing.T) { recovers(t, p, s, own) })
}

func logsIn(t *testing.T, p *page) {
	p.waitText("This cluster asks for a token")
	p.waitText("3 of 3 voters healthy, one may fail") // what everyone may see
	p.logIn("wrong")
	p.waitText("Refused: Authorization: unknown token")
	p.logIn(observerToken)
	p.waitText("olga (observer)")
	p.waitText("3 of 3 voters healthy, one may fail")
	for _, hidden := range []string{"Operate", "Transfer leadership", "Drain", "Audit", "Split brain"} {
		if strings.Contains(p.text(), hidden) {
			t.Errorf("an observer sees %q", hidden)
		}
	}
	p.visit("#/keys/motto")
	p.click("button", "motto")
	p.waitText("<b>fair winds</b>")
	if strings.Contains(p.text(), "Edit…") {
		t.Error("an observer may edit keys")
	}
	p.visit("#/overview")
	p.click("button", "Log out")
	p.waitText("This cluster asks for a token")
	p.logIn(operatorToken)
	p.waitText("ann (operator)")
	p.waitText("Operate")
	var stored bool
	p.eval("sessionStorage.length + localStorage.length > 0", &stored)
	if stored {
		t.Error("the token was stored without being asked to")
	}
}

func showsOverview(t *testing.T, p *page, own *proc.Node) {
	p.waitText("via " + own.ID + ", live")
	p.waitText("leads")
	p.waitText("2 of 3 make a majority")
	p.wait("three members are shown", `document.querySelectorAll(".member").length === 3`)
	p.wait("a graph has points", `document.querySelector(".graph .curve").getAttribute("points").includes(" ")`)
	var load float64
	p.eval(`performance.getEntriesByType("navigation")[0].duration`, &load)
	t.Logf("the page was loaded in %.0f ms", load)
}

func transfers(p *page) {
	p.click("button", "Transfer leadership…")
	p.fill("#field-reason", "trying the dashboard")
	p.click("button", "Show the plan")
	p.waitText("This would happen")
	p.click("button", "Run this plan")
	p.waitText("It took")
	p.waitText("leads in term")
	p.click("button", "Close")
	p.visit("#/audit")
	p.waitText("trying the dashboard")
}

func explainsElections(p *page) {
	p.visit("#/elections")
	p.waitText("Who led when")
	p.waitText("planned")
	p.click("summary", "Term")
	p.waitText("leadership was handed over as planned")
	p.waitText("The operator ann asked for it: trying the dashboard")
}

// evicts takes a role from a holder, which lets go of it when it hears of that.
func evicts(p *page, s *site, holder string) {
	p.visit("#/roles")
	p.click("main a", "crane")
	p.waitText("holds it with token")
	p.click("button", "Evict the holder…")
	p.fill("#field-reason", "stuck")
	p.click("button", "Show the plan")
	p.waitText("This would happen")
	p.click("button", "Run this plan")
	for until := time.Now().Add(patience); time.Now().Before(until); {
		var told apiv1.Session
		s.call(s.Nodes[0], "GET", apiv1.PathSessions+"/"+holder, nil, &told)
		if len(told.RevokedRoles) > 0 {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	s.call(s.Nodes[0], "DELETE", "/v1/roles/crane?session_id="+holder, nil, nil)
	p.waitText("It took")
	p.click("button", "Close")
	p.waitText("an operator evicted it")
	p.wait("the next in the queue holds it", `document.querySelector("main section .pill.lead").innerText === "crane-b"`)
}

func endsSession(p *page) {
	p.visit("#/sessions")
	p.waitText("pilot")
	p.eval(`void [...document.querySelectorAll("main tr")].find((r) => r.innerText.includes("pilot-a")).querySelector("button").click()`, nil)
	p.waitText("The roles pilot become vacant.")
	p.click("button", "End the session")
	p.waitText("It took")
	p.click("button", "Close")
	p.wait("it is gone", `!document.querySelector("main").innerText.includes("pilot-a")`)
}

func editsKeys(t *testing.T, p *page, s *site) {
	p.visit("#/keys")
	p.click("main a", "config/")
	p.click("button", "config/berths")
	p.click("button", "JSON")
	p.waitText("\"tide\": \"high\"")
	p.waitText("Last written by ann (operator)")
	p.click("button", "hex")
	p.waitText("000000  7b 22 62")
	p.click("button", "Edit…")
	p.fill("#edit-value", "none")
	p.click("button", "Continue")
	p.waitText("This replaces revision")
	p.click("button", "Write it")
	p.click("button", "text")
	p.wait("the new value is shown", `document.querySelector("pre").innerText === "none"`)
	n := s.leader()
	p.click("button", "Edit…")
	s.call(n, "PUT", "/v1/kv/config/berths", "written meanwhile", nil)
	p.fill("#edit-value", "lost")
	p.click("button", "Continue")
	p.click("button", "Write it")
	p.waitText("Not written: the key has changed meanwhile")
	var got apiv1.List
	s.call(n, "GET", "/v1/kv?prefix=config/berths", nil, &got)
	if string(got.Items[0].Value) != "written meanwhile" {
		t.Errorf("the value is %q", got.Items[0].Value)
	}
	p.click("button", "Cancel")
}

func showsOtherPages(p *page) {
	p.visit("#/nodes")
	p.waitText("crane-a.example")
	p.visit("#/events")
	p.waitText("leads in term")
	p.click("button", "Pause")
	p.click("button", "Continue")
	p.visit("#/splitbrain")
	p.waitText("All nodes agree on one leader.")
	p.waitText("says that it leads")
	p.click("button", "Check now…")
	p.click("button", "Check")
	p.waitText("It took")
	p.click("button", "Close")
	p.visit("#/overview")
}

func pauses(p *page) {
	p.visit("#/overview")
	p.click("button", "Pause automatic failover…")
	p.fill("#field-reason", "maintenance")
	p.click("button", "Show the plan")
	p.waitText("Automatic failover is paused for 15m0s")
	p.click("button", "Run this plan")
	p.waitText("It took")
	p.click("button", "Close")
	p.waitText("by ann (maintenance): a leader that fails is not replaced.")
	p.click("button", "Resume automatic failover…")
	p.click("button", "Show the plan")
	p.click("button", "Run this plan")
	p.waitText("It took")
	p.click("button", "Close")
}

// movesToAnotherNode kills the node that served the page and that it talks to.
func movesToAnotherNode(t *testing.T, p *page, own *proc.Node) {
	p.visit("#/overview")
	p.waitText("via " + own.ID + ", live")
	began := time.Now()
	own.Kill()
	p.wait("the page talks to another node", fmt.Sprintf(
		`/via n\d, live/.test(document.querySelector("#connection").innerText) && !document.querySelector("#connection").innerText.includes(%q)`, own.ID))
	t.Logf("the page moved within %v", time.Since(began).Round(10*time.Millisecond))
	p.waitText("2 of 3 voters healthy, none may fail")
	p.click("button", "Transfer leadership…") // a call to another origin
	p.click("button", "Show the plan")
	p.waitText("This would happen")
	p.click("button", "Cancel")
}

// recovers kills a second node, and recovers the cluster from the one that is left.
func recovers(t *testing.T, p *page, s *site, dead *proc.Node) {
	var origin string
	p.eval(`document.querySelector("#connection").title.split(";")[0]`, &origin)
	for _, n := range s.Nodes {
		if n != dead && n.HTTP != origin {
			n.Kill()
		}
	}
	p.waitText("Quorum lost")
	p.waitText("Nothing can be written until enough nodes come back")
	var id string
	p.click("button", "Recover the lost quorum…")
	p.eval(`document.querySelector("label[for=field-confirm]").innerText.split(": ")[1]`, &id)
	p.fill("#field-confirm", id)
	p.fill("#field-reason", "two nodes are lost for good")
	p.click("button", "Show the plan")
	p.waitText("risk: high")
	p.click("button", "Run this plan")
	p.waitText("It took")
	if text := p.text(); strings.Contains(text, "Not done") {
		t.Fatal(text)
	}
	p.click("button", "Close")
	p.waitText("1 voter, none may fail")
}
