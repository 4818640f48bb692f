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

// candidateEnv makes the test program a candidate: a process that can be killed and
// stopped like any other. It holds what the candidate is to do.
const candidateEnv = "NORTHSTAR_TEST_CANDIDATE"

// candidateTask is what a candidate is notified.
type candidateTask struct {
	Name      string
	Endpoints []string
	Via       map[string]string // relay of each node
	Role      string
	TTL       time.Duration
	Grace     time.Duration // not 0: attached
	HoldMost  time.Duration
}

// sighting is one line that a candidate says. Times are of CLOCK_BOOTTIME, which all
// processes of a machine share.
type sighting struct {
	Kind    string // won, until, wrote or early
	Session string
	Token   uint64
	Asked   time.Duration // won: when the campaign began
	At      time.Duration // won: since when; wrote: when it began; early: when it was noticed
	Until   time.Duration // until, early: the deadline of its session; wrote: when it was answered
}

const (
	kindWon   = "won"
	kindUntil = "until"
	kindWrote = "wrote"
	kindEarly = "early"
	kindGave  = "gave" // the role back: from At on
)

// bootTime is the clock of client deadlines.
var bootTime = client.NewDeadline(nil).Now

// teller reports sightings, one a line.
type teller struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (s *teller) say(v sighting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(v) // whoever does not hear it finds nothing to check
}

// runCandidate campaigns, holds the role for a while, writes with its token, also
// when its time is over, and returns it back, or lets its session end, until its input
// ends.
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
	says := &teller{out: json.NewEncoder(os.Stdout)}
	for ctx.Err() == nil {
		k, err := c.NewCandidate(client.CandidateConfig{Role: t.Role, Session: client.SessionConfig{Name: t.Name, TTL: t.TTL, Attach: t.Grace > 0, Grace: t.Grace}})
		if err != nil {
			return err
		}
		standAgain(ctx, c, k, t, says)
	}
	return nil
}

// standAgain is the life of one candidate, of a few tenures.
func standAgain(ctx context.Context, c *client.Client, k *client.Candidate, t candidateTask, says *teller) {
	for range 1 + rand.IntN(4) {
		asked := bootTime()
		l, err := k.Campaign(ctx)
		if err != nil {
			return
		}
		says.say(sighting{Kind: kindWon, Session: l.Session, Token: l.Token, Asked: asked, At: bootTime()})
		closing := make(chan struct{})
		var looking sync.WaitGroup
		looking.Go(func() { lookAfter(k.Session(), l, closing, says) })
		holdRole(ctx, c, l, t, says)
		close(closing)
		looking.Wait() // its last word comes before this one
		says.say(sighting{Kind: kindGave, Session: l.Session, Token: l.Token, At: bootTime()})
		leave, cancel := context.WithTimeout(ctx, t.TTL)
		if rand.IntN(3) > 0 {
			_ = l.Resign(leave) // the session ends on its own then
		}
		cancel()
		if rand.IntN(2) == 0 {
			fenced(ctx, c, l, says) // one that does not know that its time is over, or does not care
		}
	}
	leave, cancel := context.WithTimeout(ctx, t.TTL)
	defer cancel()
	_ = k.Close(leave)
}

// lookAfter reports each new deadline of a tenure, and when the cluster ends its session
// before that.
func lookAfter(s *client.Session, l *client.Leadership, closing <-chan struct{}, says *teller) {
	const look = 2 * time.Millisecond
	until := time.Duration(0)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-s.Done():
			if now := bootTime(); now < until && errors.Is(s.Err(), client.ErrSessionEnded) {
				says.say(sighting{Kind: kindEarly, Session: l.Session, Token: l.Token, At: now, Until: until})
			}
			return
		case <-closing:
			return
		case <-tick.C:
		}
		now := bootTime()
		if d := now + l.ValidFor(); d > now && d > until+look {
			until = d
			says.say(sighting{Kind: kindUntil, Session: l.Session, Token: l.Token, Until: d})
		}
	}
}

// holdRole writes with the token while the tenure lasts, for a random time at most.
func holdRole(ctx context.Context, c *client.Client, l *client.Leadership, t candidateTask, says *teller) {
	ctx, cancel := l.Context(ctx, 0)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, rand.N(t.HoldMost))
	defer cancel()
	for ctx.Err() == nil {
		fenced(ctx, c, l, says)
		pause(rand.N(20 * time.Millisecond))
	}
}

// fenced writes once with the token of a tenure.
func fenced(ctx context.Context, c *client.Client, l *client.Leadership, says *teller) {
	begin := bootTime()
	if fencedWrite(ctx, c, l.Role, l.Token) == nil {
		says.say(sighting{Kind: kindWrote, Session: l.Session, Token: l.Token, At: begin, Until: bootTime()})
	}
}

func fencedWrite(ctx context.Context, c *client.Client, role string, token uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := c.Put(ctx, "fenced", fmt.Append(nil, token), client.WriteOptions{Fence: &client.Fence{Role: role, Token: token}})
	return err
}

// asCandidate makes this process one, if it was started as one.
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
