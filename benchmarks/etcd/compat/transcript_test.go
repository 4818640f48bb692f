package compat

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const etcdPage = "../../../docs/etcd.md"

// TestTranscript runs the commands of docs/etcd.md by etcdctl on three nodes, and compares what they print with the
// page. -update writes it there.
func TestTranscript(t *testing.T) {
	page, err := os.ReadFile(etcdPage)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "etcdctl"), "go.etcd.io/etcd/etcdctl/v3")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	text := string(page)
	for _, block := range transcripts(text) {
		got := execute(t, dir, block)
		want := outputs(block)
		for i, out := range got {
			if normal(out.said) != normal(want[i].said) {
				t.Errorf("%s\nprints:\n%s\nthe page has:\n%s", out.command, out.said, want[i].said)
			}
		}
		if *update {
			text = strings.Replace(text, block, render(got), 1)
		}
	}
	if *update && text != string(page) {
		if err := os.WriteFile(etcdPage, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// transcripts returns the blocks of the page in which etcdctl is used without a configured security.
func transcripts(page string) (blocks []string) {
	for i, part := range strings.Split(page, "```") {
		body, console := strings.CutPrefix(part, "console\n")
		if i%2 == 1 && console && strings.Contains(body, "$ export ETCDCTL_ENDPOINTS") {
			blocks = append(blocks, body)
		}
	}
	return blocks
}

// output is a command, and what it prints.
type output struct{ command, said string }

func outputs(block string) (all []output) {
	for line := range strings.Lines(block) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, output{command: strings.TrimSpace(command)})
		} else if len(all) > 0 {
			all[len(all)-1].said += line
		}
	}
	return all
}

func render(all []output) string {
	var b strings.Builder
	for _, o := range all {
		fmt.Fprintf(&b, "$ %s\n%s", o.command, o.said)
	}
	return b.String()
}

// execute runs the commands of a block in one shell. The addresses of the page take the place of the real ones.
func execute(t *testing.T, bin, block string) []output {
	t.Helper()
	const mark = "--- next command ---\n"
	nodes := startNorthstar(t, 3)
	var real, documented []string
	for i, n := range nodes {
		real = append(real, n.etcd)
		documented = append(documented, fmt.Sprintf("127.0.0.1:%d", 2379+i))
	}
	all := outputs(block)
	var script strings.Builder
	for _, o := range all {
		command := o.command
		for i := range real {
			command = strings.ReplaceAll(command, documented[i], real[i])
		}
		fmt.Fprintf(&script, "%s\necho '%s'\n", command, strings.TrimSpace(mark))
	}
	shell := exec.CommandContext(t.Context(), "bash")
	shell.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	shell.Stdin = strings.NewReader(script.String())
	said, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	parts := strings.Split(string(said), mark)
	if len(parts) != len(all)+1 {
		t.Fatalf("%d commands, %d outputs: %s", len(all), len(parts)-1, said)
	}
	for i := range all {
		all[i].said = parts[i]
		for k := range real {
			all[i].said = strings.ReplaceAll(all[i].said, real[k], documented[k])
		}
	}
	return all
}

var (
	randomNumber = regexp.MustCompile(`\b[0-9a-f]{10,16}\b`)
	duration     = regexp.MustCompile(`\b[0-9.]+(µs|ms|s)\b`)
	peerAddress  = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)
)

// normal returns what a command prints without what differs from run to run: random numbers, times, ports, and the
// order of members.
func normal(said string) string {
	said = randomNumber.ReplaceAllString(said, "ID")
	said = duration.ReplaceAllString(said, "TIME")
	lines := strings.Split(peerAddress.ReplaceAllString(said, "ADDRESS"), "\n")
	if strings.Contains(said, ", started, ") || strings.Contains(said, "is healthy") {
		slices.Sort(lines)
	}
	return strings.Join(lines, "\n")
}
