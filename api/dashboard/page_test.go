package dashboard_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/dashboard"
	"northstar/chaos/proc"
)

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
	index, _, _ := dashboard.File("index.html")
	for _, name := range dashboard.Names() {
		data, media, ok := dashboard.File(name)
		if !ok || media == "" || len(data) == 0 {
			t.Errorf("%s cannot be served: %q, %d bytes", name, media, len(data))
		}
		total += len(data)
		if !bytes.Contains(index, []byte(`"/dashboard/`+name+`"`)) && name != "index.html" {
			t.Errorf("index.html does not name %s: it is loaded late, or never", name)
		}
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
	p := b.open(t, "http://"+strings.Replace(own.HTTP, "127.0.0.1", "localhost", 1)+"/", 1280, 900) // as people type it
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
	step("members", func(*testing.T) { changesMembers(p, own) })
	step("emergency", func(t *testing.T) { forces(t, p, s) })
	step("snapshot", func(t *testing.T) { savesSnapshot(t, p) })
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
	p.eval(`document.querySelector("[name=keep]").click()`, nil)
	p.logIn(observerToken)
	p.waitText("olga (observer)")
	p.must("Page.reload", params{}, nil)
	p.waitText("olga (observer)") // kept, as wished
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
	p.waitText("leadership was transferred as planned")
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
	s.release(holder, "crane")
	p.waitText("It took")
	p.click("button", "Close")
	p.waitText("an operator evicted it")
	p.wait("the next in the queue holds it", `document.querySelector("main section .pill.lead").innerText === "crane-b"`)
	for range 5 { // a process that crashes again and again
		var made apiv1.SessionCreated
		s.call(s.Nodes[0], "POST", apiv1.PathSessions, apiv1.SessionCreate{Name: "tug"}, &made)
		s.call(s.Nodes[0], "POST", "/v1/roles/tug/campaign", apiv1.Campaign{SessionID: made.SessionID}, nil)
		s.call(s.Nodes[0], "DELETE", apiv1.PathSessions+"/"+made.SessionID, nil, nil)
	}
	p.visit("#/roles")
	p.wait("the role flaps", `document.querySelector("[data-key=tug]").innerText.includes("flapping")`)
	p.visit("#/roles/tug")
	p.waitText("This role is flapping")
}

func endsSession(p *page) {
	p.visit("#/sessions")
	p.waitText("pilot")
	p.eval(`void [...document.querySelectorAll("main tr")].find((r) => r.innerText.includes("pilot-a")).querySelector("button").click()`, nil)
	p.fill("#field-reason", "pilot-a hangs")
	p.click("button", "Show the plan")
	p.waitText("1 session would end: the roles pilot become vacant, and 0 keys would be deleted.")
	p.waitText("risk: medium")
	p.click("button", "Run this plan")
	p.waitText("The session has ended.")
	p.click("button", "Close")
	p.wait("it is gone", `!document.querySelector("main").innerText.includes("pilot-a")`)
	p.visit("#/audit")
	p.waitText("Audit log")
	p.fill("#audit-class", "clients") // sessions are theirs
	p.waitText("pilot-a hangs")
}

func editsKeys(t *testing.T, p *page, s *site) {
	p.visit("#/keys")
	p.click("main a", "config/")
	p.click("button", "config/berths")
	p.click("button", "JSON")
	p.waitText("\"tide\": \"high\"")
	p.waitText("Last write in the audit log: ann (operator)")
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
	p.visit("#/keys/100%") // not an encoding of anything
	p.waitText("No key begins with this.")
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

// act opens an action with a button, and runs its plan. changed has fields that are not left as they are.
func (p *page) act(label string, changed map[string]string) {
	p.t.Helper()
	p.click("button", label)
	p.runPlan(changed)
}

// runPlan fills in the open action, and runs its plan.
func (p *page) runPlan(changed map[string]string) {
	p.t.Helper()
	for selector, value := range changed {
		p.fill(selector, value)
	}
	p.click("button", "Show the plan")
	p.waitText("This would happen")
	p.click("button", "Run this plan")
	p.waitText("It took")
	if text := p.text(); strings.Contains(text, "Not done") {
		p.t.Fatal(text)
	}
	p.click("button", "Close")
}

func changesMembers(p *page, n *proc.Node) {
	card := fmt.Sprintf(`document.querySelector("[data-key=%s].member")`, n.ID)
	press := func(label string) {
		button := fmt.Sprintf(`[...%s.querySelectorAll("button")].find((b) => b.innerText === %q)`, card, label)
		p.wait(label+" is there", button)
		p.eval("void "+button+".click()", nil)
	}
	press("Change…")
	p.runPlan(map[string]string{"#field-priority": "90", "#field-reason": "older disk"})
	p.wait("the priority is shown", card+`.innerText.includes("90")`)
	press("Drain…")
	p.runPlan(nil)
	p.wait("the drain is shown", card+`.innerText.includes("draining")`)
	p.wait("it says that it starts no election", card+`.innerText.includes("no election by itself: it is drained")`)
	press("Undrain…")
	p.runPlan(nil)
	p.wait("it is active", card+`.innerText.includes("active")`)
}

func forces(t *testing.T, p *page, s *site) {
	before := s.leader().ID
	p.act("Emergency failover…", map[string]string{"#field-reason": "the leader hangs"})
	if after := s.leader().ID; after == before {
		t.Errorf("%s still leads", after)
	}
}

func savesSnapshot(t *testing.T, p *page) {
	dir := t.TempDir()
	allow := params{"behavior": "allow", "downloadPath": dir}
	if err := p.b.call("", "Browser.setDownloadBehavior", allow, nil); err != nil {
		t.Fatal(err)
	}
	p.click("button", "Take a snapshot…")
	p.click("button", "Download")
	p.waitText("Saved as harbour-")
	p.click("button", "Close")
	for until := time.Now().Add(showTimeout); ; {
		files, err := filepath.Glob(filepath.Join(dir, "harbour-*.snapshot"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 1 {
			return
		}
		if time.Now().After(until) {
			t.Fatal("no file was saved")
		}
		<-time.After(20 * time.Millisecond)
	}
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
	p.fill("#field-reason", "two nodes are lost permanently")
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
