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

	"northstar/chaos/proc"
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
	seen := int64(0)
	for i := range l.buckets {
		if seen += l.buckets[i].Load(); q < 1 && seen >= want && seen > 0 {
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

// delays are a histogram of something that the machine does again and again, and the last of it.
type delays struct {
	latencies
	mu   sync.Mutex
	last []delay // the newest at the end
}

type delay struct {
	at   time.Time
	took time.Duration
}

const delayTTL = 5 * time.Second

func (l *delays) note(d delay) {
	l.add(d.took)
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.last) > 0 && d.at.Sub(l.last[0].at) > delayTTL {
		l.last = l.last[1:]
	}
	l.last = append(l.last, d)
}

// recent is the longest in the time before now.
func (l *delays) recent(d time.Duration) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.last {
		if time.Since(s.at) <= d {
			longest = max(longest, s.took)
		}
	}
	return longest
}

const (
	cpuSampleInterval  = 2 * time.Millisecond
	diskSampleInterval = 50 * time.Millisecond
)

// host is what the machine does during a run, measured next to the load at the
// priority of the nodes: how long a thread waits for a processor, and how long one small sync takes.
type host struct{ cpu, disk delays }

// sampleCPU sleeps on a thread of its own, which the kernel wakes and not Go's
// scheduler, and measures how late that is.
func (m *host) sampleCPU(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // a thread that ends takes the nodes that it has started with it
	for ctx.Err() == nil {
		from := time.Now()
		ts := syscall.NsecToTimespec(int64(cpuSampleInterval))
		_ = syscall.Nanosleep(&ts, nil)
		now := time.Now()
		m.cpu.note(delay{now, max(0, now.Sub(from)-cpuSampleInterval)})
	}
}

// sampleDisk syncs now and then, and measures how long that takes.
func (m *host) sampleDisk(ctx context.Context) {
	sync, err := newSyncer()
	if err != nil {
		return
	}
	defer sync.close()
	for wait(ctx, diskSampleInterval) == nil {
		took, err := sync.once()
		if err != nil {
			return
		}
		m.disk.note(delay{time.Now(), took})
	}
}

// syncer does the smallest durable write that a store can do: 4 KiB in place.
type syncer struct {
	dir string
	f   *os.File
	buf []byte
}

func newSyncer() (s *syncer, err error) {
	s = &syncer{buf: make([]byte, 4096)}
	if s.dir, err = os.MkdirTemp("", "northstar-bench-sync-"); err != nil {
		return nil, err
	}
	if s.f, err = os.Create(filepath.Join(s.dir, "sync")); err != nil {
		return nil, err
	}
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

func (s *syncer) close() {
	_ = s.f.Close()
	_ = os.RemoveAll(s.dir)
}

// processorTime is the time of all processors so far, the busy part, and of that this program's and a cluster's.
type processorTime struct{ all, busy, own time.Duration }

func processorTimeOf(c *proc.Cluster) (t processorTime) {
	const tick = 10 * time.Millisecond // of /proc/stat
	data, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(data), "\n")
	for i, f := range strings.Fields(line) {
		v, err := strconv.ParseInt(f, 10, 64)
		if err != nil || i > 8 { // guests are part of user time
			continue
		}
		t.all += time.Duration(v) * tick
		if i != 4 && i != 5 { // idle, and waiting for the disk
			t.busy += time.Duration(v) * tick
		}
	}
	var self syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	nodes, _, _ := usage(c)
	t.own = time.Duration(self.Utime.Nano()+self.Stime.Nano()) + nodes
	return t
}
