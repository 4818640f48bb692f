package hostile

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/proc"
	"northstar/chaos/testenv"
)

func TestMain(m *testing.M) {
	if code, is := AsAttacker(); is {
		os.Exit(code)
	}
	flag.Parse()
	// Attacks of the short form mostly wait: for elections, and for time to pass.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// formEnv makes TestAttacks run at full size, one attack at a time, with the limits that are promised: "full".
const formEnv = "NORTHSTAR_HOSTILE"

// TestAttacks makes each attack on a cluster of three real processes. The short form checks latencies only roughly: it
// shares the machine with other tests.
func TestAttacks(t *testing.T) {
	f, limits := form(t), Lenient
	if f.Full {
		limits = Promised
	}
	all := Attacks()
	results, exceeded := make([]Result, len(all)), make([][]string, len(all))
	var done sync.Map // indexes of results
	t.Run("on", func(t *testing.T) {
		for i, a := range all {
			t.Run(a.Name, func(t *testing.T) {
				if !f.Full {
					t.Parallel()
				}
				r, err := Run(t.Context(), f, a)
				if err != nil {
					t.Fatal(err)
				}
				t.Log(r)
				exceeded[i] = limits.Exceeded(r)
				for _, problem := range exceeded[i] {
					t.Error(problem)
				}
				if t.Failed() {
					t.Log(r.Logs)
				}
				results[i] = r
				done.Store(i, true)
			})
		}
	})
	var made []Result
	for i, r := range results {
		if _, ok := done.Load(i); ok {
			made = append(made, r)
		}
	}
	if err := Table(t.Output(), made); err != nil {
		t.Error(err)
	}
	for i, problems := range exceeded { // again, below the table: the logs of nodes above it are long
		if len(problems) > 0 {
			t.Logf("%s: %s", all[i].Name, strings.Join(problems, "; "))
		}
	}
}

func form(t *testing.T) Form {
	t.Helper()
	program, err := os.Executable()
	if raced { // the race detector finds nothing in the attackers, which would take the nodes' processor time for it
		program = filepath.Join(t.TempDir(), "attacker")
		var out []byte
		if out, err = exec.Command("go", "test", "-c", "-o", program, ".").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	node, err := proc.Program(t.TempDir(), "northstar-node")
	if err != nil {
		t.Fatal(err)
	}
	shortest := testenv.Slowdown() * 10 * time.Second
	f := Form{
		Node: node, Program: program, Files: int(min(files.Cur, 1<<20)),
		// With the default timeouts, or a measured silence, an overloaded machine causes elections, and rightly so.
		Flags: []string{
			"--election-timeout-min", shortest.String(), "--election-timeout-max", (2 * shortest).String(),
			"--failover-silence", shortest.String(),
		},
		Warm: 100 * time.Millisecond, Hold: 400 * time.Millisecond, Limit: 10 * time.Minute,
	}
	if os.Getenv(formEnv) == "full" {
		f.Full, f.Flags, f.Warm, f.Hold, f.Limit = true, nil, 3*time.Second, 15*time.Second, 5*time.Minute
	}
	return f
}
