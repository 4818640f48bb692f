package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"northstar/chaos/proc"
)

// Form is how an attack is run.
type Form struct {
	Node    string // path of northstar-node
	Program string // that calls AsAttacker
	Files   int    // files that a process may open
	Full    bool
	Flags   []string      // of the nodes
	Warm    time.Duration // without an attack, before anything is measured
	Hold    time.Duration // how long connections are held
	Limit   time.Duration // of an attack that ends by itself
}

// Result is what one attack did, and what was noticed of it.
type Result struct {
	Attack
	Size      int
	Scaled    string // why Size is less than it should be
	Done      tally
	Took      time.Duration
	Growth    int64 // of the memory of the node that grew most
	Peak      int64 // its memory
	TCP       int64 // growth of the kernel's memory for TCP
	Elections int   // changes of term beyond those of the operator's transfers
	Entries   int   // of the log, beyond the writes and transfers of the bystanders
	LogLines  int   // of the node that logged most
	Panics    int
	Logs      string // the ends of the nodes' logs

	Probe       time.Duration // the slowest
	Probes      int           // that have ended
	ProbeErr    error
	Transfer    time.Duration // the slowest
	Transfers   int           // that were made
	Failed      int           // transfers
	TransferErr error         // of the last failed one
	Missing     int           // their audit records
	Write       time.Duration // 99th percentile
	SlowWrite   time.Duration // the slowest
	Writes      int           // that have ended
	WriteErr    error         // of the last failed write
	Refused     int           // failed writes
}

// Run makes an attack on a new cluster.
func Run(ctx context.Context, f Form, a Attack) (Result, error) {
	c, err := start(ctx, f.Node, a, f.Flags)
	if err != nil {
		return Result{}, err
	}
	defer c.Close()
	if a.prepare != nil {
		if err := a.prepare(ctx, c); err != nil {
			return Result{}, err
		}
	}
	r := Result{Attack: a}
	r.Size, r.Scaled = fit(a, f)
	if err := attackOn(ctx, f, c, &r); err != nil {
		return r, fmt.Errorf("%s: %w\n%s", a.Name, err, c.Logs())
	}
	return r, nil
}

// attackOn attacks the leader of c.
func attackOn(ctx context.Context, f Form, c *cluster, r *Result) error {
	b := &bystanders{c: c, repeats: !f.Full}
	using, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { b.run(using) })
	wait(ctx, f.Warm)

	target, err := c.leader(ctx)
	if err != nil {
		return err
	}
	before, err := c.positions(ctx)
	if err != nil {
		return err
	}
	b.writes.reset()
	b.probes.reset()
	m, err := watchMemory(c)
	if err != nil {
		return err
	}
	running.Go(func() { m.run(using) })
	begin := time.Now()
	if r.Done, err = f.attack(ctx, b, target, r); err != nil {
		return err
	}
	r.Took = time.Since(begin)
	wait(ctx, 10*writeInterval)
	b.awaitEnds(ctx)
	after, err := c.positions(ctx)
	if err != nil {
		return err
	}
	stop()
	running.Wait()
	r.Growth, r.Peak = m.growth()
	r.TCP = m.tcpPeak - m.tcpBefore
	_, r.Failed, r.TransferErr = b.transfers.counts()
	r.Writes, r.Refused, r.WriteErr = b.writes.counts()
	r.Write, r.SlowWrite = b.writes.quantile(0.99), b.writes.quantile(1)
	r.Probe, r.Transfer = b.probes.quantile(1), b.transfers.quantile(1)
	r.Probes, _, r.ProbeErr = b.probes.counts()
	r.Elections = int(after.Term-before.Term) - (r.Transfers - r.Failed - b.elected)
	r.Entries = int(after.LastIndex-before.LastIndex) - r.Writes - entriesOfTransfer*b.asked
	recorded, err := c.awaitRecords(ctx, b.asked)
	r.Missing = b.asked - recorded
	r.LogLines, r.Panics = c.logged()
	r.Logs = c.Logs()
	return err
}

// maxTransfers is how often the operator moves leadership during an attack. Each time adds a line to a node's log and a
// record to the audit log, and what Limits allows of both is a number, however long an attack takes.
const maxTransfers = 100

// attack starts the attackers, and ends them when the attack has gone on for long enough. Meanwhile the operator moves
// leadership away from the target and back.
func (f Form) attack(ctx context.Context, b *bystanders, target *proc.Node, r *Result) (tally, error) {
	ctx, cancel := context.WithTimeout(ctx, f.Limit)
	defer cancel()
	group, err := f.startAttackers(ctx, b.c, target, r)
	if err != nil {
		group.kill()
		return tally{}, errors.Join(err, group.wait())
	}
	done := make(chan error, 1)
	go func() { done <- group.wait() }()
	other := b.c.Nodes[(slices.Index(b.c.Nodes, target)+1)%len(b.c.Nodes)]
	turn := time.NewTicker(f.Hold / 4)
	defer turn.Stop()
	for turns := 0; ; turns++ {
		switch {
		case r.Held && turns >= 4:
			group.end()
			turn.Stop()
		case turns >= maxTransfers:
			turn.Stop()
		default:
			r.Transfers++
			_ = b.transfer(ctx, target, []*proc.Node{other, target}[turns%2]) // counted
		}
		select {
		case err := <-done:
			return group.sum(), err
		case <-ctx.Done():
			group.kill()
			return tally{}, errors.Join(fmt.Errorf("did not end: %w", ctx.Err()), <-done)
		case <-turn.C:
		}
	}
}

// logged returns the lines of the node that logged most, and how many nodes panicked.
func (c *cluster) logged() (lines, panics int) {
	for _, n := range c.Nodes {
		text := c.Log(n)
		lines = max(lines, strings.Count(text, "\n"))
		if strings.Contains(text, "panic") {
			panics++
		}
	}
	return lines, panics
}

// attackers are the processes of an attack.
type attackers struct {
	all []*attackerProcess
}

type attackerProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
	err   bytes.Buffer
	tally tally
}

// startAttackers starts as many processes as the limit of files requires. It returns when all are in place.
func (f Form) startAttackers(ctx context.Context, c *cluster, target *proc.Node, r *Result) (*attackers, error) {
	g := &attackers{}
	for first := 0; first < r.Size; {
		t := task{
			Attack: r.Name, First: first, Size: min(r.Size-first, perProcess(f.Files)*max(1, r.PerConn)),
			HTTP: target.HTTP, Raft: target.Raft, Etcd: c.etcd[target.ID], Tokens: c.attackers,
		}
		p, err := f.startAttacker(t)
		if err != nil {
			return g, err
		}
		g.all = append(g.all, p)
		first += t.Size
	}
	stop := context.AfterFunc(ctx, g.kill) // ends what is read below
	defer stop()
	for _, p := range g.all {
		if line, err := p.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != lineReady {
			return g, fmt.Errorf("attacker said %q: %w", line, errors.Join(err, ctx.Err()))
		}
	}
	return g, nil
}

// entriesOfTransfer are those of one transfer: a no-op, the leader-start, and the audit record.
const entriesOfTransfer = 3

func (f Form) startAttacker(t task) (*attackerProcess, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	// The processor of an attacker would be that of another machine: the nodes and their other clients come first.
	p := &attackerProcess{cmd: exec.Command("nice", "-n", "10", f.Program)}
	p.cmd.Env = append(os.Environ(), taskEnv+"="+string(text))
	p.cmd.Stderr = &p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// end makes the attackers end. wait returns then.
func (g *attackers) end() {
	for _, p := range g.all {
		_ = p.stdin.Close()
	}
}

// wait waits until all attackers have ended.
func (g *attackers) wait() (err error) {
	for _, p := range g.all {
		text, readErr := io.ReadAll(p.out)
		failed := p.cmd.Wait()
		if failed == nil {
			failed = errors.Join(readErr, json.Unmarshal(text, &p.tally))
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("attacker: %w: %s", failed, p.err.String()))
		}
	}
	return err
}

func (g *attackers) sum() tally {
	all := tally{Codes: map[int]int64{}}
	for _, p := range g.all {
		all.Open += p.tally.Open
		all.Tried += p.tally.Tried
		all.Calls += p.tally.Calls
		for code, n := range p.tally.Codes {
			all.Codes[code] += n
		}
	}
	return all
}

// kill ends attackers that still run. wait returns then.
func (g *attackers) kill() {
	for _, p := range g.all {
		_ = p.cmd.Process.Kill() // fails if it has ended
	}
}
