package main

import (
	"io"
	"strings"
	"testing"
)

// Whoever mistypes is told what, and at once: nothing is built before that.
func TestWrongArguments(t *testing.T) {
	for args, want := range map[string]string{
		"":                                    "usage:",
		"world":                               "usage:",
		"worlds":                              "one of -worlds, -faults and -seconds",
		"worlds -worlds 1 -kinds calm,fault":  `"fault" is none of behind, brief,`,
		"worlds -worlds 1 -nodes 3,4":         "no worlds of 4 nodes, but of each of [3 5]",
		"worlds -worlds 1 -nodes three":       `"three" is no number`,
		"worlds -worlds many":                 `invalid value "many" for flag -worlds`,
		"replay":                              "-seed must say which world",
		"replay -seed 7 -kind fault":          `"fault" is none of behind, brief,`,
		"replay -seed 7 -nodes 7":             "no worlds of 7 nodes",
		"replay -seed 7 -keep 1,x":            `-keep: `,
		"mutants -only veto-forever":          `there is no mutant "veto-forever"`,
		"mutants -only success-on-nil,,watch": `there is no mutant ""`,
	} {
		if err := run(t.Context(), strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("run %s: %v, want %q", args, err, want)
		}
	}
}
