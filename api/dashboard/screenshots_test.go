package dashboard_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestScreenshots takes the pictures of the documents from a cluster whose leader is killed: make screenshots.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("NORTHSTAR_SCREENSHOTS")
	if dir == "" {
		t.Skip("NORTHSTAR_SCREENSHOTS names no directory")
	}
	b := startChromium(t)
	s := startSite(t)
	s.fillIn()
	p := b.open(t, "http://"+s.Nodes[2].HTTP+"/", 1200, 900)
	p.logIn(operatorToken)
	p.waitText("3 of 3 voters healthy")
	shot := func(name, hash, text string, height int) {
		t.Helper()
		p.resize(1200, height)
		p.visit(hash)
		p.waitText(text)
		p.screenshot(filepath.Join(dir, name+".png"), false)
	}
	p.click("button", "Transfer leadership…")
	p.fill("#field-reason", "maintenance of the rack")
	p.click("button", "Show the plan")
	p.waitText("This would happen")
	p.screenshot(filepath.Join(dir, "dashboard-plan.png"), false)
	p.click("button", "Run this plan")
	p.waitText("It took")
	p.click("button", "Close")
	leader := s.leader()
	if leader == s.Nodes[2] {
		p.visit("#/overview")
	}
	leader.Kill()
	p.waitText("2 of 3 voters healthy, none may fail")
	if err := s.StartNode(leader); err != nil {
		t.Fatal(err)
	}
	p.waitText("3 of 3 voters healthy")
	for range 40 {
		s.call(s.Nodes[0], "PUT", "/v1/kv/config/lamps", "green", nil)
	}
	p.wait("the writes are in the graphs",
		`document.querySelector(".graph .curve").getAttribute("points").split(" ").length > 4`)
	shot("dashboard", "#/overview", "3 of 3 voters healthy", 1010)
	p.visit("#/elections")
	p.click("summary", "Term")
	shot("dashboard-elections", "#/elections", "The cluster had no leader for", 900)
	shot("dashboard-roles", "#/roles/crane", "holds it with token", 760)
	p.dark(true)
	p.resize(400, 900)
	p.visit("#/overview")
	p.waitText("3 of 3 voters healthy")
	p.screenshot(filepath.Join(dir, "dashboard-narrow.png"), false)
}
