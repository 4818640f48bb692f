package main

import (
	"slices"
	"testing"
	"time"
)

func TestPausesAfter(t *testing.T) {
	begin := time.Now()
	at := func(ms ...int) (times []time.Time) {
		for _, n := range ms {
			times = append(times, begin.Add(time.Duration(n)*time.Millisecond))
		}
		return times
	}
	got := pausesAfter(at(1, 9, 11, 61, 65, 95, 120), at(10, 90, 130), at(200)[0])
	want := []time.Duration{50 * time.Millisecond, 30 * time.Millisecond, 80 * time.Millisecond}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A leader that leaves a slow disk, or one that stalls, does so once. With all disks slow no election is of use.
func TestNeedlessElections(t *testing.T) {
	begin := time.Now()
	for _, tt := range []struct {
		row    diskRow
		stalls int
		want   string
	}{
		{diskRow{sync: time.Millisecond}, 0, "2"},
		{diskRow{sync: time.Millisecond, all: true}, 0, "3"},
		{diskRow{stall: time.Second}, 2, "1"},
		{diskRow{stall: time.Second, all: true}, 2, "3"},
	} {
		r := &diskRun{row: tt.row, terms: 3, acks: []time.Time{begin}}
		stalls := slices.Repeat([]time.Time{begin}, tt.stalls)
		if got := r.report(begin, time.Hour, stalls)[3]; got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.row, got, tt.want)
		}
	}
}
