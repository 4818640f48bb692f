package dashboard_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"northstar/api/openapi"
)

// What the page says in words of a state that differs from a healthy cluster in one thing. A text is the beginning of a
// banner, with its mood.
var bannerCases = []struct {
	change string // of c, the cluster, v, the view, or cond
	want   string
}{
	{"", ""},
	{"c.leader_id = ''; cond.ledAgo = 900", ""}, // as in a planned transfer
	{"c.leader_id = ''; cond.ledAgo = 1100", "bad No leader: writes wait"},
	{"c.leader_id = ''; c.quorum.healthy = 1", "bad Quorum lost: only 1 of 3 voters are healthy"},
	{"cond.stale = true", "bad No data has come"},
	{"cond.failed = 'No node answers.'", "bad No node answers. Trying again"},
	{"split('split_brain')", "bad Two nodes claim to lead, the cluster was recovered twice"},
	{"split('stale_leader')", "bad A node still believes"},
	{"split('foreign_cluster')", "bad A node of another cluster"},
	{"split('unreachable')", ""},
	{"v.nodes[1].disk.read_only = true", "bad Node n2 is read-only"},
	{"v.nodes[1].disk.stalled = true", "bad The disk of node n2 does not answer"},
	{"v.nodes[1].lifecycle = 'dead'; v.nodes[1].warnings = ['removed']", "bad Node n2 is refused by the cluster: removed"},
	{"c.state.bytes = 81", "warn The state is at 81 % of its limit"},
	{"c.state.bytes = 94", "bad The state is full: 94 B of 100 B"},
	{"c.state.bytes = 94; c.state.bytes_limit = 0", ""},
	{"c.auto_failover = false; v.auto_failover = { operator: 'ann', reason: 'works' }", "warn Automatic failover is paused by ann (works)"},
	{"c.observed_by = 'n2'; v.node_id = 'n2'", "warn The leader n1 does not answer node n2"},
	{"v.nodes[0].warnings = v.nodes[1].warnings = ['late']", "warn Nodes n1, n2: late"},
}

// saysInWords compares the sentences of words.js, which the page has loaded.
func saysInWords(t *testing.T, p *page) {
	for _, tt := range bannerCases {
		var got []string
		p.eval(fmt.Sprintf(`import("/dashboard/words.js").then((words) => {
			const node = (node_id) => ({ node_id, lifecycle: "active", warnings: [], disk: {} });
			const c = { leader_id: "n1", observed_by: "n1", auto_failover: true, quorum: { voters: 3, healthy: 3, needed: 2 },
				state: { bytes: 10, bytes_limit: 100 } };
			const v = { node_id: "n1", cluster: c, nodes: [node("n1"), node("n2")] };
			const cond = { ledAgo: 60000 };
			const split = (verdict) => { v.split_brain = { verdict, findings: [{ detail: "why" }] }; };
			%s;
			return words.banners(v, cond).map((b) => b.mood + " " + b.text);
		})`, tt.change), &got)
		if text := strings.Join(got, "; "); !strings.HasPrefix(text, tt.want) || (tt.want == "") != (text == "") || len(got) > 1 {
			t.Errorf("%s: %q, want %q", tt.change, text, tt.want)
		}
	}
	want := map[string]string{
		`quorum(lost("silent for 12s", "not heard from yet")).small`: "Node n1 has just been elected and not heard from the " +
			"others yet, or is about to step down.",
		`quorum(lost("silent for 12s", "disk is full: read-only")).small`: "Nothing can be written: n2: silent for 12s; " +
			"n3: disk is full: read-only.",
		`quorum(lost("silent for 300ms", "silent for 290ms, disk is full: read-only")).big`:        "1 of 3 voters healthy so far",
		`quorum(lost("disk is stalled", "not heard from since this node leads")).big`:              "1 of 3 voters healthy so far",
		`quorum(lost("disk is stalled", "not heard from since this node leads", "no", "no")).big`:  "1 of 5 voters healthy, no write is possible",
		`banners(paused, {})[0].text.includes(new Date("2100-01-05T12:00Z").toLocaleDateString())`: "true",
		`silence({ threshold_ms: 85, source: "measured", reason: "gaps" })`:                        "85 ms, measured",
		`silence({ threshold_ms: 150, source: "raised", reason: "why" })`:                          "150 ms: why",
		`silence({ threshold_ms: 150, source: "learning" })`:                                       "150 ms for now, until it is measured",
		`leftOut({ generation: 1, members: [{ id: "n2", suffrage: "nonvoter" }] })`:                "",
		`leftOut({ generation: 2, members: [{ id: "n2", suffrage: "nonvoter", healthy: true }] })`: "",
		`leftOut({ generation: 2, members: [{ id: "n2", suffrage: "nonvoter" }] })`: "This cluster was recovered, without n2. " +
			"To take a node in again, empty its data directory, start it, and re-admit it here. Otherwise remove it.",
	}
	for call, text := range want {
		var got string
		p.eval(fmt.Sprintf(`import("/dashboard/words.js").then((words) => {
			const lost = (...down) => ({ leader_id: "n1",
				quorum: { voters: down.length + 1, healthy: 1, needed: Math.floor((down.length + 1) / 2) + 1 },
				members: down.map((why, i) => ({ id: "n" + (i + 2), suffrage: "voter", reasons: why.split(", ") })) });
			const paused = { nodes: [], cluster: { quorum: {}, state: {}, leader_id: "n1", observed_by: "n1" },
				auto_failover: { paused_until: "2100-01-05T12:00Z" } };
			return String(words.%s);
		})`, call), &got)
		if got != text {
			t.Errorf("%s: %q, want %q", call, got, text)
		}
	}
	var verdicts []string // each verdict of the API has a sentence
	p.eval(`import("/dashboard/words.js").then((words) => Object.keys(words.verdicts))`, &verdicts)
	for _, v := range apiVerdicts(t) {
		if !slices.Contains(verdicts, v) {
			t.Errorf("the page has no words for the verdict %s", v)
		}
	}
}

// apiVerdicts returns the verdicts that the OpenAPI document names.
func apiVerdicts(t *testing.T) []string {
	t.Helper()
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Enum []string }
			}
		}
	}
	if err := json.Unmarshal(openapi.Document("test"), &doc); err != nil {
		t.Fatal(err)
	}
	all := doc.Components.Schemas["SplitBrain"].Properties["verdict"].Enum
	if len(all) < 5 {
		t.Fatalf("verdicts: %q", all)
	}
	return all
}
