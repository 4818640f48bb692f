package main

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// latencies is a histogram of durations whose buckets are an eighth of a power
// of two wide: it takes millions and stays small. Safe for concurrent use.
type latencies struct {
	buckets [64 * 8]atomic.Int64
	max     atomic.Int64
}

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 8))
	shift := bits.Len64(v) - 4 // v>>shift is 8..15
	return shift*8 + int(v>>shift) - 8
}

// top is the upper end of a bucket.
func top(bucket int) time.Duration {
	return time.Duration((uint64(bucket%8) + 9) << (bucket / 8))
}

func (l *latencies) add(d time.Duration) {
	l.buckets[bucketOf(d)].Add(1)
	for most := l.max.Load(); int64(d) > most && !l.max.CompareAndSwap(most, int64(d)); most = l.max.Load() {
	}
}

func (l *latencies) count() (n int64) {
	for i := range l.buckets {
		n += l.buckets[i].Load()
	}
	return n
}

// quantile is exact for 1, and to an eighth otherwise.
func (l *latencies) quantile(q float64) time.Duration {
	most := time.Duration(l.max.Load())
	want := int64(math.Ceil(q * float64(l.count())))
	if q >= 1 {
		return most
	}
	seen := int64(0)
	for i := range l.buckets {
		if seen += l.buckets[i].Load(); seen >= want && seen > 0 {
			return min(top(i), most)
		}
	}
	return most
}

// describeHost reports what is measured on, and how busy that is already.
func describeHost() string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%s: %d processors, Linux %s, %s, load before: %s", time.Now().UTC().Format(time.DateTime),
		runtime.NumCPU(), strings.TrimSpace(string(kernel)), runtime.Version(), strings.TrimSpace(string(load)))
}

// hostStats is what the machine did during a run.
type hostStats struct {
	cpu, disk *latencies // how late a thread got a processor, how long a sync took
	busy, own float64    // of all processor time; and of the busy part, this program's and its children's
}

// hostLatency remembers the last seconds of both measurements.
type hostLatency struct {
	mu   sync.Mutex
	last []sample // the newest at the end
}

type sample struct {
	at   time.Time
	cpu  bool
	took time.Duration
}

const sampleTTL = 5 * time.Second

func (l *hostLatency) note(s sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.last) > 0 && s.at.Sub(l.last[0].at) > sampleTTL {
		l.last = l.last[1:]
	}
	l.last = append(l.last, s)
}

// recent is the longest of each in the time before now.
func (l *hostLatency) recent(d time.Duration) (cpu, disk time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := time.Now().Add(-d)
	for _, s := range l.last {
		switch {
		case s.at.Before(from):
		case s.cpu:
			cpu = max(cpu, s.took)
		default:
			disk = max(disk, s.took)
		}
	}
	return cpu, disk
}

const (
	cpuSampleInterval  = 2 * time.Millisecond
	diskSampleInterval = 50 * time.Millisecond
)

// monitorHost measures next to the load, at the priority of the nodes, how long a
// thread waits for a processor and how long one small sync takes. stop ends it.
func monitorHost(ctx context.Context) (recent *hostLatency, stop func() hostStats) {
	m := hostStats{cpu: &latencies{}, disk: &latencies{}}
	recent = &hostLatency{}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { m.sampleCPU(ctx, recent) })
	running.Go(func() { m.sampleDisk(ctx, recent) })
	all, idle := processorTime()
	own := ownTime()
	return recent, func() hostStats {
		cancel()
		running.Wait()
		allNow, idleNow := processorTime()
		busy := (allNow - all) - (idleNow - idle)
		m.busy = float64(busy) / float64(max(1, allNow-all))
		m.own = float64(ownTime()-own) / float64(max(1, busy))
		return m
	}
}

// sampleCPU sleeps on a thread of its own, which the kernel wakes and not Go's
// scheduler, and measures how late that is.
func (m *hostStats) sampleCPU(ctx context.Context, recent *hostLatency) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // a thread that ends takes the nodes that it has started with it
	for ctx.Err() == nil {
		from := time.Now()
		ts := syscall.NsecToTimespec(int64(cpuSampleInterval))
		_ = syscall.Nanosleep(&ts, nil)
		now := time.Now()
		late := max(0, now.Sub(from)-cpuSampleInterval)
		m.cpu.add(late)
		recent.note(sample{now, true, late})
	}
}

// sampleDisk syncs now and then, and measures how long that takes.
func (m *hostStats) sampleDisk(ctx context.Context, recent *hostLatency) {
	dir, err := os.MkdirTemp("", "northstar-bench-sync-")
	if err != nil {
		return
	}
	defer os.RemoveAll(dir)
	sync, err := newSyncer(dir)
	if err != nil {
		return
	}
	defer sync.close()
	for wait(ctx, diskSampleInterval) == nil {
		took, err := sync.once()
		if err != nil {
			return
		}
		m.disk.add(took)
		recent.note(sample{time.Now(), false, took})
	}
}

// syncer does the smallest durable write that a store can do: 4 KiB in place.
type syncer struct {
	f   *os.File
	buf []byte
}

func newSyncer(dir string) (*syncer, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return nil, err
	}
	s := &syncer{f: f, buf: make([]byte, 4096)}
	_, err = s.once()
	return s, err
}

func (s *syncer) once() (time.Duration, error) {
	start := time.Now()
	s.buf[0]++
	if _, err := s.f.WriteAt(s.buf, 0); err != nil {
		return 0, err
	}
	err := syscall.Fdatasync(int(s.f.Fd()))
	return time.Since(start), err
}

func (s *syncer) close() { _ = s.f.Close() }

const tick = 10 * time.Millisecond // of /proc's processor times

// processorTime is the time of all processors since boot, and the idle part.
func processorTime() (all, idle time.Duration) {
	data, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(data), "\n")
	for i, f := range strings.Fields(line) {
		v, err := strconv.ParseInt(f, 10, 64)
		if err != nil || i > 8 { // guests are part of user time
			continue
		}
		all += time.Duration(v) * tick
		if i == 4 || i == 5 { // idle, and waiting for the disk
			idle += time.Duration(v) * tick
		}
	}
	return all, idle
}

// ownTime is the processor time of this program and of its running children.
func ownTime() time.Duration {
	self := os.Getpid()
	sum := time.Duration(0)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// Fields are counted after the command name, which may hold blanks.
		_, rest, _ := strings.Cut(string(data), ") ")
		f := strings.Fields(rest)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if len(f) < 13 || (pid != self && f[1] != strconv.Itoa(self)) {
			continue
		}
		for _, i := range []int{11, 12} {
			v, _ := strconv.ParseInt(f[i], 10, 64)
			sum += time.Duration(v) * tick
		}
	}
	return sum
}
