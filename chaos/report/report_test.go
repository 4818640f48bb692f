package report

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func example() Report {
	s := time.Second
	return Report{
		Title: "seed 7, 3 nodes", ReplayCommand: "make chaos-replay SEED=7", Length: 20 * s,
		Nodes:      []string{"n1", "n2", "n3"},
		Violations: []string{"linearizability violated: <k1>"},
		Faults: []Fault{
			{"n1", "kill n1", 2 * s, 3 * s},
			{"n1", "slow disk n1", 2 * s, 4 * s},
			{"", "split 101", 5 * s, 6 * s},
		},
		Leaderships: []Leadership{
			{Node: "n1", Term: 1, From: s, To: 2 * s}, {Node: "n2", Term: 2, From: 2*s + s/2, To: 20 * s},
		},
		Gaps: []Gap{{From: 2 * s, To: 3 * s}}, Ops: []Op{{"get k1 = \"x\"", 8 * s, 9 * s}}, Details: "one\ntwo",
	}
}

func TestHTML(t *testing.T) {
	path, err := example().Save(t.TempDir()+"/new", "x")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for text, times := range map[string]int{
		`class="leadership"`: 2, `class="fault"`: 3, `class="gap"`: 1, `class="op"`: 1,
		"linearizability violated: &lt;k1&gt;": 1, "make chaos-replay SEED=7": 1, "n2 leads term 2, 2.5s to 20s": 1,
	} {
		if got := strings.Count(string(b), text); got != times {
			t.Errorf("%q is there %d times, not %d", text, got, times)
		}
	}
	if strings.Contains(string(b), "http") || strings.Contains(string(b), "ZgotmplZ") {
		t.Error("the page loads something, or a value was not taken")
	}
}

// Faults of one node at the same time do not hide one another.
func TestRows(t *testing.T) {
	var at []int
	for _, b := range example().draw().Boxes {
		if b.Class == "fault" && strings.HasSuffix(b.Text, "n1") {
			at = append(at, b.Y)
		}
	}
	if len(at) != 2 || at[0] == at[1] {
		t.Errorf("rows at %v", at)
	}
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	if err := example().Text(&out); err != nil {
		t.Fatal(err)
	}
	var order []int
	for _, want := range []string{
		"VIOLATED: linearizability", "leader   n1, term 1, for 1s", "fault    kill n1",
		"gap      no write acknowledged for 1s", "leader   n2", "op       get k1", "again:",
	} {
		order = append(order, strings.Index(out.String(), want))
	}
	if order[0] < 0 || !slices.IsSorted(order) {
		t.Errorf("order %v in:\n%s", order, out.String())
	}
}

func TestGapsOf(t *testing.T) {
	ms := time.Millisecond
	if got := GapsOf([]time.Duration{900 * ms, 100 * ms, 200 * ms}, 1000*ms); !slices.Equal(got,
		[]Gap{{From: 200 * ms, To: 900 * ms}}) {
		t.Errorf("%v", got)
	}
	if got := GapsOf(nil, 400*ms); !slices.Equal(got, []Gap{{To: 400 * ms}}) {
		t.Errorf("%v", got)
	}
}
