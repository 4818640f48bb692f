package northstar_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/sim"
)

// writeProgram writes a file that may be run immediately: no process that another test starts has it open for writing.
func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

// copyCI copies .ci/run with what it reads, adds stubs of all programs that it starts, and returns a command that runs
// the copy in that directory.
func copyCI(t *testing.T, change func(script string) string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("ps"); err != nil {
		t.Skip(err)
	}
	dir = t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		writeProgram(t, path, text)
	}
	for _, path := range []string{".ci/run", ".ci/lib", "README.md", "Makefile"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		switch path {
		case ".ci/run":
			text = []byte(change(string(text)))
		case ".ci/lib":
			text = append(text, "\nslowness() { :; }\n"...)
		}
		write(path, string(text))
	}
	stubs := map[string]string{
		"df":    "exit 1", // no room in memory: all that the script writes is below TMPDIR
		"mount": "exit 1",
		"id":    "echo 0", // the script may install packages
		"go":    `[ "$1" != list ] || printf 'northstar/api\nnorthstar/state\n'`,
	}
	for _, name := range strings.Fields("apt-get renice make gcc ip pg_ctlcluster npm npx chromium promtool curl " +
		"python3 javac haproxy amtool") {
		stubs[name] = "exit 0"
	}
	for name, body := range stubs {
		write("bin/"+name, "#!/bin/sh\n"+body+"\n")
	}
	cmd = exec.CommandContext(t.Context(), bash, ".ci/run")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "TMPDIR="+dir,
		"NORTHSTAR_CI_SECONDS=4500")
	cmd.WaitDelay = time.Minute
	return cmd, dir
}

// TestCIRunsEveryStep checks that CI fails when a step fails, and when a step was never begun.
func TestCIRunsEveryStep(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stub, body string // a program that behaves otherwise
		old, new   string // a change of the script
		want       string // in the output
	}{
		"all is well": {want: "=== passed"},
		"a step fails": {
			stub: "make", body: `[ "$1" != lint ]`,
			want: "failed: lint",
		},
		"the shell of the steps beside the tests ends": {
			stub: "renice", body: "exit 1",
			want: "failed: the steps beside the tests",
		},
		"steps are left out": {
			old: "renice -n 19 \"$BASHPID\" >/dev/null\n", new: "return 0\n",
			want: "failed: only ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, dir := copyCI(t, func(script string) string {
				if !strings.Contains(script, tt.old) {
					t.Fatalf("the script lacks %q", tt.old)
				}
				return strings.Replace(script, tt.old, tt.new, 1)
			})
			if tt.stub != "" {
				writeProgram(t, filepath.Join(dir, "bin", tt.stub), "#!/bin/sh\n"+tt.body+"\n")
			}
			out, err := cmd.CombinedOutput()
			if (err == nil) != (tt.want == "=== passed") || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v, want %q in\n%s", err, tt.want, out)
			}
		})
	}
}

// TestLintNeedsItsTools checks that make lint fails when one of its programs does, also one that prints nothing.
func TestLintNeedsItsTools(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	for stub, want := range map[string]bool{
		"exit 0":                           true,
		`[ "$2" != gofumpt ]`:              false,
		`[ "$2" != staticcheck ]`:          false,
		`[ "$2" != gofumpt ] || echo x.go`: false,
	} {
		program := filepath.Join(t.TempDir(), "go")
		writeProgram(t, program, "#!/bin/sh\n"+stub+"\n")
		cmd := exec.CommandContext(t.Context(), "make", "lint", "GO="+program)
		cmd.Env = append(os.Environ(), "MAKEFLAGS=") // of the make that runs this test
		out, err := cmd.CombinedOutput()
		if (err == nil) != want {
			t.Errorf("%s: %v, want success: %v\n%s", stub, err, want, out)
		}
	}
}

// TestNamedTestsExist checks that each test which the Makefile or .ci/run names exists, and that each pattern of
// .ci/run matches one.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	var declared []string
	err := filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
			declared = append(declared, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"Makefile", ".ci/run"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(string(text), -1) {
			if !slices.Contains(declared, name) {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
		for _, m := range regexp.MustCompile(`RUN='([\w|]+)'`).FindAllSubmatch(text, -1) {
			for part := range strings.SplitSeq(string(m[1]), "|") {
				if !slices.ContainsFunc(declared, func(name string) bool { return strings.Contains(name, part) }) {
					t.Errorf("%s: no test matches %s", path, part)
				}
			}
		}
	}
}

// TestAllScenarios checks that the Makefile's ALL_SCENARIOS names every scenario of the simulation once.
func TestAllScenarios(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "\nALL_SCENARIOS := ")
	list, _, _ = strings.Cut(list, "\n")
	if got, want := slices.Sorted(strings.SplitSeq(list, ",")), sim.Scenarios(); !slices.Equal(got, want) {
		t.Errorf("the Makefile has %q, want %q", got, want)
	}
}
