package docs_test

import (
	"strings"
	"testing"

	"northstar/telemetry"
)

// TestChecksCanFail runs every check on a correct text and on a text with a mistake. It proves that each check can
// fail.
func TestChecksCanFail(t *testing.T) {
	progs := programs(t)
	help := progs["northstarctl"].help
	declared := declaredMetrics()
	commands := func(text string) []string { return checkCommands(document{"x.md", text}, progs) }
	unit := func(text string) []string { return checkDeployedCommands(document{"x", text}, progs) }
	metrics := func(text string) []string { return checkMetrics(document{"x.md", text}, declared) }
	keys := func(text string) []string { return checkKeys(document{"x.md", text}, help) }
	links := func(text string) []string { return checkLinks(document{"docs/x.md", text}) }
	two := func(text string) []string { return checkTwoCommands(document{"README.md", text}) }
	expr := func(text string) []string { return checkExpression(text, declared) }
	refused := func(text string) []string { return checkRefusals(text, []string{"removed"}) }
	logged := func(text string) []string {
		return checkLogLines(document{"x.md", text}, `n.log.Info("node is running", "version")`)
	}
	modules := func(text string) []string {
		return checkDependencies(text, map[string]string{"example.com/a": "v1.0.0"})
	}
	decision := func(text string) []string { return checkDecision(document{"001-why.md", text}) }
	alerts := func(text string) []string { return alertProblems(text, declared) }
	references := func(text string) []string {
		return checkReferences(document{"x.md", text}, map[string]bool{"TestThis": true})
	}
	prose := func(text string) []string { return checkProse(document{"x.md", text}, maxP90Words) }
	reachable := func(text string) []string {
		return checkReachable([]document{
			{"README.md", text},
			{"docs/a.md", "[b](b.md#c)"},
			{"docs/b.md", ""},
			{"docs/why/001.md", ""},
		})
	}
	calls := func(text string) []string {
		return checkCalls(document{"x.md", text}, []string{"GET /leader", "PUT /v1/kv/{key}"})
	}
	times := func(text string) []string {
		var f figures
		err := f.read("failure,nodes,system,round,gap_ms,errors\n"+
			"kill -9,3,\"northstar, Go client\",1,6.51,0\nkill -9,3,etcd,1,1312.00,0\n", "")
		if err != nil {
			t.Fatal(err)
		}
		return checkMeasuredTimes(document{"x.md", text}, f)
	}
	packages := func(text string) []string {
		return checkPackages(text, []string{"northstar", "northstar/state", "northstar/chaos/proc/nextnode"})
	}

	for _, c := range []struct {
		name  string
		check func(string) []string
		right string
		wrong []string
	}{
		{
			"commands", commands, "`northstarctl kv put a b --if-absent`, `northstar-node`, `northstarctl members …`",
			[]string{
				"`northstarctl kv put a b --if-missing`", "`northstarctl kv push a`", "`northstar-node start`",
				"`--no-such-flag`",
				"```sh\nnorthstarctl --endpoints a:1 snapshot store x\n```",
				"```sh\nnorthstar-node run \\\n  --identity n1\n```",
				"```console\n$ A=b sudo bin/northstarctl kv watch --prefix a\n```",
				"`northstarctl status; northstarctl stats`",
			},
		},
		{
			"output is no command", commands, "```console\n$ ls\nnorthstarctl: --this is not a call\n```",
			[]string{"```console\n$ northstarctl --this\n```"},
		},
		{"unit and manifest", unit, "ExecStart=/usr/local/bin/northstar-node run --config x\n - --id=$(POD)", []string{
			"ExecStart=/usr/local/bin/northstar-node serve", "  - --identity=$(POD)",
		}},
		{
			"metrics", metrics, "northstar_is_leader, northstar_disk_fsync_ms_bucket, northstar_raft_apply_total",
			[]string{
				"northstar_leader", "northstar_is_leader_bucket",
			},
		},
		{
			"keys", keys,
			"`disk.reserve` `log.db` NORTHSTAR_DATA_DIR NORTHSTAR_ENDPOINTS\n```toml\nid = \"a\"\n[tls]\nca = \"b\"\n```",
			[]string{
				"`disk.space`", "NORTHSTAR_DATADIR", "```toml\nname = \"a\"\n```", "```toml\n[tls]\nroot = \"b\"\n```",
				"```toml\n= 1\n```",
			},
		},
		{
			"links", links, "[a](../README.md) [b](decisions) [c](https://example.com) [d](metrics.md#labels)\n# Labels",
			[]string{
				"[a](nowhere.md)", "[a](metrics.md#no-such-heading)",
			},
		},
		{
			"the two commands", two, "```sh\nmake demo\n```\n```sh\nmake test\n```",
			[]string{"```sh\nmake test\n```\n```sh\nmake demo\n```", "```sh\nmake demo # now\n```", ""},
		},
		{"expressions", expr, `sum by (peer) (rate(northstar_peer_lag_entries{peer="a",job=~"b"}[5m] offset 1m)) > 1`, []string{
			"", "sum(northstar_nothing)", "northstar_is_leader + other", `northstar_is_leader{peer="a"}`, "max by (peer) (northstar_is_leader)",
			"northstar_failover_gap_seconds_sum / northstar_election_duration_ms_count",
		}},
		{"alerts", alerts, "", []string{
			"- alert: follower_lagging", "- alert: leader_lost", "expr: northstar_peer_lag_entries > 1",
			"/runbook.md#follower_lagging", "### follower_lagging",
		}},
		{"refusals", refused, "`removed`", []string{"removed"}},
		{
			"log lines", logged, "```text\n2026 [INFO]  northstar: node is running: node_id=n1\n```",
			[]string{"```text\n2026 [INFO]  northstar.api: node runs: node_id=n1\n```"},
		},
		{"modules", modules, "| `example.com/a v1.0.0` | b | c |", []string{
			"", "| `example.com/a v1.1.0` | b | c |",
			"| `example.com/a`, `example.com/b` | b | c |",
		}},
		{"references", references, "`TestThis` `api/table.go` `table.go`", []string{"`TestThat`", "`api/tables.go`"}},
		{
			"packages", packages, "| 1 | `state` | x |\n| 4 | `chaos/proc` | x |",
			[]string{"| 1 | `state` | `chaos` |", "| 4 | `chaos` | x |\n`state`"},
		},
		{"prose", prose, strings.Repeat("A short sentence. ", 3) + "`" + strings.Repeat("x ", 30) + "`\n| " +
			strings.Repeat("x", 130) + " |", []string{
			strings.Repeat("word ", 26) + "end.", strings.Repeat("x", 121), strings.Repeat("Few words.\n\n",
				20) + strings.Repeat(strings.Repeat("word ", 26)+"end.\n\n", 4), "A reign ends.",
		}},
		{
			"reachable pages", reachable, "[a](docs/a.md) [why](docs/why)",
			[]string{"[a](docs/a.md)", "[b](docs/b.md) [why](docs/why)", ""},
		},
		{
			"calls", calls,
			"`GET /leader` `PUT /v1/kv/{key}`\n```console\n$ curl -s $N/leader\n$ curl -s -X PUT -d x $N/v1/kv/a/b\n```",
			[]string{
				"`GET /leader` `PUT /v1/kv/{key}`",
				"GET /leader `PUT /v1/kv/{key}`\n```console\n$ curl -s $N/leader\n$ curl -s -X PUT -d x $N/v1/kv/a/b\n```",
				"`GET /leader` `PUT /v1/kv/{key}`\n```console\n$ curl -s $N/leader\n$ curl -s -X POST -d x $N/v1/kv/a/b\n```",
			},
		},
		{
			"parts of the runbook", checkRunbookParts,
			"# A\n## b\n- **Symptom.** x\n- **Meaning.** x\n- **Check.** x\n- **Act.** x\n- **Verify.** x\n",
			[]string{
				"", "\n## b\n- **Symptom.** x\n",
				"\n## b\n- **Meaning.** x\n- **Symptom.** x\n- **Check.** x\n- **Act.** x\n- **Verify.** x\n",
			},
		},
		{
			"measured times", times, "7 ms measured (kill -9)\n<!-- failures of 3 nodes -->\n| failure | northstar, Go client" +
				" | etcd |\n|---|---|---|\n| kill -9 | 6.5 / 6.5 | 1,312 / 1,312 |\n<!-- end of failures -->\n",
			[]string{
				"6 ms measured (kill -9)", "7 ms measured (kill)",
				"<!-- failures of 3 nodes -->\n| kill -9 | 6.5 / 6.6 | 1,312 / 1,312 |\n<!-- end of failures -->\n",
			},
		},
		{"decisions", decision, "# 001: why\n", []string{"# 002: why\n", "# 001: why\n" +
			strings.Repeat("\n", maxDecisionLines)}},
	} {
		if p := c.check(c.right); len(p) > 0 {
			t.Errorf("%s: finds wrong what is right: %q", c.name, p)
		}
		for _, wrong := range c.wrong {
			if p := c.check(wrong); len(p) == 0 {
				t.Errorf("%s: finds nothing wrong with %q", c.name, wrong)
			}
		}
	}
}

// alertProblems checks a rule file and a runbook that are right but for the one
// line left out or, of the alert's name, changed.
func alertProblems(change string, declared map[string]telemetry.MetricDef) []string {
	rules := "- alert: follower_lagging\n  expr: |\n    northstar_peer_lag_entries > 1\n  annotations:\n    runbook_url: '{{ or $externalLabels.docs_url \"docs\" }}/runbook.md#follower_lagging'\n"
	runbook := "### follower_lagging\n"
	switch {
	case change == "- alert: leader_lost":
		rules = strings.Replace(rules, "- alert: follower_lagging", change, 1)
	case strings.HasPrefix(change, "expr: "):
		rules = strings.Replace(rules, strings.TrimPrefix(change, "expr: "), "northstar_nothing > 1", 1)
	case change != "":
		rules = strings.Replace(rules, change, "", 1)
		runbook = strings.Replace(runbook, change, "", 1)
	}
	only := map[string]telemetry.MetricDef{"northstar_peer_lag_entries": declared["northstar_peer_lag_entries"]}
	return checkAlerts(parseAlerts(rules), runbook, only)
}
