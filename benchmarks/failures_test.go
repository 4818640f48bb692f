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

// The rounds of an earlier call stay in the file and count; those of a further one follow them.
func TestRoundsFile(t *testing.T) {
	kill := fault{name: "kill -9"}
	cluster := &proc.Cluster{Nodes: make([]*proc.Node, 3)}
	client := &subject{
		name: "northstar, Go client", cluster: cluster,
		gaps: []time.Duration{6510 * time.Microsecond, time.Second}, failed: []int{0, 2},
	}
	survivor := &subject{
		name: "northstar, HTTP", cluster: cluster, gaps: []time.Duration{7 * time.Millisecond}, failed: []int{0},
	}
	path := filepath.Join(t.TempDir(), "failures.csv")
	for range 2 {
		r, err := readRounds(path)
		if err != nil {
			t.Fatal(err)
		}
		r.add(kill, []*subject{client, survivor})
		if err := r.write(path); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	const a, b = "kill -9,3,\"northstar, Go client\",", "kill -9,3,\"northstar, HTTP\","
	want := "failure,nodes,system,round,gap_ms,errors\n" + a + "1,6.51,0\n" + a + "2,1000.00,2\n" + a + "3,6.51,0\n" +
		a + "4,1000.00,2\n" + b + "1,7.00,0\n" + b + "2,7.00,0\n"
	if err != nil || string(text) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, text, want)
	}
	r, err := readRounds(path)
	if n := r.count(kill, []*subject{client, survivor}); err != nil || n != 2 {
		t.Errorf("%d rounds of both clients, %v; want 2", n, err)
	}
	if n := r.count(fault{name: "SIGSTOP"}, []*subject{client}); n != 0 {
		t.Errorf("%d rounds of another failure, want 0", n)
	}
	if err := os.WriteFile(path, []byte("time,value\n1,2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readRounds(path); err == nil {
		t.Error("a file of something else was read")
	}
}

// A client whose writes are not acknowledged has the whole round as its gap; another one of the round has its own.
func TestAddGap(t *testing.T) {
	at := time.Unix(100, 0)
	h := injection{at: at, dealt: at}
	acked := &writer{acks: []time.Time{at.Add(-time.Millisecond), at.Add(9 * time.Millisecond), at.Add(time.Second)}}
	for _, tt := range []struct {
		name  string
		kind  fault
		w     *writer
		gap   time.Duration
		never int
	}{
		{"acknowledged", fault{}, acked, 10 * time.Millisecond, 0},
		{"measured from the end of the fault", fault{late: true}, acked, 9 * time.Millisecond, 0},
		{"never", fault{}, &writer{acks: acked.acks[:1]}, 20 * time.Second, 1},
		{"only by the old leader", fault{lasting: true}, &writer{acks: acked.acks[:2]}, 20 * time.Second, 1},
	} {
		s := &subject{}
		s.addGap(tt.kind, h, tt.w, at.Add(20*time.Second))
		if len(s.gaps) != 1 || s.gaps[0] != tt.gap || s.never != tt.never {
			t.Errorf("%s: %v, %d never; want %v, %d", tt.name, s.gaps, s.never, tt.gap, tt.never)
		}
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

// A client waits for each write as long as the others, and counts its errors, unless its writer hides them.
func TestErrorsOfClients(t *testing.T) {
	t.Parallel()
	s := &subject{cluster: &proc.Cluster{}, failed: []int{1, 0, 2}}
	if got := clientConfig(s).Timeout; got != attemptTimeout {
		t.Errorf("the Go client waits for %v, others for %v", got, attemptTimeout)
	}
	if got := s.errors(); got != "3" {
		t.Errorf("%s errors, want 3", got)
	}
	if s.uncounted = true; s.errors() != "-" {
		t.Errorf("%s errors, want none counted", s.errors())
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
