package main

import (
	"bytes"
	"strings"
	"testing"
)

const sample = `failure,nodes,system,round,gap_ms,errors
kill -9,3,"northstar, Go client",1,6.10,0
kill -9,3,"northstar, Go client",2,5.20,0
kill -9,3,"etcd 100/1000 ms",1,1312.00,1
SIGSTOP,3,"northstar, Go client",1,60.00,0
`

func TestRead(t *testing.T) {
	panels, err := read(strings.NewReader(sample))
	if err != nil {
		t.Fatal(err)
	}
	if len(panels) != 2 || panels[0].title != "kill -9, 3 nodes" || len(panels[0].systems) != 2 ||
		len(panels[0].systems[0].gaps) != 2 || panels[0].systems[0].gaps[1] != 5.2 {
		t.Errorf("read %+v", panels)
	}
	for _, wrong := range []string{"", "a,b\n1,2\n", strings.Replace(sample, "6.10", "six", 1)} {
		if _, err := read(strings.NewReader(wrong)); err == nil {
			t.Errorf("no error for %q", wrong)
		}
	}
}

func TestCumulative(t *testing.T) {
	points := cumulative([]float64{30, 10, 0.5, 99_000})
	for i, want := range []struct{ x, y float64 }{{1, 0}, {1, 0.25}, {10, 0.5}, {30, 0.75}, {most, 1}} {
		if points[i].X != want.x || points[i].Y != want.y {
			t.Errorf("point %d is %v, want %v", i, points[i], want)
		}
	}
}

func TestRender(t *testing.T) {
	panels, err := read(strings.NewReader(sample))
	if err != nil {
		t.Fatal(err)
	}
	var picture bytes.Buffer
	if err := render(panels, &picture); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "kill -9, 3 nodes, 1 to 2 rounds", "etcd 100/1000 ms", "</svg>"} {
		if !strings.Contains(picture.String(), want) {
			t.Errorf("the picture has no %q", want)
		}
	}
}
