package docs_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"northstar/client/rolemetrics"
	"northstar/node"
	"northstar/telemetry"
)

func declaredMetrics() map[string]telemetry.MetricDef {
	m := map[string]telemetry.MetricDef{}
	for _, d := range telemetry.MetricDefs() {
		m[telemetry.Prefix+d.Name] = d
	}
	for _, name := range rolemetrics.Names() {
		m[name] = telemetry.MetricDef{Labels: []string{"role", "cause"}}
	}
	return m
}

var metricName = regexp.MustCompile(`\bnorthstar_[a-z0-9_]+`)

// findMetric finds the declaration of a name, which for a histogram may be that
// of one of its series.
func findMetric(name string, declared map[string]telemetry.MetricDef) (telemetry.MetricDef, bool) {
	if d, ok := declared[name]; ok {
		return d, true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && declared[base].Kind == telemetry.Histogram {
			return declared[base], true
		}
	}
	return telemetry.MetricDef{}, false
}

func TestMetricsExist(t *testing.T) {
	for _, d := range append(documents(t), deployed(t)...) {
		report(t, d.path, checkMetrics(d, declaredMetrics()))
	}
}

// checkMetrics finds names of metrics that are not declared. The raft library's
// own are its own.
func checkMetrics(d document, declared map[string]telemetry.MetricDef) (problems []string) {
	for _, name := range metricName.FindAllString(d.text, -1) {
		if strings.HasPrefix(name, telemetry.Prefix+"raft_") || name == "northstar_next" || // a build tag
			name == "northstar_roles" { // the table of client/postgres
			continue
		}
		if _, ok := findMetric(name, declared); !ok {
			problems = append(problems, "no metric is called "+name)
		}
	}
	return problems
}

// keyNames are the keys of a node, and their sections.
func keyNames() (keys, sections, env []string) {
	for _, k := range node.Keys() {
		keys, env = append(keys, k.Name), append(env, k.Env)
		if section, _, ok := strings.Cut(k.Name, "."); ok && !slices.Contains(sections, section) {
			sections = append(sections, section)
		}
	}
	return keys, sections, append(env, "NORTHSTAR_CONFIG")
}

func TestKeysExist(t *testing.T) {
	help := programs(t)["northstarctl"].help
	for _, d := range documents(t) {
		report(t, d.path, checkKeys(d, help))
	}
}

var (
	dotted      = regexp.MustCompile(`^([a-z]+)\.[a-z]+(-[a-z]+)*$`)
	environment = regexp.MustCompile(`\bNORTHSTAR_[A-Z][A-Z_]*`)
	fileNames   = []string{"log.db", "log.journal"} // that look like keys
	// Environment variables that tests read, and a placeholder.
	testVariables = []string{
		"NORTHSTAR_EXHAUSTIVE", "NORTHSTAR_SIM_SEED", "NORTHSTAR_SIM_SEEDS", "NORTHSTAR_SIM_FROM",
		"NORTHSTAR_CHAOS_ITERATIONS", "NORTHSTAR_CHAOS_REPORT", "NORTHSTAR_CHAOS_FIGURES", "NORTHSTAR_CHAOS_MUTANT",
		"NORTHSTAR_TEST_LOG", "NORTHSTAR_TRANSFERS", "NORTHSTAR_TRANSFER_FAULTS", "NORTHSTAR_PLANS",
		"NORTHSTAR_CONTEST", "NORTHSTAR_FLEET", "NORTHSTAR_SNAPSHOT", "NORTHSTAR_SOME_KEY",
	}
)

// checkKeys finds keys of the configuration, in inline code and in TOML blocks,
// and environment variables that do not exist.
func checkKeys(d document, clientHelp string) (problems []string) {
	keys, sections, env := keyNames()
	blocks, inline := d.code()
	for _, code := range inline {
		m := dotted.FindStringSubmatch(code)
		if m != nil && slices.Contains(sections, m[1]) && !slices.Contains(keys, code) &&
			!slices.Contains(fileNames, code) && !strings.HasSuffix(code, ".go") {
			problems = append(problems, "there is no key "+code)
		}
	}
	for _, b := range blocks {
		if b.lang == "toml" {
			problems = append(problems, checkTOML(b.text, keys)...)
		}
	}
	for _, name := range environment.FindAllString(d.text, -1) {
		if !slices.Contains(testVariables, name) && !slices.Contains(env, name) && !strings.Contains(clientHelp, name) {
			problems = append(problems, "nothing reads the environment variable "+name)
		}
	}
	return problems
}

// checkTOML checks a configuration, or a token file.
func checkTOML(text string, keys []string) (problems []string) {
	tree := map[string]any{}
	if err := toml.Unmarshal([]byte(text), &tree); err != nil {
		return []string{"TOML: " + err.Error()}
	}
	for name, value := range tree {
		table, isTable := value.(map[string]any)
		if name == "token" && !isTable {
			continue
		}
		if !isTable {
			table = map[string]any{"": nil}
		}
		for inner := range table {
			full := strings.TrimSuffix(name+"."+inner, ".")
			if !slices.Contains(keys, full) {
				problems = append(problems, "there is no key "+full)
			}
		}
	}
	return problems
}

// TestRefusalsAreInTheRunbook holds that every reason in a log has its row there.
func TestRefusalsAreInTheRunbook(t *testing.T) {
	reasons := refusals(t)
	if len(reasons) < 8 {
		t.Fatalf("found only the refusals %q", reasons)
	}
	report(t, runbook, checkRefusals(read(t, runbook), reasons))
}

func checkRefusals(text string, reasons []string) (problems []string) {
	for _, r := range reasons {
		if !strings.Contains(text, "`"+r+"`") {
			problems = append(problems, "says nothing of the refusal "+r)
		}
	}
	return problems
}

// refusals are the constants of type cluster.Refusal.
func refusals(t *testing.T) (reasons []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "cluster", "admit.go"), nil,
		parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != "Refusal" {
			return true
		}
		for _, v := range spec.Values {
			if lit, ok := v.(*ast.BasicLit); ok {
				s, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				reasons = append(reasons, s)
			}
		}
		return true
	})
	return reasons
}

// TestLogLinesAreTheProgramsOwn checks the log lines that pages quote.
func TestLogLinesAreTheProgramsOwn(t *testing.T) {
	text := source(t)
	for _, d := range documents(t) {
		report(t, d.path, checkLogLines(d, text))
	}
}

var logLine = regexp.MustCompile(`^\S+ \[[A-Z]+\] +northstar([a-z.]*): (.+?)(: node_id=|$)`)

// checkLogLines finds quoted log lines whose message is in no source file. Those
// of the event log and of the raft library are put together from parts.
func checkLogLines(d document, source string) (problems []string) {
	blocks, _ := d.code()
	for _, b := range blocks {
		for line := range strings.Lines(b.text) {
			m := logLine.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil || m[1] == ".event" || m[1] == ".consensus.raft" {
				continue
			}
			if !strings.Contains(source, strconv.Quote(m[2])) {
				problems = append(problems, fmt.Sprintf("no program logs %q", m[2]))
			}
		}
	}
	return problems
}

// source is the text of all Go files that are no tests.
func source(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		b.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// expressions are the PromQL expressions of a Grafana dashboard.
func expressions(t *testing.T, dashboard string) (exprs []string) {
	t.Helper()
	var tree any
	if err := json.Unmarshal([]byte(dashboard), &tree); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, inner := range v {
				if s, ok := inner.(string); ok && key == "expr" {
					exprs = append(exprs, s)
				}
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(tree)
	return exprs
}
