package sim

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPlanIsFixedBySeed(t *testing.T) {
	plan := func(seed uint64) []Fault {
		c := DefaultConfig(seed, 5)
		return Plan(seed, c.Nodes, time.Hour, c.Weights, c.FaultInterval, c.FaultDuration)
	}
	a := plan(1)
	if !reflect.DeepEqual(a, plan(1)) {
		t.Error("one seed gave two plans")
	}
	if reflect.DeepEqual(a, plan(2)) {
		t.Error("two seeds gave one plan")
	}
	if !slices.IsSortedFunc(a, func(x, y Fault) int { return int(x.At - y.At) }) {
		t.Error("not in the order of time")
	}
	seen := FaultWeights{}
	for _, f := range a {
		seen[f.Kind]++
		if f.A == f.B || f.A < AnyLeader || f.A > 4 || f.B < 0 || f.B > 4 {
			t.Fatalf("nodes %d and %d", f.A, f.B)
		}
	}
	for kind := range DefaultFaults() {
		if seen[kind] == 0 {
			t.Errorf("never %s", kind)
		}
	}
}

func TestWhichWaysAFaultCuts(t *testing.T) {
	for want, f := range map[string]Fault{
		"01 10 12 21": {Kind: Isolate, A: 1},
		"01 21":       {Kind: Deafen, A: 1},
		"10 12":       {Kind: Mute, A: 1},
		"12":          {Kind: CutOne, A: 1, B: 2},
		"02 12 20 21": {Kind: Split, Bits: 0b100},
		"02 20":       {Kind: Bridge, A: 1, Bits: 0b100},
	} {
		var got []string
		for i := range 3 {
			for j := range 3 {
				if i != j && cuts(f, i, j) {
					got = append(got, fmt.Sprint(i, j))
				}
			}
		}
		if s := strings.ReplaceAll(strings.Join(got, ","), " ", ""); s != strings.ReplaceAll(want, " ", ",") {
			t.Errorf("%s cuts %s, want %s", f.Kind, s, want)
		}
	}
}

// What goes wrong is reported with the seed and what was seen.
func TestReport(t *testing.T) {
	cfg := DefaultConfig(7, 3)
	cfg.Length, cfg.ConvergeTimeout, cfg.Weights = time.Second, time.Second, FaultWeights{Isolate: 1}
	cfg.Build = func(Env) (Node, error) { return nil, errors.New("no such node") }
	res, report := Run(t, cfg)
	if len(res.Violations) != maxViolations {
		t.Errorf("%d violations kept", len(res.Violations))
	}
	for _, want := range []string{
		"seed 7, 3 nodes", "no such node", "fault: ", "partition-node", "last elections",
		"last messages", "n3, last lines",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
}

func TestTraceKeepsTheNewestLines(t *testing.T) {
	var tr trace
	for i := range traceLines + 3 {
		_, _ = fmt.Fprintf(&tr, "line %d\n", i)
	}
	lines := tr.last(traceLines)
	if len(lines) != traceLines || lines[0] != "line 3" || lines[len(lines)-1] != fmt.Sprintf("line %d", traceLines+2) {
		t.Errorf("%d lines, %s to %s", len(lines), lines[0], lines[len(lines)-1])
	}
	if few := tr.last(2); len(few) != 2 || few[1] != lines[len(lines)-1] {
		t.Errorf("the last two: %v", few)
	}
}
