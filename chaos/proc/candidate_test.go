package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"northstar/client"
)

// candidateEnv makes the test program a candidate: a process that can be killed and stopped like any other. Its value
// is the candidate's task.
const candidateEnv = "NORTHSTAR_TEST_CANDIDATE"

// candidateTask is the task of a candidate.
type candidateTask struct {
	Name      string
	Endpoints []string
	Via       map[string]string // address of the relay to each node
	Role      string
	TTL       time.Duration
	Grace     time.Duration // not 0: attached session
	HoldMost  time.Duration
}

// report is one line of a candidate's output. Times are of CLOCK_BOOTTIME, which all processes of a machine share.
type candidateReport struct {
	Kind    string // won, until, wrote or early
	Session string
	Token   uint64
	Asked   time.Duration // won: when the campaign began
	// won: the start of the tenure; wrote: the start of the write; early: when the loss was noticed
	At    time.Duration
	Until time.Duration // until, early: the deadline of its session; wrote: the time of the response
}

const (
	kindWon      = "won"
	kindUntil    = "until"
	kindWrote    = "wrote"
	kindEarly    = "early"
	kindReleased = "gave" // released the role at At
)

// bootTime is the clock of client deadlines.
var bootTime = client.NewDeadline(nil).Now

// reporter writes reports, one a line.
type reporter struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (s *reporter) send(v candidateReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(v) // without a reader there is nothing to check
}

// runCandidate campaigns, holds the role for a while, and writes with its token, also after its tenure. It then
// releases the role or lets its session end. It returns when its input ends.
func runCandidate(task string) error {
	var t candidateTask
	if err := json.Unmarshal([]byte(task), &t); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	c, err := client.New(client.Config{Endpoints: t.Endpoints, Dial: through(t.Via)})
	if err != nil {
		return err
	}
	defer c.Close()
	reports := &reporter{out: json.NewEncoder(os.Stdout)}
	for ctx.Err() == nil {
		k, err := c.NewCandidate(client.CandidateConfig{Role: t.Role, Session: client.SessionConfig{
			Name: t.Name,
			TTL:  t.TTL, Attach: t.Grace > 0, Grace: t.Grace,
		}})
		if err != nil {
			return err
		}
		campaignRepeatedly(ctx, c, k, t, reports)
	}
	return nil
}

// campaignRepeatedly is the life of one candidate, with a few tenures.
func campaignRepeatedly(ctx context.Context, c *client.Client, k *client.Candidate, t candidateTask,
	reports *reporter,
) {
	for range 1 + rand.IntN(4) {
		asked := bootTime()
		l, err := k.Campaign(ctx)
		if err != nil {
			return
		}
		reports.send(candidateReport{Kind: kindWon, Session: l.Session, Token: l.Token, Asked: asked, At: bootTime()})
		closing := make(chan struct{})
		var looking sync.WaitGroup
		looking.Go(func() { watchTenure(k.Session(), l, closing, reports) })
		holdRole(ctx, c, l, t, reports)
		close(closing)
		looking.Wait() // its last report comes before the next one
		reports.send(candidateReport{Kind: kindReleased, Session: l.Session, Token: l.Token, At: bootTime()})
		leave, cancel := context.WithTimeout(ctx, t.TTL)
		if rand.IntN(3) > 0 {
			_ = l.Resign(leave) // the session then ends by its TTL
		}
		cancel()
		if rand.IntN(2) == 0 {
			fenced(ctx, c, l, reports) // a client that does not know, or ignores, that its tenure is over
		}
	}
	leave, cancel := context.WithTimeout(ctx, t.TTL)
	defer cancel()
	_ = k.Close(leave)
}

// watchTenure reports each new deadline of a tenure, and whether the cluster ends its session before the deadline.
func watchTenure(s *client.Session, l *client.Leadership, closing <-chan struct{}, reports *reporter) {
	const look = 2 * time.Millisecond
	until := time.Duration(0)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-s.Done():
			if now := bootTime(); now < until && errors.Is(s.Err(), client.ErrSessionEnded) {
				reports.send(candidateReport{
					Kind: kindEarly, Session: l.Session, Token: l.Token, At: now,
					Until: until,
				})
			}
			return
		case <-closing:
			return
		case <-tick.C:
		}
		now := bootTime()
		if d := now + l.ValidFor(); d > now && d > until+look {
			until = d
			reports.send(candidateReport{Kind: kindUntil, Session: l.Session, Token: l.Token, Until: d})
		}
	}
}

// holdRole writes with the token during the tenure, for a random time at most.
func holdRole(ctx context.Context, c *client.Client, l *client.Leadership, t candidateTask, reports *reporter) {
	ctx, cancel := l.Context(ctx, 0)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, rand.N(t.HoldMost))
	defer cancel()
	for ctx.Err() == nil {
		fenced(ctx, c, l, reports)
		pause(rand.N(20 * time.Millisecond))
	}
}

// fenced writes once with the token of a tenure.
func fenced(ctx context.Context, c *client.Client, l *client.Leadership, reports *reporter) {
	begin := bootTime()
	if fencedWrite(ctx, c, l.Role, l.Token) == nil {
		reports.send(candidateReport{Kind: kindWrote, Session: l.Session, Token: l.Token, At: begin, Until: bootTime()})
	}
}

func fencedWrite(ctx context.Context, c *client.Client, role string, token uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := c.Put(ctx, "fenced", fmt.Append(nil, token),
		client.WriteOptions{Fence: &client.Fence{Role: role, Token: token}})
	return err
}

// asCandidate turns this process into a candidate if it was started as one.
func asCandidate() (code int, is bool) {
	task, is := os.LookupEnv(candidateEnv)
	if !is {
		return 0, false
	}
	if err := runCandidate(task); err != nil && !strings.Contains(err.Error(), "canceled") {
		fmt.Fprintln(os.Stderr, "candidate:", err)
		return 1, true
	}
	return 0, true
}
