package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/state"
)

// testEnv is a log and a disk.
type testEnv struct {
	mu      sync.Mutex
	log     *state.State
	index   uint64
	leads   bool
	broken  bool // responses get lost after the batch was applied
	disk    []byte
	noDisk  bool
	saves   int
	changed chan struct{}
	counts  map[string]int
}

func newTestEnv() *testEnv {
	return &testEnv{
		log: state.New(state.Options{}), leads: true, changed: make(chan struct{}),
		counts: map[string]int{},
	}
}

func (w *testEnv) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *testEnv) send(_ context.Context, c state.Command) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leads {
		return errors.New("no leader")
	}
	c.Now = time.Now().UnixNano()
	w.index++
	for _, r := range w.log.Apply(w.index, 1, []state.Command{c}) {
		if r.Err != nil {
			return r.Err
		}
	}
	if w.broken {
		return errors.New("the response was lost")
	}
	return nil
}

func (w *testEnv) recorder(boot string) *Recorder {
	return New(Deps{
		Source: boot, Send: w.send, SendWithin: time.Second, Logger: hclog.NewNullLogger(),
		Changed: func() <-chan struct{} {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.changed
		},
		Load: func() ([]byte, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.disk == nil {
				return nil, fs.ErrNotExist
			}
			return w.disk, nil
		},
		Save: func(b []byte) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.noDisk {
				return errors.New("no disk")
			}
			w.disk = append([]byte{}, b...)
			w.saves++
			return nil
		},
		Count: func(result string, n int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.counts[result] += n
		},
	})
}

func (w *testEnv) logged() string {
	var all []string
	for r := range w.log.View().AuditAfter(0) {
		late := ""
		if r.Delayed {
			late = "!"
		}
		all = append(all, r.Who+late)
	}
	return strings.Join(all, " ")
}

func admin(who string) state.AuditRecord {
	return state.AuditRecord{Class: state.AuditOperators, Who: who, What: "POST /admin/transfer", Status: 200}
}

// run starts a recorder. stop ends it and waits for that.
func run(r *Recorder) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		_ = r.Run(ctx)
		close(done)
	}()
	return func() { cancel(); <-done }
}

func TestRecordsReachTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv()
		r := w.recorder("b1")
		defer run(r)()
		start := time.Now()
		r.RecordDurable(t.Context(), admin("a"))
		if got := w.logged(); got != "a" || time.Since(start) > flushInterval {
			t.Fatalf("log %q after %v", got, time.Since(start))
		}
		synctest.Wait() // it would send what comes now without the pause that makes a batch
		for i := range 300 {
			r.Record(state.AuditRecord{Who: fmt.Sprint(i)})
		}
		time.Sleep(2 * flushInterval)
		synctest.Wait()
		if c := w.log.View().AuditCounts(); c.Records != [2]uint64{300, 1} || w.index != 3 {
			t.Errorf("%+v in %d batches", c, w.index)
		}
		if w.saves != 0 {
			t.Errorf("the disk was written %d times", w.saves)
		}
	})
}

// Without a leader a record is on disk before the call gets its response. It reaches the log once, across processes
// and leaders.
func TestRecordsOutliveTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv()
		w.set(func() { w.leads = false })
		stop := run(w.recorder("b0"))
		stop()
		first := w.recorder("b1")
		stop = run(first)
		first.RecordDurable(t.Context(), admin("a"))
		first.Record(admin("b"))
		time.Sleep(2 * retryInterval)
		synctest.Wait()
		disk := w.disk
		stop()
		if w.logged() != "" || len(disk) == 0 {
			t.Fatalf("log %q, %d bytes on disk", w.logged(), len(disk))
		}
		// The next process delivers. The response gets lost, and the process dies.
		w.set(func() { w.leads, w.broken = true, true })
		stop = run(w.recorder("b2"))
		time.Sleep(2 * retryInterval)
		synctest.Wait()
		stop()
		w.set(func() { w.broken = false })
		last := w.recorder("b3")
		defer run(last)()
		last.RecordDurable(t.Context(), admin("c"))
		if got := w.logged(); got != "a! b! c" {
			t.Errorf("log %q", got)
		}
		time.Sleep(retryInterval)
		synctest.Wait()
		if len(w.disk) != 0 || last.queueLength() != 0 {
			t.Errorf("%d bytes are left on disk, %d records wait", len(w.disk), last.queueLength())
		}
		if w.counts["spooled"] != 2 || w.counts["replicated"] < 3 {
			t.Errorf("counts %v", w.counts)
		}
	})
}

func TestRecorder_SendsWithNextLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv()
		w.set(func() { w.leads = false })
		r := w.recorder("b1")
		defer run(r)()
		r.RecordDurable(t.Context(), admin("a"))
		r.RecordDurable(t.Context(), admin("b"))
		start := time.Now()
		w.set(func() { w.leads = true })
		synctest.Wait()
		if got := w.logged(); got != "a! b!" || time.Since(start) > 0 {
			t.Errorf("after %v: %q", time.Since(start), got)
		}
	})
}

// Records that do not fit are counted. Clients do not use the room of operators.
func TestRecorder_CountsDroppedRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv()
		w.set(func() { w.leads = false })
		r := w.recorder("b1")
		defer run(r)()
		for range maxQueued + 7 {
			r.Record(state.AuditRecord{Who: "flood"})
		}
		r.RecordDurable(t.Context(), admin("a"))
		w.set(func() { w.leads = true })
		time.Sleep(2 * retryInterval)
		synctest.Wait()
		if c := w.log.View().AuditCounts(); c.Lost != 7 || c.Records != [2]uint64{maxQueued, 1} ||
			w.counts["lost"] != 7 {
			t.Errorf("%+v, %v", c, w.counts)
		}
		big := state.AuditRecord{
			What:    strings.Repeat("x", 3*state.MaxAuditText),
			Request: strings.Repeat("x", 3*state.MaxAuditText), Detail: "\xff",
		}
		r.Record(big)
		time.Sleep(2 * retryInterval)
		synctest.Wait()
		if r.queueLength() != 0 {
			t.Error("a record that is too large is never sent")
		}
	})
}

// The number of dropped records outlives the process, also if no record came after them.
func TestRecorder_DroppedRecordsOutliveTheProcess(t *testing.T) {
	for name, crash := range map[string]bool{"stop": false, "crash": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv()
				w.set(func() { w.leads = false })
				r := w.recorder("b1")
				stop := run(r)
				flood := func(n int) {
					for range n {
						r.Record(state.AuditRecord{Who: "flood"})
					}
				}
				flood(maxQueued)
				time.Sleep(2 * retryInterval)
				synctest.Wait()
				if w.counts["spooled"] != maxQueued {
					t.Fatalf("counts %v", w.counts)
				}
				flood(7)
				if crash {
					time.Sleep(lostInterval + retryInterval)
					synctest.Wait()
				}
				disk := w.disk
				stop()
				if crash {
					w.disk = disk // what the end of Run has written is not there
				}
				w.set(func() { w.leads = true })
				defer run(w.recorder("b2"))()
				time.Sleep(2 * retryInterval)
				synctest.Wait()
				if c := w.log.View().AuditCounts(); c.Lost != 7 || c.Records != [2]uint64{maxQueued, 0} {
					t.Errorf("%+v", c)
				}
			})
		})
	}
}

// A flood without a leader does not write the same records again and again.
func TestRecorder_FloodWritesTheSpoolRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv()
		w.set(func() { w.leads = false })
		r := w.recorder("b1")
		defer run(r)()
		for range maxQueued {
			r.Record(state.AuditRecord{Who: "flood"})
		}
		time.Sleep(2 * retryInterval)
		synctest.Wait()
		full := w.saves
		for range 10 * 60 {
			r.Record(state.AuditRecord{Who: "flood"})
			time.Sleep(100 * time.Millisecond)
		}
		if n := w.saves - full; n < 5 || n > 6 {
			t.Errorf("the spool was written %d times in a minute", n)
		}
		r.RecordDurable(t.Context(), admin("a"))
		synctest.Wait()
		if w.counts["spooled"] != maxQueued+1 {
			t.Errorf("an operator's record waits: %v", w.counts)
		}
	})
}

// A call gets its response even if neither the log nor the disk accepts its record.
func TestRecordDurable_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv()
		w.set(func() { w.leads, w.noDisk = false, true })
		r := w.recorder("b1")
		defer run(r)()
		start := time.Now()
		r.RecordDurable(t.Context(), admin("a"))
		if took := time.Since(start); took != durableTimeout {
			t.Errorf("answered after %v", took)
		}
		w.set(func() { w.leads, w.noDisk = true, false })
		time.Sleep(2 * retryInterval)
		synctest.Wait()
		if got := w.logged(); got != "a!" {
			t.Errorf("log %q", got)
		}
	})
}

func TestRecorder_IgnoresDamagedSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv()
		w.disk = []byte("garbage")
		r := w.recorder("b1")
		defer run(r)()
		r.RecordDurable(t.Context(), admin("a"))
		if got := w.logged(); got != "a" {
			t.Errorf("log %q", got)
		}
	})
}

// The body of a call may be no UTF-8, for example of a terminal with another encoding. It is recorded, and so is what
// follows, also after a restart with the spool of an earlier build.
func TestRecorder_RequestWithoutUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv()
		bad := admin("a")
		bad.Request = "{\"reason\":\"f\xfcr n1\"}"
		spool, err := state.EncodeBatch([]state.Command{{Kind: state.KindAudit, AuditBatch: &state.AuditBatch{
			Producer: "b0", First: 1, Records: []state.AuditRecord{bad},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		w.disk = spool
		r := w.recorder("b1")
		defer run(r)()
		r.RecordDurable(t.Context(), bad)
		r.RecordDurable(t.Context(), admin("b"))
		time.Sleep(2 * retryInterval)
		synctest.Wait()
		if got := w.logged(); got != "a a b" || r.queueLength() != 0 {
			t.Errorf("log %q, %d records wait", got, r.queueLength())
		}
		for rec := range w.log.View().AuditAfter(0) {
			if rec.Who == "a" && rec.Request != "{\"reason\":\"f\uFFFDr n1\"}" {
				t.Errorf("request %q", rec.Request)
			}
		}
	})
}
