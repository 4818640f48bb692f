package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// TestPlansOfSeedsAreKept compares plans with recorded digests. A difference
// means that the seeds in chaos/mutants and docs stand for other runs.
func TestPlansOfSeedsAreKept(t *testing.T) {
	var got strings.Builder
	for _, kind := range Scenarios() {
		for _, nodes := range Sizes {
			for seed := range uint64(4) {
				cfg, err := NewConfig(kind, seed, nodes)
				if err != nil {
					t.Fatal(err)
				}
				h := sha256.New()
				plan := cfg.faults()
				for _, f := range plan {
					i := slices.Index(faultOrder, f.Kind)
					if i < 0 {
						t.Fatalf("fault %q is not in faultOrder", f.Kind)
					}
					f.Kind = ""
					_, _ = fmt.Fprintf(h, "%d %+v\n", i, f)
				}
				_, _ = fmt.Fprintf(&got, "%s %d %d: %d faults, %s\n", kind, nodes, seed, len(plan),
					hex.EncodeToString(h.Sum(nil)[:8]))
			}
		}
	}
	const golden = "testdata/plans.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("plans differ from %s:\n%s", golden, got.String())
	}
}

func TestFaultOrderNamesEachKindOnce(t *testing.T) {
	seen := map[FaultKind]bool{}
	for _, kind := range faultOrder {
		if seen[kind] {
			t.Errorf("%q is listed twice", kind)
		}
		seen[kind] = true
	}
}
