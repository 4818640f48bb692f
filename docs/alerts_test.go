package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"northstar/telemetry"
)

const (
	runbook     = "docs/runbook.md"
	alertsFile  = "deploy/prometheus/alerts.yml"
	alertsTests = "deploy/prometheus/alerts_test.yml"
	dashboard   = "deploy/grafana/northstar.json"
)

// alertNames are those of the contract, each with the metric that it cannot do
// without: it must be there as soon as that is declared.
var alertNames = map[string]string{
	"election_failed":    "northstar_election_count",
	"multiple_leaders":   "northstar_is_leader",
	"leader_unavailable": "northstar_is_leader",
	"failover_rate_high": "northstar_failover_count",
	"no_role_holder":     "northstar_role_held",
	"disk_stalled":       "northstar_disk_stalled",
	"quorum_at_risk":     "northstar_quorum_failures_tolerated",
	"follower_lagging":   "northstar_peer_lag_entries",
	"quota_exceeded":     "northstar_state_bytes",
	"member_down":        "northstar_peer_healthy",
	"role_flapping":      "northstar_role_elections_total",
	"read_only":          "northstar_disk_read_only",
	"reload_failed":      "northstar_reload_failed",
	"needless_elections": "northstar_needless_elections_total",

	"certificate_expiring": "northstar_certificate_expiry_timestamp_seconds",

	// beside those of the contract
	"heartbeat_age_high":        "northstar_heartbeat_age_ms",
	"audit_records_lost":        "northstar_audit_records_total",
	"snapshot_install_repeated": "northstar_snapshot_install_repeated_total",
	"auto_failover_paused":      "northstar_auto_failover_paused",
	"node_draining":             "northstar_node_draining",
	"scrape_failed":             "up",
}

// alert is one rule of a Prometheus rule file.
type alert struct{ name, expr, runbook string }

// parseAlerts reads rules from a file that keeps the form of alerts.yml: an
// expression is a block below its key.
func parseAlerts(text string) (alerts []alert) {
	var inExpr bool
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		key, value, isKey := strings.Cut(strings.TrimPrefix(trimmed, "- "), ":")
		switch {
		case strings.HasPrefix(trimmed, "#"):
			continue
		case isKey && key == "alert":
			alerts = append(alerts, alert{name: strings.TrimSpace(value)})
			inExpr = false
		case len(alerts) == 0:
			continue
		case isKey && key == "expr":
			inExpr = true
			alerts[len(alerts)-1].expr = strings.Trim(strings.TrimSpace(value), "|")
		case isKey && slices.Contains([]string{"for", "labels", "annotations"}, key):
			inExpr = false
		case isKey && key == "runbook_url":
			alerts[len(alerts)-1].runbook = strings.TrimSpace(value)
		case inExpr:
			alerts[len(alerts)-1].expr += " " + trimmed
		}
	}
	return alerts
}

func TestAlerts(t *testing.T) {
	text := read(t, runbook)
	report(t, alertsFile, checkAlerts(parseAlerts(read(t, alertsFile)), text, declaredMetrics()))
}

// checkAlerts holds the alerts against the contract's names, the declared
// metrics and the headings of the runbook.
func checkAlerts(alerts []alert, page string, declared map[string]telemetry.MetricDef) (problems []string) {
	headings := anchors(page)
	seen := map[string]bool{}
	for _, a := range alerts {
		seen[a.name] = true
		if _, ok := alertNames[a.name]; !ok {
			problems = append(problems, "the contract has no alert "+a.name)
		}
		if !slices.Contains(headings, a.name) {
			problems = append(problems, runbook+" has no section for "+a.name)
		}
		want := `'{{ or $externalLabels.docs_url "docs" }}` + strings.TrimPrefix(runbook, "docs") + "#" + a.name + "'"
		if a.runbook != want {
			problems = append(problems, fmt.Sprintf("%s: runbook_url is %q, want %s", a.name, a.runbook, want))
		}
		for _, p := range checkExpression(a.expr, declared) {
			problems = append(problems, a.name+": "+p)
		}
	}
	for name, needs := range alertNames {
		if _, ok := declared[needs]; ok && !seen[name] {
			problems = append(problems, "the alert "+name+" is missing: "+needs+" is declared")
		}
	}
	return problems
}

// Each alert has a test in which it fires, and one in which it does not.
func TestAlerts_AreTested(t *testing.T) {
	t.Parallel()
	var file struct {
		Tests []struct {
			Rules []struct {
				Alert string `yaml:"alertname"`
				Want  []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, alertsTests)), &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, r := range test.Rules {
			fires[r.Alert] = fires[r.Alert] || len(r.Want) > 0
			silent[r.Alert] = silent[r.Alert] || len(r.Want) == 0
		}
	}
	for _, a := range parseAlerts(read(t, alertsFile)) {
		if !fires[a.name] || !silent[a.name] {
			t.Errorf("%s: a test in which it fires %v, one in which it does not %v", a.name, fires[a.name], silent[a.name])
		}
	}
}

// The example of Alertmanager names alerts and receivers that exist, and Alertmanager's own program accepts it.
func TestAlertmanager(t *testing.T) {
	t.Parallel()
	const file = "deploy/prometheus/alertmanager.yml"
	type route struct {
		Receiver string
		Routes   []route
	}
	var config struct {
		Route     route
		Receivers []struct{ Name string }
		Inhibit   []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
		} `yaml:"inhibit_rules"`
	}
	text := read(t, file)
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range config.Receivers {
		known[r.Name] = true
	}
	for _, r := range append(config.Route.Routes, config.Route) {
		if !known[r.Receiver] {
			t.Errorf("there is no receiver %q", r.Receiver)
		}
	}
	for _, rule := range config.Inhibit {
		for _, matcher := range append(rule.Source, rule.Target...) {
			name, value, _ := strings.Cut(matcher, "=")
			for _, alert := range word.FindAllString(value, -1) {
				if name == "alertname" && alertNames[alert] == "" {
					t.Errorf("there is no alert %q", alert)
				}
			}
		}
	}
	amtool, err := exec.LookPath("amtool")
	if err != nil {
		t.Skip("amtool is missing: it comes with Alertmanager")
	}
	if out, err := exec.Command(amtool, "check-config", filepath.Join("..", file)).CombinedOutput(); err != nil {
		t.Errorf("amtool: %v\n%s", err, out)
	}
}

// The example of Prometheus loads the rules, and sends their alerts to an Alertmanager.
func TestPrometheusSendsAlerts(t *testing.T) {
	t.Parallel()
	const file = "deploy/prometheus/prometheus.yml"
	var config struct {
		Rules    []string `yaml:"rule_files"`
		Alerting struct {
			Alertmanagers []struct {
				Static []struct{ Targets []string } `yaml:"static_configs"`
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, file)), &config); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.Rules, []string{filepath.Base(alertsFile)}) {
		t.Errorf("rule_files are %v", config.Rules)
	}
	var targets []string
	for _, a := range config.Alerting.Alertmanagers {
		for _, s := range a.Static {
			targets = append(targets, s.Targets...)
		}
	}
	if len(targets) != 1 {
		t.Errorf("alerts are sent to %v", targets)
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing: it comes with Prometheus")
	}
	for _, path := range []string{file, "deploy/compose/prometheus.yml"} {
		cmd := exec.Command(promtool, "check", "config", "--syntax-only", filepath.Join("..", path))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool: %v\n%s", err, out)
		}
	}
}

// Prometheus itself reads the rules, and runs their tests.
func TestAlerts_Promtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing: it comes with Prometheus")
	}
	var panels strings.Builder // the queries of the Grafana dashboard, as rules
	panels.WriteString("groups:\n  - name: panels\n    rules:\n")
	for i, e := range expressions(t, read(t, dashboard)) {
		fmt.Fprintf(&panels, "      - {record: panel_%d, expr: %q}\n", i, e)
	}
	rules := filepath.Join(t.TempDir(), "panels.yml")
	if err := os.WriteFile(rules, []byte(panels.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", "--lint=none", "alerts.yml"},
		{"test", "rules", "alerts_test.yml"},
		{"check", "rules", "--lint=none", rules},
	} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = filepath.Dir(filepath.Join("..", alertsFile))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func TestDashboardExpressions(t *testing.T) {
	exprs := expressions(t, read(t, dashboard))
	if len(exprs) < 10 {
		t.Fatalf("%s has only %d expressions", dashboard, len(exprs))
	}
	for _, e := range exprs {
		report(t, dashboard, checkExpression(e, declaredMetrics()))
	}
}

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}`)
	grouping = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	within   = regexp.MustCompile(`\[[^\]]*\]`)
	offset   = regexp.MustCompile(`\boffset\s+\S+`)
	matcher  = regexp.MustCompile(`([a-zA-Z_]+)\s*(?:=~|!~|!=|=)`)
	word     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
)

// promQL are the words of the language that are in use here.
var promQL = strings.Fields(
	"sum max min avg count count_values absent floor rate increase delta max_over_time histogram_quantile or and unless time")

// ofProcess reports whether a metric is of Prometheus itself, or of the process and Go's runtime.
func ofProcess(name string) bool {
	return name == "up" || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "go_")
}

// checkExpression finds metrics that are not declared, labels that a metric
// does not have, and two histograms in one expression.
func checkExpression(expr string, declared map[string]telemetry.MetricDef) (problems []string) {
	if strings.TrimSpace(expr) == "" {
		return []string{"the expression is empty"}
	}
	known := []string{"job", "instance", "le", "term"} // of the scrape, of histograms, of count_values
	text := quoted.ReplaceAllString(expr, "")
	histogram := ""
	for _, m := range word.FindAllString(text, -1) {
		d, ok := findMetric(m, declared)
		if !ok {
			continue
		}
		known = append(known, d.Labels...)
		if d.Kind == telemetry.Histogram {
			if histogram != "" && d.Name != histogram {
				problems = append(problems, histogram+" and "+d.Name+" count different events: "+expr)
			}
			histogram = d.Name
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(text, -1) {
		for _, label := range word.FindAllString(m[2], -1) {
			if !slices.Contains(known, label) {
				problems = append(problems, "none of the metrics in it has the label "+label+": "+expr)
			}
		}
	}
	for _, m := range selector.FindAllStringSubmatch(text, -1) {
		d, _ := findMetric(m[1], declared)
		for _, label := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(d.Labels, label[1]) && !slices.Contains(known[:3], label[1]) {
				problems = append(problems, m[1]+" has no label "+label[1])
			}
		}
	}
	for _, r := range []*regexp.Regexp{grouping, within, offset} {
		text = r.ReplaceAllString(text, " ")
	}
	text = regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(text, " ")
	for _, m := range word.FindAllString(text, -1) {
		if _, ok := findMetric(m, declared); !ok && !ofProcess(m) && !slices.Contains(promQL, m) {
			problems = append(problems, "no metric is called "+m+": "+expr)
		}
	}
	return problems
}
