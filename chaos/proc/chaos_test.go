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
	"northstar/chaos/testenv"
)

// segment is the number of faults between two checks of all client observations. Each segment has new clients.
const segment = 40

// TestChaos injects faults into a cluster of real processes under client load. The faults are kill -9 of one or all
// nodes, SIGSTOP, SIGTERM, a full disk and partitions, as far as this machine allows them. After each fault the cluster
// must take writes through every node. All responses to the clients are checked.
//
// NORTHSTAR_CHAOS_ITERATIONS is the number of faults, NORTHSTAR_CHAOS_SECONDS a duration instead. NORTHSTAR_CHAOS_SEED
// selects the faults, and NORTHSTAR_CHAOS_NODES is the number of nodes. NORTHSTAR_CHAOS_REPORT is a directory for the
// page; by default only a failed run writes a page, to out/chaos.
//
// The test always prints how soon there were leaders and writes. With NORTHSTAR_CHAOS_FIGURES=1 it fails if an
// objective is missed: do not set it on a busy machine.
func TestChaos(t *testing.T) {
	t.Parallel()
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

// suite is one cluster and its observations.
type suite struct {
	t       *testing.T
	seed    uint64
	rand    *rand.Rand
	cluster *Cluster
	network *Network // nil: links cannot be cut on this machine
	disks   bool     // the nodes' disks are small file systems
	stalls  stalls
	waits   waits
	start   time.Time

	mu               sync.Mutex
	end              time.Duration // end of the measured time; 0: not ended
	faults           []timeline.Fault
	faultKinds       []string // kinds of the faults so far
	leaderships      []timeline.Leadership
	leaders          map[uint64]string // by term
	acks             []time.Duration
	availabilityAcks []time.Duration       // acknowledgements of probes
	leaderWrites     []check.FaultInterval // by node, from the request to the acknowledgement
	violations       []check.Violation
	ops              int
	key              int // keys with this number are in use
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
		looking.Go(func() { s.watchLeader(ctx, n.ID, "http://"+n.HTTP) })
		looking.Go(func() { s.probe(ctx, n) })
	}
	t.Cleanup(func() { stop(); looking.Wait() })
	return s
}

// fault returns the number of the current fault.
func (s *suite) fault() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key
}

// now returns the time since the suite began.
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

// watchLeader asks a node repeatedly whether it leads. No two nodes may lead in one term.
func (s *suite) watchLeader(ctx context.Context, id, url string) {
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
		s.leaderships = append(s.leaderships, timeline.Leadership{
			Node: id, Term: term, From: s.now(),
			To: s.now() + time.Millisecond,
		})
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
		s.awaitWrite(f, n)
	}
}

// awaitWrite waits until a node takes a write after a fault. A stall of the machine extends the deadline.
func (s *suite) awaitWrite(f fault, n *Node) {
	within := testenv.Slowdown() * 20 * time.Second
	begin, last := time.Now(), ""
	for time.Now().Before(s.stalls.deadline(begin, within)) {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		a, err := put(ctx, n, "settle", f.What)
		cancel()
		if err == nil && a.Status == 200 {
			return
		}
		last = fmt.Sprintf("%d %s %v", a.Status, a.Body, err)
		pause(10 * time.Millisecond)
	}
	s.violated(check.Violationf(check.Convergence, "%s takes no write for %v after %s (%v): %s", n.ID,
		time.Since(begin).Round(time.Second), f.What, &s.stalls, last))
}

// check checks what the clients of a segment observed. They have ended.
func (s *suite) check(c *chaosClients) {
	ops := c.History.Ops()
	for _, v := range append(check.Linearizable(ops, testenv.Slowdown()*check.DecisionLimit), c.Roles.Check(false)...) {
		s.violated(v)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops += len(ops)
}

func (s *suite) report() timeline.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := timeline.Report{
		Title: fmt.Sprintf("%d processes, seed %d", len(s.cluster.Nodes), s.seed),
		ReplayCommand: fmt.Sprintf("make chaos SEED=%d (the same faults; processes are never exactly the same)",
			s.seed),
		Length: s.measured(), Faults: s.faults, Leaderships: s.leaderships, Gaps: s.gaps(),
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
		_ = r.Text(&text) // a write to text does not fail
		s.t.Log(text.String())
	}
	path, err := r.Save(cmp.Or(dir, "../../out/chaos"), fmt.Sprintf("proc-%d-%d", len(s.cluster.Nodes), s.seed))
	if err != nil {
		s.t.Error(err)
		return
	}
	s.t.Logf("report: %s", path)
}
