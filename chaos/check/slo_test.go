package check

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// every returns times from one time to another, a step apart.
func every(step, from, to time.Duration) (all []time.Duration) {
	for at := from; at < to; at += step {
		all = append(all, at)
	}
	return all
}

func TestMeasure(t *testing.T) {
	second := time.Second
	acks := func(parts ...[]time.Duration) []time.Duration { return slices.Concat(parts...) }
	for _, tt := range []struct {
		name      string
		run       Run
		elections []time.Duration
		failovers time.Duration
		total     time.Duration
		down      time.Duration
	}{
		{
			"a leader is lost, another follows 200 ms later, and a write 50 ms after that",
			Run{
				Nodes: 3, Leaderships: []Leadership{{"n1", 1, 0, 4020 * ms}, {"n2", 3, 4200 * ms, 10 * second}},
				Faults:    []FaultInterval{{"n1", 4 * second, 6 * second}},
				WriteAcks: acks(every(50*ms, 0, 4*second), every(50*ms, 4250*ms, 10*second)), End: 10 * second,
			},
			[]time.Duration{200 * ms},
			250 * ms, 9750 * ms, 0,
		},
		{
			"leadership is moved",
			Run{
				Nodes: 3, Leaderships: []Leadership{
					{"n1", 1, 0, 2 * second},
					{"n2", 2, 4010 * ms, 10 * second},
					{"n1", 1, 3 * second, 4 * second},
				}, Faults: []FaultInterval{{"n3", second, 2 * second}},
				WriteAcks: every(10*ms, 0, 10*second), End: 10 * second,
			},
			[]time.Duration{10 * ms},
			10 * ms, 9990 * ms, 0,
		},
		{
			"a follower hangs, and for half a second no write is taken",
			Run{
				Nodes: 3, Leaderships: []Leadership{{"n1", 1, 0, 10 * second}},
				Faults:    []FaultInterval{{"n2", 4 * second, 6 * second}},
				WriteAcks: acks(every(50*ms, 0, 4*second), every(50*ms, 4450*ms, 10*second)), End: 10 * second,
			},
			nil, 0, 10 * second, 500 * ms,
		},
		{
			"all are down for two seconds: it counts from when two of three are back",
			Run{
				Nodes: 3, Leaderships: []Leadership{{"n1", 1, 0, 4 * second}, {"n2", 2, 6500 * ms, 10 * second}},
				Faults:    []FaultInterval{{"", 4 * second, 6 * second}, {"n3", 5 * second, 7 * second}},
				WriteAcks: acks(every(50*ms, 0, 4*second), every(50*ms, 6550*ms, 10*second)), End: 10 * second,
			},
			[]time.Duration{500 * ms},
			2550 * ms, 7450 * ms, 0,
		},
		{
			"a leader hangs, and for longer than a failover may take nobody follows",
			Run{
				Nodes: 3, Leaderships: []Leadership{{"n1", 1, 0, 10 * second}},
				Faults:    []FaultInterval{{"n1", 4 * second, 6500 * ms}},
				WriteAcks: acks(every(50*ms, 0, 4*second), every(50*ms, 6500*ms, 10*second)), End: 10 * second,
			},
			nil, second, 9 * second, 1500 * ms,
		},
		{
			"a leader that is cut off from one follower goes on, and is killed when that is mended",
			Run{
				Nodes: 3, Leaderships: []Leadership{{"n1", 1, 0, 5490 * ms}, {"n2", 2, 5650 * ms, 10 * second}},
				Faults:    []FaultInterval{{"n1", 4 * second, 5300 * ms}, {"n1", 5500 * ms, 6 * second}},
				WriteAcks: acks(every(50*ms, 0, 5500*ms), every(50*ms, 5650*ms, 10*second)), End: 10 * second,
				LeaderWrites: []FaultInterval{
					{"n2", 3 * second, 3005 * ms},
					{"n1", 5450 * ms, 5500 * ms},
					{"n2", 5600 * ms, 5650 * ms},
					{"n1", 5550 * ms, 5700 * ms},
				},
			},
			[]time.Duration{200 * ms},
			1200 * ms, 8800 * ms, 0, // a second for the partition, after which no leader followed
		},
		{
			"nobody follows",
			Run{
				Nodes: 3, Leaderships: []Leadership{{"n1", 1, 0, 4 * second}},
				Faults:    []FaultInterval{{"n1", 4 * second, 9 * second}},
				WriteAcks: every(50*ms, 0, 4*second), End: 10 * second,
			},
			[]time.Duration{6 * second},
			6 * second, 4 * second, 0,
		},
	} {
		f := MeasureSLO(tt.run)
		if !slices.Equal(f.Elections, tt.elections) || f.Failovers != tt.failovers || f.Total != tt.total ||
			f.Down != tt.down {
			t.Errorf("%s: %+v", tt.name, f)
		}
		late, silent := 0, time.Duration(0)
		for _, took := range tt.elections {
			if took > ElectionSLO {
				late++
			}
		}
		for _, h := range f.Silent {
			silent += h.To - h.From
		}
		if len(f.Late) != late || silent != tt.down {
			t.Errorf("%s: late %v, silent %v", tt.name, f.Late, f.Silent)
		}
	}
}

func TestMissed(t *testing.T) {
	for _, tt := range []struct {
		f    SLOReport
		want string
	}{
		{SLOReport{}, ""},
		{SLOReport{Elections: make([]time.Duration, 10), Total: time.Hour, Down: 3 * time.Second}, ""},
		{SLOReport{Elections: make([]time.Duration, 10), Total: time.Hour, Down: 4 * time.Second}, "99.889 %"},
		{SLOReport{Elections: append(make([]time.Duration, 999), time.Hour)}, ""},
		{SLOReport{Elections: append(make([]time.Duration, 900), time.Hour)}, "99.889 % of 901 elections"},
	} {
		if got := tt.f.Violations(); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%v: %q, want %q", &tt.f, got, tt.want)
		}
	}
}
