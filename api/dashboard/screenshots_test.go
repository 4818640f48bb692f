package dashboard_test

import (
	"os"
	"path/filepath"
	"testing"
)

// screenshotsEnv names the directory for the pictures of the documents.
const screenshotsEnv = "NORTHSTAR_SCREENSHOTS"

// TestScreenshots takes the pictures of the documents from a cluster whose leader is killed: make screenshots.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv(screenshotsEnv)
	if dir == "" {
		t.Skip(screenshotsEnv + " names no directory")
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
		p.screenshot(filepath.Join(dir, name+".png"))
	}
	p.click("button", "Transfer leadership…")
	p.fill("#field-reason", "maintenance of the rack")
	p.click("button", "Show the plan")
	p.waitText("This would happen")
	p.screenshot(filepath.Join(dir, "dashboard-plan.png"))
	p.click("button", "Run this plan")
	p.waitText("It took")
	p.click("button", "Close")
	leader := s.leader()
	leader.Kill() // the page moves, if that was its node
	p.waitText("2 of 3 voters healthy, none may fail")
	if err := s.StartNode(leader); err != nil {
		t.Fatal(err)
	}
	p.waitText("3 of 3 voters healthy")
	for points := 0; points < 5; { // a point of the curve each 5 s, unless it is as high as its neighbours
		s.call(s.Nodes[0], "PUT", "/v1/kv/config/lamps", "green", nil)
		p.eval(`document.querySelector(".graph .curve").getAttribute("points").split(" ").length`, &points)
	}
	shot("dashboard", "#/overview", "3 of 3 voters healthy", 1010)
	p.visit("#/elections")
	p.click("summary", "Term")
	shot("dashboard-elections", "#/elections", "The cluster had no leader for", 900)
}
