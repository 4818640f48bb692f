package dashboard_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
)

// TestDashboard_FakeNode shows the page what a real cluster shows rarely. Each step leaves the page as it found it.
func TestDashboard_FakeNode(t *testing.T) {
	t.Parallel()
	b := startChromium(t)
	f := startFakeNode(t)
	p := b.open(t, f.URL+"/", 1280, 900)
	for _, step := range []struct {
		name string
		run  func(t *testing.T, p *page, f *fakeNode)
	}{
		{"words", func(t *testing.T, p *page, _ *fakeNode) { saysInWords(t, p) }},
		{"dialog", reopensDialogs},
		{"keys", startsEditsAgain},
		{"writer", followsAKey},
		{"slow audit log", waitsForTheWriter},
		{"audit", followsTheAuditLog},
		{"lost elections", showsLostElections},
		{"who led when", drawsTenures},
		{"no leader", waitsWithTheAlert},
		{"clock", goesByTheNodesClock},
		{"events", countsNewEvents},
		{"busy", saysWhatNodesAnswer}, // the last one: the node serves no page after it
	} {
		t.Run(step.name, func(t *testing.T) {
			p.t = t
			p.visit("#/overview")
			p.waitText("n1 leads")
			step.run(t, p, f)
			if found := b.pageErrors(); len(found) > 0 {
				t.Errorf("errors in the page: %s", strings.Join(found, "\n"))
			}
		})
	}
}

// value returns what a field shows.
func (p *page) value(selector string) (value string) {
	p.t.Helper()
	p.wait(selector+" is there", fmt.Sprintf("document.querySelector(%q)", selector))
	p.eval(fmt.Sprintf("document.querySelector(%q).value", selector), &value)
	return value
}

// reopensDialogs begins actions, cancels them, and begins again: what is shown then is what is sent.
func reopensDialogs(t *testing.T, p *page, f *fakeNode) {
	f.answer("POST /admin/failover/emergency", apiv1.Plan{
		Possible: true, Summary: "n2 would lead", Candidates: []apiv1.TargetCandidate{}, Warnings: []string{},
	})
	p.click("button", "Emergency failover…")
	p.fill("#field-target_leader_id", "n3")
	p.fill("#field-reason", "a first try")
	p.click("button", "Cancel")
	p.click("button", "Emergency failover…")
	target, reason := p.value("#field-target_leader_id"), p.value("#field-reason")
	if target != "n2" || reason != "" {
		t.Errorf("an opened dialog shows the target %q and the reason %q", target, reason)
	}
	p.fill("#field-reason", "a second try")
	p.click("button", "Show the plan")
	p.click("button", "Run this plan")
	p.waitText("It took")
	p.click("button", "Close")
	for _, c := range f.changed() {
		var sent struct {
			Target string `json:"target_leader_id"`
			Reason string
		}
		err := json.Unmarshal([]byte(c.Body), &sent)
		if err != nil || sent.Target != target || sent.Reason != "a second try" {
			t.Errorf("sent %s, shown %q", c.Body, target)
		}
	}
	for _, id := range []string{"n2", "n3"} {
		p.eval(fmt.Sprintf(`void [...document.querySelector("[data-key=%s].member").querySelectorAll("button")]
			.find((b) => b.innerText === "Change…").click()`, id), nil)
		if got := p.value("#field-priority"); got != "100" {
			t.Errorf("%s is shown with priority %s", id, got)
		}
		p.fill("#field-priority", "50")
		p.click("button", "Cancel")
	}
	choosesSurvivors(t, p, f)
}

// choosesSurvivors looks at a recovery. n2 is not healthy and answers.
func choosesSurvivors(t *testing.T, p *page, f *fakeNode) {
	f.show(func(v *apiv1.DashboardView) {
		v.Cluster.LeaderID, v.Cluster.Quorum.Healthy, v.Nodes = "", 1, v.Nodes[:2]
		v.Cluster.Members[1].Healthy, v.Cluster.Members[2].Healthy = false, false
	})
	defer f.show(func(v *apiv1.DashboardView) {
		v.Cluster.LeaderID, v.Cluster.Quorum.Healthy, v.Nodes = "n1", 3, v.Nodes[:3]
		v.Cluster.Members[1].Healthy, v.Cluster.Members[2].Healthy = true, true
	})
	boxes := func() (got string) {
		p.waitText("Nodes that are left")
		p.eval(`[...document.querySelectorAll("dialog .check")]
			.map((l) => l.innerText.trim() + ": " + l.firstChild.checked).join("; ")`, &got)
		return got
	}
	want := "n1 (answers): true; n2 (answers): true; n3 (does not answer): false"
	for range 2 {
		p.click("button", "Recover the lost quorum…")
		if got := boxes(); got != want {
			t.Errorf("a recovery offers %q, want %q", got, want)
		}
		p.eval(`void document.querySelector("dialog .check input").click()`, nil)
		p.click("button", "Cancel")
	}
}

// loadAgain makes the shown page load its data.
func (p *page) loadAgain() {
	p.t.Helper()
	p.eval(`void document.dispatchEvent(new Event("northstar:reload"))`, nil)
}

// showsLostElections shows a list in which nothing was won, one that cannot be shown, and one that can.
func showsLostElections(t *testing.T, p *page, f *fakeNode) {
	f.answer("GET /v1/events", apiv1.Events{Items: []apiv1.Event{}})
	lost := apiv1.Election{
		Term: 7, CandidateID: "n2", Trigger: "timeout", Result: "lost", StartedAt: time.Now().Add(-time.Hour),
		Votes: []apiv1.Vote{{VoterID: "n2", Granted: true}},
	}
	won := lost
	won.CandidateID, won.Result = "n1", "won"
	f.answer("GET /v1/elections", apiv1.Elections{Items: []apiv1.Election{lost}, Missing: []string{}})
	p.visit("#/elections")
	p.waitText("was not elected")
	if text := p.text(); strings.Contains(text, "Who led when") {
		t.Errorf("without a won election: %s", text)
	}
	f.answer("GET /v1/elections", json.RawMessage(`{"items": [{"result": "won", "votes": [{}]}], "missing": []}`))
	p.loadAgain()
	p.waitText("This page cannot be shown")
	if found := p.b.pageErrors(); len(found) == 0 {
		t.Error("the browser was not told of the error")
	}
	f.answer("GET /v1/elections", apiv1.Elections{Items: []apiv1.Election{won, lost}, Missing: []string{}})
	p.loadAgain()
	p.waitText("Who led when")
	p.b.pageErrors() // of the list that could not be shown, until the other one came
}

// drawsTenures shows a leader before an outage of all nodes, and one that was lost 15 minutes ago: an hour is shown.
func drawsTenures(t *testing.T, p *page, f *fakeNode) {
	won := func(term uint64, id, trigger string, ago time.Duration) apiv1.Election {
		return apiv1.Election{
			Term: term, CandidateID: id, Trigger: trigger, Result: "won", StartedAt: time.Now().Add(-ago),
			Votes: []apiv1.Vote{}, LeaderlessMS: 400,
		}
	}
	lost := won(2, "n2", "startup", time.Hour+time.Second) // before the cluster had its first leader
	lost.Result = "lost"
	f.answer("GET /v1/events", apiv1.Events{Items: []apiv1.Event{}})
	f.answer("GET /v1/elections", apiv1.Elections{Missing: []string{}, Items: []apiv1.Election{
		won(7, "n1", "timeout", 20*time.Minute), won(4, "n3", "startup", 40*time.Minute),
		won(3, "n2", "startup", time.Hour), lost,
	}})
	f.show(func(v *apiv1.DashboardView) { v.Cluster.LeaderID = "" })
	defer f.show(func(v *apiv1.DashboardView) { v.Cluster.LeaderID = "n1" })
	p.waitText("No leader")
	p.eval(`import("/dashboard/net.js").then(({ net }) => { net.lastLeader = Date.now() - 15 * 60_000; })`, nil)
	p.visit("#/elections")
	p.waitText("Who led when")
	p.loadAgain() // not a list of before
	p.waitText("pale: until when is not known")
	var drawn []string
	p.eval(`[...document.querySelectorAll(".tenures rect")].map((r) => [r.textContent, r.x.baseVal.value,
		r.x.baseVal.value + r.width.baseVal.value].map((v) => (v > 0 ? Math.round(v / 10) : v)).join(": "))`, &drawn)
	want := []string{
		"n2, term 3, until when is not known: 0: 33", "n3, term 4, 20 min: 33: 67", "n1, term 7, 5 min: 67: 75",
		"400 ms from its start, before term 4: 33: 33", "400 ms without a leader, before term 7: 67: 67",
		"no leader for 15 min: 75: 100",
	}
	if got := strings.Join(drawn, "; "); got != strings.Join(want, "; ") {
		t.Errorf("drawn: %q, want %q", got, want)
	}
	var pills []string
	p.eval(`[...document.querySelectorAll(".lane .pill")].map((e) => e.innerText)`, &pills)
	if got := strings.Join(pills, ", "); got != "failover, start, first start, attempt" {
		t.Errorf("marks: %s", got)
	}
	p.click("summary", "Term 4")
	p.waitText("It had heard no leader since its start, 400 ms before. How long there was none before that is not known.")
}

// waitsWithTheAlert loses the leader of an idle cluster, whose last full view is ten seconds old.
func waitsWithTheAlert(t *testing.T, p *page, f *fakeNode) {
	p.eval(`void (window.alerts = [], new MutationObserver(() => {
		if (document.querySelector("#leader")?.innerText === "No leader")
			window.alerts.push(document.querySelector("#banners").innerText);
	}).observe(document.querySelector("#main"), { childList: true, subtree: true, characterData: true }))`, nil)
	defer p.moveClock("10_000")()
	f.show(func(v *apiv1.DashboardView) { v.Cluster.LeaderID = "" },
		event(apiv1.EventSame, apiv1.DashboardSame{At: time.Now()}))
	defer f.show(func(v *apiv1.DashboardView) { v.Cluster.LeaderID = "n1" })
	var first string
	p.wait("the loss is shown", "window.alerts.length > 0")
	p.eval("window.alerts[0]", &first)
	if first != "" {
		t.Errorf("at once: %q", first)
	}
	p.wait("the alert comes", `document.querySelector("#banners").innerText.startsWith("No leader: writes wait")`)
}

// moveClock moves the browser's clock ahead, and returns what puts it right.
func (p *page) moveClock(ms string) (back func()) {
	p.t.Helper()
	p.eval("void (window.realNow = Date.now, Date.now = () => window.realNow() + "+ms+")", nil)
	return func() { p.eval("void (Date.now = window.realNow)", nil) }
}

// goesByTheNodesClock has a browser whose clock is two hours ahead.
func goesByTheNodesClock(t *testing.T, p *page, f *fakeNode) {
	happens := func(message string) {
		f.out <- event(apiv1.EventEntry, apiv1.Event{Node: "n1", Type: "node", At: time.Now(), Message: message})
	}
	defer p.moveClock("7_200_000")()
	f.show(func(*apiv1.DashboardView) {}) // with the present time
	happens("before the transfer")
	p.waitText("before the transfer")
	f.answer("POST /admin/transfer", apiv1.Plan{
		Possible: true, Summary: "n2 would lead", Candidates: []apiv1.TargetCandidate{}, Warnings: []string{},
	})
	p.click("button", "Transfer leadership…")
	p.click("button", "Show the plan")
	p.click("button", "Run this plan")
	p.waitText("It took")
	happens("n2 leads now")
	p.waitText("n1: n2 leads now")
	if text := p.text(); strings.Contains(text, "before the transfer") {
		t.Errorf("the progress of the transfer: %s", text)
	}
	p.click("button", "Close")
	f.changed()
	f.answer("GET /v1/roles", map[string]any{"items": []apiv1.Role{{
		Role: "crane", Holder: "crane-a", AcquiredAt: new(time.Now().Add(-10 * time.Minute)),
		LeaseUntil: new(time.Now().Add(time.Hour)),
	}}, "next": ""})
	p.visit("#/roles")
	p.waitText("60 min left")
	p.waitText("10 min")
}

// countsNewEvents pauses a list that is full.
func countsNewEvents(_ *testing.T, p *page, f *fakeNode) {
	var many strings.Builder
	entry := func(i int) string {
		return event(apiv1.EventEntry, apiv1.Event{
			Node: "n1", Type: "node", At: time.Now(), Message: fmt.Sprintf("event %d", i),
		})
	}
	for i := range 501 {
		many.WriteString(entry(i))
	}
	f.out <- many.String()
	p.visit("#/events")
	p.waitText("event 500")
	p.click("button", "Pause")
	f.out <- entry(501)
	p.waitText("Continue (1 new)")
	p.click("button", "Continue")
	p.waitText("event 501")
}

// saysWhatNodesAnswer refuses the stream, as a node that has too many pages open.
func saysWhatNodesAnswer(_ *testing.T, p *page, f *fakeNode) {
	p.wait("the title names the leader", `document.title === "n1 · harbour · NorthStar"`)
	f.mu.Lock()
	f.refusal = "at most 16 open dashboards per identity"
	f.mu.Unlock()
	f.CloseClientConnections()
	p.waitText("No node serves this page")
	p.waitText(": at most 16 open dashboards per identity.")
	p.wait("the title says so", `document.title === "old: n1 · harbour · NorthStar"`)
}
