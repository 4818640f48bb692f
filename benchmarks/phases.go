package main

import (
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
)

// phaseTimes is how long each step of one failover took, in order. A negative time is unknown.
type phaseTimes [len(phases)]time.Duration

// phases are those of a failover: where each ends, by the clock of this machine, which the nodes share.
var phases = [...]struct{ name, field string }{
	{"the winner notices", ""},
	{"finds the process dead", "confirmed_us"},
	{"a majority agrees", "agreed_us"},
	{"raft is a candidate", "stood_us"},
	{"the votes are there", "elected_us"},
	{"leader-start is applied", "serving_us"},
	{"the client's write is", ""},
}

// phasesOf reads the winner's own event of the election of a term.
func phasesOf(events []apiv1.Event, term uint64, hit time.Time, w *writer) (l phaseTimes, ok bool) {
	i := slices.IndexFunc(events, func(e apiv1.Event) bool {
		return e.Type == "election" && e.Term == term && e.Fields["result"] == "won"
	})
	if i < 0 {
		return l, false
	}
	fields, _ := events[i].Fields["steps"].(map[string]any)
	text, _ := fields["noticed_at"].(string)
	noticed, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return l, false // no failover's doing: a timer fired first
	}
	last := hit
	for i, s := range phases {
		var at time.Time
		switch us, known := fields[s.field].(float64); {
		case i == 0:
			at = noticed
		case known:
			at = noticed.Add(time.Duration(us) * time.Microsecond)
		case i == len(phases)-1:
			at = w.firstAfter(last)
		default:
			l[i] = -1
			continue
		}
		l[i] = at.Sub(last)
		last = at
	}
	return l, true
}

// floorOps are what the quickest possible failover of a dead leader waits for, one after the other: round trips (the
// refused dial, the poll, the vote, the leader-start, the client's entry, the client's request) and syncs (the
// candidate's term and vote; the voter's; and for the leader-start, with which the library's first entry goes, and
// the client's entry two each, at the leader and then at the follower. The leader writes the client's entry while the
// follower writes the leader-start).
const (
	minRoundTrips = 6
	minFsyncs     = 1 + 1 + 4 + 2
)

// lowerBound measures what the machine's syncs and round trips take during a run.
type lowerBound struct {
	disk         *syncer
	far          net.Listener
	conn         net.Conn
	syncs, trips []time.Duration
}

func newLowerBound() (f *lowerBound, err error) {
	f = &lowerBound{}
	if f.disk, err = newSyncer(); err != nil {
		return nil, err
	}
	if f.far, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	go func() { // ends with the listener and the connection
		if c, err := f.far.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	f.conn, err = net.Dial("tcp", f.far.Addr().String())
	return f, err
}

// measure takes a few of both.
func (f *lowerBound) measure() error {
	message := make([]byte, 512)
	for range 5 {
		took, err := f.disk.once()
		if err != nil {
			return err
		}
		f.syncs = append(f.syncs, took)
		start := time.Now()
		if _, err = f.conn.Write(message); err == nil {
			_, err = io.ReadFull(f.conn, message)
		}
		if err != nil {
			return err
		}
		f.trips = append(f.trips, time.Since(start))
	}
	return nil
}

func (f *lowerBound) close() {
	_ = f.conn.Close()
	_ = f.far.Close()
	f.disk.close()
}

func printPhases(s *subject, f *lowerBound) {
	if len(s.phaseTimes) == 0 {
		return
	}
	printRow(fmt.Sprintf("%s, where the gap goes (%d rounds)", s.name, len(s.phaseTimes)), "p10", "p50", "p99")
	total := make([]time.Duration, len(s.phaseTimes))
	for i, step := range phases {
		var took []time.Duration
		for round, l := range s.phaseTimes {
			if l[i] >= 0 {
				took = append(took, l[i])
				total[round] += l[i]
			}
		}
		if len(took) > 0 {
			printRow("  "+step.name, quantiles(took, 0.1, 0.5, 0.99)...)
		}
	}
	printRow("  from the fault to the write", quantiles(total, 0.1, 0.5, 0.99)...)
	slices.Sort(f.syncs)
	slices.Sort(f.trips)
	sync, trip := load.Quantile(f.syncs, 0.5), load.Quantile(f.trips, 0.5)
	fmt.Printf("    lower bound: %d round trips of %s ms and %d syncs of %s ms, %s ms\n", minRoundTrips, ms(trip),
		minFsyncs, ms(sync), ms(minRoundTrips*trip+minFsyncs*sync))
}
