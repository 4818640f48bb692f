package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"northstar/chaos/proc"
)

func TestRowsOfFailures(t *testing.T) {
	s := &subject{
		name: "northstar, Go client", cluster: &proc.Cluster{Nodes: make([]*proc.Node, 3)},
		gaps: []time.Duration{6510 * time.Microsecond, time.Second}, failed: []int{0, 2},
	}
	b := &bench{csv: filepath.Join(t.TempDir(), "failures.csv")}
	if err := b.writeRows(s.rows("kill -9")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(b.csv)
	const want = "failure,nodes,system,round,gap_ms,errors\n" +
		"kill -9,3,\"northstar, Go client\",1,6.51,0\nkill -9,3,\"northstar, Go client\",2,1000.00,2\n"
	if err != nil || string(text) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, text, want)
	}
}

// A write that is refused is repeated and counted; one that is broken off with its context is neither.
func TestUntil(t *testing.T) {
	s := &subject{failed: []int{0}}
	refusals := 2
	if err := s.until(t.Context(), func() error {
		if refusals--; refusals >= 0 {
			return errors.New("refused")
		}
		return nil
	}); err != nil || s.failed[0] != 2 {
		t.Errorf("%v, %d failed; want 2", err, s.failed[0])
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.until(ctx, func() error { cancel(); return ctx.Err() }); err == nil || s.failed[0] != 2 {
		t.Errorf("%v, %d failed; want an error and 2", err, s.failed[0])
	}
}

// What a kind needs is found out before a cluster is started.
func TestFailureKinds(t *testing.T) {
	names := map[string]bool{}
	for _, k := range failureKinds() {
		if k.name == "" || k.inject == nil || k.heal == nil || names[k.name] {
			t.Errorf("kind %+v", k)
		}
		names[k.name] = true
	}
	if len(names) != 9 {
		t.Errorf("%d kinds, want 9", len(names))
	}
}
