package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"northstar/chaos/testenv"
)

// A seed has the same digest in two processes. Another seed has another digest.
func TestReplayIsExact(t *testing.T) {
	bin, err := buildExact(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	inside(t, bin, "TestTimersOfOneSelect")
	seen := map[string]string{} // run by digest
	for _, nodes := range []int{3, 5} {
		digests := map[uint64]string{}
		for _, seed := range []uint64{1, 2, 1, 2}[:2+testenv.Repeats(2)] {
			r := simProcess{bin: bin, nodes: nodes, seed: seed}
			err := r.run(t.Context(), func(s summary) {
				before, again := digests[s.Seed]
				if again && before != s.Digest {
					t.Errorf("%d nodes, seed %d: digests %s and %s", nodes, s.Seed, before, s.Digest)
				}
				run := fmt.Sprintf("%d nodes, seed %d", nodes, s.Seed)
				if other := seen[s.Digest]; !again && other != "" {
					t.Errorf("%s and %s have one digest", other, run)
				}
				digests[s.Seed], seen[s.Digest] = s.Digest, run
				if len(s.Violations) > 0 {
					t.Errorf("%s: %v", run, s.Violations)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(digests) != 2 {
			t.Errorf("%d nodes: %d runs", nodes, len(digests))
		}
	}
}

// inside runs a test that is only in the program of the runs.
func inside(t *testing.T, bin, name string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, "-test.v", "-test.run", "^"+name+"$")
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+name) {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}
