package state

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// worstState returns a state with so many keys, whose values have at least size bytes.
func worstState(tb testing.TB, keys, size int) *State {
	tb.Helper()
	s := New(Options{})
	mustTxn(tb, s, Txn{Success: []Op{putOp("/first", "")}})
	value := strings.Repeat("v", size)
	var cmds []Command
	for i := range keys {
		cmds = append(cmds, put(fmt.Sprintf("/registry/pods/%07d", i), fmt.Sprintf("%s%07d", value, keys-i)))
	}
	cmds[0] = numbered(cmds[0], 1, 1, 1) // with the limits of NumberVersion
	mustApply(tb, s, cmds...)
	return s
}

// worstTxns returns transactions that cost as much as is allowed, with states where they take long.
func worstTxns(tb testing.TB) map[string]func() (*State, Txn) {
	tb.Helper()
	const size = 4 << 10
	reading := func(ops int, q RangeQuery) Txn {
		p := Txn{Success: []Op{putOp("x", "1")}}
		for range ops {
			q.Key, q.End = "/", "0"
			p.Success = append(p.Success, Op{Range: new(q)})
		}
		return p
	}
	comparing := func(times int, c Compare) Txn {
		c.Key, c.End, c.Result = "/", "0", CompareNotEqual
		p := Txn{Success: []Op{putOp("x", "1")}}
		for range times {
			p.Compare = append(p.Compare, c)
		}
		return p
	}
	return map[string]func() (*State, Txn){
		"comparisons": func() (*State, Txn) {
			p := comparing(MaxTxnOps, Compare{Target: CompareRevision, Number: -1})
			return worstState(tb, MaxTxnExamined/MaxTxnOps-1, 0), p
		},
		"comparisons of values": func() (*State, Txn) {
			value := []byte(strings.Repeat("v", size) + "1234567")
			p := comparing(MaxTxnExamined/1001/(1+size/compareBytesCost), Compare{Target: CompareValue, Value: value})
			return worstState(tb, 1000, size), p
		},
		"counting": func() (*State, Txn) {
			return worstState(tb, MaxTxnExamined/100-1, 0), reading(100, RangeQuery{CountOnly: true})
		},
		"counting once": func() (*State, Txn) {
			return worstState(tb, MaxTxnExamined-2, 0), reading(1, RangeQuery{CountOnly: true})
		},
		"sorting": func() (*State, Txn) {
			q := RangeQuery{Target: SortByVersion, Order: SortDescend, Limit: 1}
			return worstState(tb, MaxTxnExamined/sortCost-2, 0), reading(1, q)
		},
		"sorting by value": func() (*State, Txn) {
			q := RangeQuery{Target: SortByValue, Order: SortAscend, Limit: 1}
			return worstState(tb, MaxTxnExamined/(sortCost+1+size/sortBytesCost), size), reading(1, q)
		},
		"an old revision": func() (*State, Txn) {
			s := worstState(tb, 2*DefaultHistoryRevisions, 0)
			return s, reading(1, RangeQuery{Revision: s.View().CompactRevision(), CountOnly: true})
		},
		"deleting": func() (*State, Txn) {
			return worstState(tb, MaxTxnExamined/lastTxnLimits.deleteCost-2, 0), Txn{Success: []Op{delOp("/", "0")}}
		},
		"nested": func() (*State, Txn) { return worstState(tb, 1, 0), nestedTxn() },
	}
}

// BenchmarkWorstTxn measures the CPU time of the worst transactions in Apply, which every node spends. The least of all
// times is reported: other load only adds to it.
func BenchmarkWorstTxn(b *testing.B) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(1, &u); err != nil { // RUSAGE_THREAD
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for name, prepare := range worstTxns(b) {
		b.Run(name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			s, p := prepare()
			before, least := s.View(), time.Hour
			for b.Loop() {
				s.view.Store(before)
				start := used()
				r := apply(s, txnCommand(p))[0]
				if r.Err != nil {
					b.Fatal(r.Err)
				}
				least = min(least, used()-start)
			}
			b.ReportMetric(float64(least.Microseconds())/1000, "cpu-ms")
		})
	}
}
