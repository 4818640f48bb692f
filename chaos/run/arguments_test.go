package main

import (
	"io"
	"strings"
	"testing"
)

// Arguments are checked before anything is built, and the error names the wrong one.
func TestWrongArguments(t *testing.T) {
	for args, want := range map[string]string{
		"":         "usage:",
		"simulat":  "usage:",
		"simulate": "one of -runs, -faults and -seconds",
		"simulate -runs 1 -scenarios no-failover,fault":       `"fault" is none of admin-audit, admin-ops,`,
		"simulate -runs 1 -nodes 3,4":                         "no runs of 4 nodes, but of each of [3 5]",
		"simulate -runs 1 -nodes three":                       `"three" is no number`,
		"simulate -runs many":                                 `invalid value "many" for flag -runs`,
		"replay":                                              "-seed must say which run",
		"replay -seed 7 -scenario fault":                      `"fault" is none of admin-audit, admin-ops,`,
		"replay -seed 7 -nodes 7":                             "no runs of 7 nodes",
		"replay -seed 7 -faults 1,x":                          `-faults: `,
		"explore -models votes,vote":                          `"vote" is none of votes, terms,`,
		"mutants -only no-such-mutant":                        `there is no mutant "no-such-mutant"`,
		"mutants -only transfer-success-without-check,,watch": `there is no mutant ""`,
	} {
		if err := run(t.Context(), strings.Fields(args), io.Discard); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("run %s: %v, want %q", args, err, want)
		}
	}
}
