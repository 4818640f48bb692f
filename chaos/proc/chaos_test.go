package proc

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/chaos/check"
	timeline "northstar/chaos/report"
)

// segment is how many faults are injected before all that clients saw is checked,
// and new clients begin.
const segment = 40

// TestChaos breaks a cluster of real processes again and again under clients:
// kill -9, SIGSTOP, SIGTERM, all at once, a full disk, partitions, as far as this
// machine allows. After each fault the cluster must take writes through every
// node; all that the clients saw is checked.
//
// NORTHSTAR_CHAOS_ITERATIONS reports how many faults, NORTHSTAR_CHAOS_SECONDS for how
// long instead, NORTHSTAR_CHAOS_SEED which, NORTHSTAR_CHAOS_NODES on how many nodes;
// NORTHSTAR_CHAOS_REPORT is a directory for the page, which is written to out/chaos
// only when something is wrong otherwise. How soon there were leaders and writes is
// always told, and with NORTHSTAR_CHAOS_FIGURES=1 it fails when that is less than
// promised: not on a machine that does much else.
func TestChaos(t *testing.T) {
	iterations, seconds := setting(t, "ITERATIONS", 8), setting(t, "SECONDS", 0)
	s := newSuite(t, setting(t, "NODES", 3), uint64(setting(t, "SEED", int(time.Now().Unix()%1_000_000))))
	deadline := s.start.Add(time.Duration(seconds) * time.Second)
	more := func(done int) bool {
		if seconds > 0 {
			return time.Now().Before(deadline)
		}
		return done < iterations
	}
	for done := 0; more(done) && !t.Failed(); {
		clients := s.startClients()
		for range segment {
			if !more(done) || t.Failed() {
				break
			}
			s.iterate(done)
			done++
		}
		clients.stop()
		s.check(clients)
	}
	s.mu.Lock()
	s.end = s.now()
	s.mu.Unlock()
	t.Log(s.summary())
	s.mu.Lock()
	f := s.slo()
	s.mu.Unlock()
	if why := f.Violations(); why != "" && setting(t, "FIGURES", 0) != 0 {
		t.Error(why)
	}
	s.saveReport()
}

func setting(t *testing.T, name string, usual int) int {
	t.Helper()
	text := os.Getenv("NORTHSTAR_CHAOS_" + name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("NORTHSTAR_CHAOS_%s: %v", name, err)
	}
	return n
}

// suite is one cluster and what is known of it.
type suite struct {
	t       *testing.T
	seed    uint64
	rand    *rand.Rand
	cluster *Cluster
	network *Network // nil: links cannot be cut here
	disks   bool     // the nodes' disks are small file systems
	stalls  stalls
	waits   waits
	start   time.Time

	mu               sync.Mutex
	end              time.Duration // of what is measured; 0: it goes on
	faults           []timeline.Fault
	faultKinds       []string // of faults
	leaderships      []timeline.Leadership
	leaders          map[uint64]string // by term
	acks             []time.Duration
	availabilityAcks []time.Duration       // acknowledgements of probes
	leaderWrites     []check.FaultInterval // by whom, from when they were sent
	violations       []check.Violation
	ops              int
	key              int // keys of this number are in use
}

func newSuite(t *testing.T, nodes int, seed uint64) *suite {
	s := &suite{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 1)), leaders: map[uint64]string{}}
	s.cluster = newCluster(t, nodes, "--insecure", "--drain-timeout", "5s")
	if w, err := NewNetwork(); err != nil {
		t.Logf("no partitions: %v", err)
	} else {
		s.network = w
		t.Cleanup(func() {
			s.cluster.KillAll()
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := w.Attach(s.cluster); err != nil {
			t.Fatal(err)
		}
	}
	s.disks = s.smallDisks()
	start(t, s.cluster)
	for _, n := range s.cluster.Nodes {
		s.waits.follow(n.ID, n.Cmd.Process.Pid)
	}
	s.start = time.Now()
	ctx, stop := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	looking.Go(func() { s.stalls.watch(ctx) })
	looking.Go(func() { s.waits.watch(ctx) })
	for _, n := range s.cluster.Nodes {
		looking.Go(func() { s.look(ctx, n.ID, "http://"+n.HTTP) })
		looking.Go(func() { s.probe(ctx, n) })
	}
	t.Cleanup(func() { stop(); looking.Wait() })
	return s
}

// fault is the number of the present fault.
func (s *suite) fault() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key
}

// now is the time since the suite began.
func (s *suite) now() time.Duration { return time.Since(s.start) }

func (s *suite) violated(v check.Violation) {
	s.mu.Lock()
	s.violations = append(s.violations, v)
	s.mu.Unlock()
	s.t.Errorf("at %v: %v", s.now(), v)
	for _, o := range v.Ops {
		s.t.Log("  ", o)
	}
}

// look asks a node again and again whether it leads: no two may, in one term.
func (s *suite) look(ctx context.Context, id, url string) {
	for ctx.Err() == nil {
		st, err := statusAt(ctx, url)
		if err == nil && st.State == "leader" {
			s.leads(id, st.Term)
		}
		pause(20 * time.Millisecond)
	}
}

func (s *suite) leads(id string, term uint64) {
	s.mu.Lock()
	other, known := s.leaders[term]
	s.leaders[term] = id
	if n := len(s.leaderships); known && n > 0 && s.leaderships[n-1].Term == term && s.leaderships[n-1].Node == id {
		s.leaderships[n-1].To = s.now()
	} else {
		s.leaderships = append(s.leaderships, timeline.Leadership{Node: id, Term: term, From: s.now(), To: s.now() + time.Millisecond})
	}
	s.mu.Unlock()
	if known && other != id {
		s.violated(check.Violationf(check.OneLeader, "%s and %s both lead term %d", other, id, term))
	}
}

// iterate injects one fault, ends it, and waits until every node takes a write.
func (s *suite) iterate(i int) {
	s.mu.Lock()
	s.key = i
	s.mu.Unlock()
	pause(time.Duration(50+s.rand.IntN(400)) * time.Millisecond)
	f := s.draw()
	f.Fault.From = s.now()
	f.run()
	f.Fault.To = s.now()
	s.mu.Lock()
	s.faults, s.faultKinds = append(s.faults, f.Fault), append(s.faultKinds, f.kind)
	s.mu.Unlock()
	for _, n := range s.cluster.Nodes {
		s.settles(f, n)
	}
}

// settles waits until a node takes a write after a fault. A machine that stands
// still is one more.
func (s *suite) settles(f fault, n *Node) {
	const within = 20 * time.Second
	begin, last := time.Now(), ""
	for time.Now().Before(s.stalls.patience(begin, within)) {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		a, err := put(ctx, n, "settle", f.What)
		cancel()
		if err == nil && a.Status == 200 {
			return
		}
		last = fmt.Sprintf("%d %s %v", a.Status, a.Body, err)
		pause(10 * time.Millisecond)
	}
	s.violated(check.Violationf(check.Convergence, "%s takes no write for %v after %s (%v): %s", n.ID, time.Since(begin).Round(time.Second), f.What, &s.stalls, last))
}

// check checks what the clients of a segment saw. They have ended.
func (s *suite) check(c *chaosClients) {
	ops := c.History.Ops()
	violations, undecided := check.Linearizable(ops, 20*time.Second)
	violations = append(violations, c.Roles.Check(false)...)
	for _, v := range violations {
		s.violated(v)
	}
	if undecided > 0 {
		s.t.Logf("%d keys were not decided in time", undecided)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops += len(ops)
}

func (s *suite) report() timeline.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := timeline.Report{
		Title:         fmt.Sprintf("%d processes, seed %d", len(s.cluster.Nodes), s.seed),
		ReplayCommand: fmt.Sprintf("make chaos SEED=%d (the same faults; processes are never exactly the same)", s.seed),
		Length:        s.measured(), Faults: s.faults, Leaderships: s.leaderships, Gaps: s.gaps(),
	}
	f := s.slo()
	r.SLO, r.Details = f.String(), s.logged(slices.Concat(f.Late, f.Silent))+s.cluster.Logs()
	for _, n := range s.cluster.Nodes {
		r.Nodes = append(r.Nodes, n.ID)
	}
	for _, v := range s.violations {
		r.Violations = append(r.Violations, v.Error())
		for _, o := range v.Ops {
			r.Ops = append(r.Ops, timeline.Op{What: o.String(), From: o.Begin, To: max(o.Begin, o.End)})
		}
	}
	return r
}

func (s *suite) saveReport() {
	dir := os.Getenv("NORTHSTAR_CHAOS_REPORT")
	if dir == "" && !s.t.Failed() {
		return
	}
	r := s.report()
	if s.t.Failed() {
		var text strings.Builder
		_ = r.Text(&text) // it does not fail
		s.t.Log(text.String())
	}
	path, err := r.Save(cmp.Or(dir, "../../out/chaos"), fmt.Sprintf("proc-%d-%d", len(s.cluster.Nodes), s.seed))
	if err != nil {
		s.t.Error(err)
		return
	}
	s.t.Logf("report: %s", path)
}
