package dashboard_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// axeFile is axe-core, an accessibility checker. make axe gets it from the npm registry.
const axeFile = "../../out/axe/package/axe.min.js"

var allPages = []string{
	"#/overview", "#/elections", "#/roles", "#/roles/crane", "#/sessions", "#/nodes", "#/keys", "#/events", "#/audit",
	"#/splitbrain",
}

// checkAccessibility looks at every page, light and dark, wide and as narrow as a telephone.
func checkAccessibility(t *testing.T, p *page) {
	defer func() {
		p.resize(1280, 900)
		p.dark(false)
		p.visit("#/overview")
	}()
	for _, width := range []int{1280, 400} {
		p.resize(width, 900)
		for _, hash := range allPages {
			p.visit(hash)
			p.wait("the page is shown", `document.querySelector("main section") && !document.querySelector("main").innerText.includes("Loading")`)
			var overflow int
			p.eval("document.documentElement.scrollWidth - innerWidth", &overflow)
			if overflow > 0 {
				t.Errorf("%s is %d pixels wider than a screen of %d", hash, overflow, width)
			}
		}
	}
	tabThrough(t, p)
	script, err := os.ReadFile(axeFile)
	if err != nil {
		t.Skipf("there is no axe-core (make axe): %v", err)
	}
	p.eval(string(script)+"; void 0", nil)
	for _, dark := range []bool{false, true} {
		p.dark(dark)
		for _, hash := range allPages {
			p.visit(hash)
			p.wait("the page is shown", `document.querySelector("main section") && !document.querySelector("main").innerText.includes("Loading")`)
			for _, finding := range p.axe() {
				t.Errorf("%s, dark %v: %s", hash, dark, finding)
			}
		}
		p.visit("#/overview")
		p.click("button", "Failover…")
		for _, finding := range p.axe() {
			t.Errorf("dialog, dark %v: %s", dark, finding)
		}
		p.click("button", "Cancel")
	}
}

// axe returns the serious and critical findings.
func (p *page) axe() (found []string) {
	p.t.Helper()
	var violations []struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}
	p.eval(`axe.run(document, { resultTypes: ["violations"] }).then((r) => r.violations)`, &violations)
	for _, v := range violations {
		if v.Impact != "serious" && v.Impact != "critical" {
			continue
		}
		text, _ := json.Marshal(v.Nodes[:min(3, len(v.Nodes))])
		found = append(found, strings.Join([]string{v.ID, v.Impact, v.Help, string(text)}, ": "))
	}
	return found
}

// tabThrough goes through the overview with the keyboard: each control is reached, and shows that it is.
func tabThrough(t *testing.T, p *page) {
	p.resize(1280, 900)
	p.visit("#/overview")
	p.waitText("Operate")
	reached := map[string]bool{}
	for range 60 {
		for _, kind := range []string{"rawKeyDown", "keyUp"} {
			p.must("Input.dispatchKeyEvent", params{
				"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9,
			}, nil)
		}
		var at string
		p.eval(`document.activeElement.innerText ?? ""`, &at)
		reached[strings.TrimSpace(at)] = true
	}
	for _, want := range []string{"Elections", "Log out", "Drain…", "Transfer leadership…", "Take a snapshot…"} {
		if !reached[want] {
			t.Errorf("%q is not reached with the keyboard", want)
		}
	}
}
