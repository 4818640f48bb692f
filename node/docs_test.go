package node

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the documents that are derived from Config")

// golden compares a document, or a part of it, with what it is derived from.
func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s does not agree with Config: run go test ./node -run %s -update", name, t.Name())
	}
}

const (
	tableBegin = "<!-- table of keys: written by go test ./node -run TestConfigurationDocument -update -->\n"
	tableEnd   = "<!-- end of the table -->\n"
)

func TestConfigurationDocument(t *testing.T) {
	const name = "../docs/configuration.md"
	doc, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatal("the marks of the table are gone")
	}
	var b strings.Builder
	b.WriteString("| key | flag | environment | default | meaning |\n|---|---|---|---|---|\n")
	for _, k := range Keys() {
		value := "–"
		if k.Default != "" && k.Name != "id" {
			value = "`" + k.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `--%s` | `%s` | %s | %s |\n", k.Name, k.Flag, k.Env, value,
			strings.ReplaceAll(k.Help, "|", "\\|"))
	}
	golden(t, name, before+tableBegin+b.String()+tableEnd+after)
}

// exampleFile is the file with every key, each as a comment with its default.
func exampleFile() string {
	var b strings.Builder
	b.WriteString(`# A NorthStar node. Every key is here with its default, as a comment; a key
# without one is shown with an example. A flag counts before the environment
# (NORTHSTAR_<KEY>), that before this file. northstar-node check-config --config
# THIS_FILE lists everything that is wrong. All keys: docs/configuration.md.
`)
	section := ""
	for _, k := range orderedForFile() {
		name := k.Name
		if s, n, ok := strings.Cut(k.Name, "."); ok {
			name = n
			if s != section {
				section = s
				fmt.Fprintf(&b, "\n[%s]\n", s)
			}
		} else {
			b.WriteString("\n")
		}
		for _, line := range wrap(k.Help, 76) {
			fmt.Fprintf(&b, "# %s\n", line)
		}
		fmt.Fprintf(&b, "#%s = %s\n", name, exampleValue(k))
	}
	return b.String()
}

// orderedForFile puts the keys without a section first, as TOML wants it.
func orderedForFile() []Key {
	var plain, sections []Key
	for _, k := range Keys() {
		if strings.Contains(k.Name, ".") {
			sections = append(sections, k)
		} else {
			plain = append(plain, k)
		}
	}
	return append(plain, sections...)
}

func exampleValue(k Key) string {
	if k.Default == "" || k.Name == "id" {
		return samples[k.Name].file
	}
	if k.kind == reflect.String {
		return fmt.Sprintf("%q", k.Default)
	}
	return k.Default
}

func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

func TestExampleFile(t *testing.T) {
	golden(t, "../deploy/northstar.toml", exampleFile())
}

// TestExampleFile_MatchesDefaults reads the example with every key that has a
// default switched on: nothing may change.
func TestExampleFile_MatchesDefaults(t *testing.T) {
	data, err := os.ReadFile("../deploy/northstar.toml")
	if err != nil {
		t.Fatal(err)
	}
	var on []string
	for _, line := range strings.Split(string(data), "\n") {
		rest, key := strings.CutPrefix(line, "#")
		if !key || strings.HasPrefix(rest, " ") {
			on = append(on, line)
			continue
		}
		on = append(on, rest)
	}
	full := strings.Join(on, "\n")
	cfg, err := Load([]string{"--config", writeFile(t, full)}, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	defaults := Default()
	for _, k := range Keys() {
		if cfg.sources[k.Name] == "" {
			t.Errorf("%s is missing", k.Name)
		}
		if k.Default == "" || k.Name == "id" {
			continue
		}
		if got, want := valueOf(t, cfg, k.Name), valueOf(t, &defaults, k.Name); !reflect.DeepEqual(got, want) {
			t.Errorf("%s = %v, the default is %v", k.Name, got, want)
		}
	}
	untouched, err := Load([]string{"--config", "../deploy/northstar.toml"}, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	untouched.sources, untouched.invalidKeys = nil, nil
	if !reflect.DeepEqual(*untouched, defaults) {
		t.Errorf("the example as it is changes the defaults: %+v", untouched)
	}
}
