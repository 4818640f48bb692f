package proc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/testenv"
	"northstar/client"
)

// clientOf returns a Go client of a cluster; it closes with the test.
func clientOf(t *testing.T, c *Cluster) *client.Client {
	t.Helper()
	made, err := client.New(client.Config{Endpoints: httpAddrs(c)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Close)
	return made
}

func httpAddrs(c *Cluster) (all []string) {
	for _, n := range c.Nodes {
		all = append(all, n.HTTP)
	}
	return all
}

// bareSession starts a session that no client renews.
func bareSession(t *testing.T, c *client.Client, ttl time.Duration) string {
	t.Helper()
	millis := ttl.Milliseconds()
	made, err := c.CreateSession(t.Context(), apiv1.SessionCreate{TTLMS: &millis})
	if err != nil {
		t.Fatal(err)
	}
	return made.SessionID
}

// nextTTL is the TTL of a session that must not end in a test, although this process may not run for many seconds on a
// busy machine, and renews nothing then.
const nextTTL = 5 * time.Minute

// holdsRole elects a session that no client renews. If the session ends before that, on a slow machine, another one
// begins.
func holdsRole(t *testing.T, c *client.Client, role string, ttl time.Duration) (session string, won apiv1.Role) {
	t.Helper()
	eventually(t, soon, func() error {
		session = bareSession(t, c, ttl)
		var err error
		won, err = c.CampaignRole(t.Context(), role, apiv1.Campaign{SessionID: session, WaitMS: apiv1.MaxWaitMS})
		if err != nil && !errors.Is(err, client.ErrSessionEnded) {
			t.Fatal(err)
		}
		return err
	})
	return session, won
}

// contended is a role that a session without renewals holds. Another session waits for it.
type contended struct {
	role, holder string
	token        uint64
	renewed      time.Time // before the holder's only renewal: it holds the role for a TTL from then on
	next         string    // the session that waits
	waiting      <-chan elected
}

// contend makes next wait for a role that it has let another session hold. The holder is renewed then; if it has ended
// before, on a slow machine, another one begins.
func contend(t *testing.T, c *client.Client, role, next string, ttl time.Duration) contended {
	t.Helper()
	k := contended{role: role, next: next}
	eventually(t, soon, func() error {
		var won apiv1.Role
		k.holder, won = holdsRole(t, c, role, ttl)
		k.token, k.waiting = won.Token, campaign(t.Context(), c, role, next)
		queued(t, c, role, next)
		k.renewed = time.Now()
		_, err := c.RenewSession(t.Context(), k.holder)
		switch {
		case errors.Is(err, client.ErrSessionEnded):
			k.giveUp(t, c)
		case err != nil:
			t.Fatal(err)
		}
		return err
	})
	return k
}

// giveUp makes the session that waits leave the role, once it has been elected.
func (k contended) giveUp(t *testing.T, c *client.Client) {
	t.Helper()
	if now := <-k.waiting; now.err != nil {
		t.Fatal(now.err)
	}
	if _, err := c.ResignRole(t.Context(), k.role, k.next); err != nil {
		t.Fatal(err)
	}
}

// queued waits until a session is in a role's queue, or holds the role.
func queued(t *testing.T, c *client.Client, role, session string) {
	t.Helper()
	eventually(t, soon, func() error {
		r, err := c.GetRole(t.Context(), role)
		if err == nil && r.SessionID != session &&
			!slices.ContainsFunc(r.Candidates, func(k apiv1.RoleCandidate) bool { return k.SessionID == session }) {
			err = fmt.Errorf("session %s does not wait: %+v", session, r)
		}
		return err
	})
}

type elected struct {
	role apiv1.Role
	at   time.Time
	err  error
}

// campaign campaigns in the background.
func campaign(ctx context.Context, c *client.Client, role, session string) <-chan elected {
	done := make(chan elected, 1)
	go func() {
		r, err := c.CampaignRole(ctx, role, apiv1.Campaign{SessionID: session, WaitMS: apiv1.MaxWaitMS})
		done <- elected{r, time.Now(), err}
	}()
	return done
}

// A leader is stopped, and resumed after another node leads and the role of one of its sessions has a new holder. It
// renews nothing and accepts no write with the old token. That holds for requests in its sockets, for requests that a
// follower had forwarded, and for new ones.
func TestDeposedLeaderRenewsNothing(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	c := newCluster(t, 3, "--election-timeout-min", "400ms", "--election-timeout-max", "800ms",
		"--failover-takeover-delay", "1h")
	start(t, c)
	acquainted(t, c)
	cl := clientOf(t, c)
	next, err := cl.NewSession(t.Context(), client.SessionConfig{TTL: nextTTL})
	if err != nil {
		t.Fatal(err)
	}
	old, k := pausedWithHolder(t, c, cl, next.ID(), ttl)
	via := others(c, old)[0]
	holder, fence := k.holder, fmt.Sprintf("r=%d", k.token)
	late := func(n *Node) []<-chan answered {
		return []<-chan answered{
			ask(t, n, http.MethodPost, "/v1/sessions/"+holder+"/renew", ""),
			ask(t, n, http.MethodPost, "/v1/sessions/renew", fmt.Sprintf(`{"session_ids":[%q]}`, holder)),
			ask(t, n, http.MethodPut, "/v1/kv/fenced", "old", "X-Northstar-Fence", fence),
		}
	}
	inSockets := late(old)
	passedOn := ask(t, via, http.MethodPut, "/v1/kv/fenced", "old", "X-Northstar-Fence", fence)
	electedWithout(t, c, old)
	var now elected
	select {
	case now = <-k.waiting:
	case <-time.After(soon):
		t.Fatal("nobody holds the role")
	}
	if now.err != nil || now.role.Token <= k.token {
		t.Fatalf("%+v after token %d", now, k.token)
	}
	if _, err := cl.Put(t.Context(), "fenced", []byte("new"),
		client.WriteOptions{Fence: &client.Fence{Role: "r", Token: now.role.Token}}); err != nil {
		t.Fatal(err)
	}
	<-passedOn // the new leader may have applied it during the old tenure
	if err := old.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for i, sent := range append(inSockets, late(old)...) {
		a := <-sent
		renewedNone := a.err == nil && strings.Contains(string(a.Body), `"renewed":[]`)
		if a.err == nil && a.Status == http.StatusOK && !renewedNone {
			t.Errorf("request %d was answered %d %s by a leader that had been deposed", i, a.Status, a.Body)
		}
		if i%3 == 2 && (a.err != nil || a.Code != 4011 && a.Code != 4002 && a.Code != 4004) {
			t.Errorf("a write with the old token: %d %s %v", a.Status, a.Body, a.err)
		}
	}
	if got := mustGet(t, c, "fenced"); string(got.Body) != "new" {
		t.Errorf("the key is %q", got.Body)
	}
	if r, err := cl.GetRole(t.Context(), "r"); err != nil || r.Token != now.role.Token {
		t.Errorf("the role is of %+v, %v", r, err)
	}
}

// pausedWithHolder pauses the leader of a cluster while a session without renewals holds the role "r", for which next
// waits. If the session may have ended before the pause, on a slow machine, it resumes the leader and begins again.
func pausedWithHolder(t *testing.T, c *Cluster, cl *client.Client, next string, ttl time.Duration) (paused *Node,
	k contended,
) {
	t.Helper()
	eventually(t, soon, func() error {
		steady(t, c)
		k = contend(t, cl, "r", next, ttl)
		paused = leader(t, c)
		if err := paused.Pause(); err != nil {
			t.Fatal(err)
		}
		late := time.Since(k.renewed) - ttl
		if late < 0 {
			return nil
		}
		if err := paused.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		k.giveUp(t, cl)
		return fmt.Errorf("the leader was paused %v after the end of the holder's TTL", late)
	})
	return paused, k
}

type answered struct {
	answer
	err error
}

// ask sends a request in the background. It is sent when this returns, or soon after. The kernel accepts it even for a
// stopped process.
func ask(t *testing.T, n *Node, method, path, body string, header ...string) <-chan answered {
	done := make(chan answered, 1)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	go func() {
		defer cancel()
		a, err := do(ctx, n, method, path, []byte(body), append(header, "Content-Type", apiv1.TypeJSON)...)
		done <- answered{a, err}
	}()
	return done
}

// A role is free again within a TTL and a second. The time counts from its holder's last renewal or from the last
// leader change. That holds if the holder crashes or hangs, and if the leader crashes with it. Not parallel: it
// measures that second.
func TestVacancyIsBounded(t *testing.T) {
	const ttl = time.Second
	c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", "400ms",
		"--election-timeout-max", "800ms")
	start(t, c)
	acquainted(t, c)
	cl := clientOf(t, c)
	next, err := cl.NewSession(t.Context(), client.SessionConfig{TTL: nextTTL})
	if err != nil {
		t.Fatal(err)
	}
	for _, with := range []struct {
		name string
		hit  func(leader *Node) (since time.Time)
	}{
		{"the holder falls silent", func(*Node) time.Time { return time.Now() }},
		{"the leader dies with it", func(l *Node) time.Time {
			l.Kill()
			electedWithout(t, c, l)
			since := time.Now()
			if err := c.StartNode(l); err != nil {
				t.Fatal(err)
			}
			return since
		}},
		{"the leader hangs with it", func(l *Node) time.Time {
			if err := l.Pause(); err != nil {
				t.Fatal(err)
			}
			electedWithout(t, c, l)
			since := time.Now()
			if err := l.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			return since
		}},
	} {
		t.Run(with.name, func(t *testing.T) {
			l := steady(t, c)
			k := contend(t, cl, "r", next.ID(), ttl)
			late := lateness()
			since := with.hit(l)
			now := <-k.waiting
			if now.err != nil || now.role.Token <= k.token {
				t.Fatalf("%+v after token %d", now, k.token)
			}
			slack := late()
			vacant := now.at.Sub(since)
			t.Logf("held again after %v, timers were late by %v", vacant, slack)
			if vacant > ttl+testenv.Slowdown()*time.Second+slack {
				t.Errorf("the next one was elected after %v", vacant)
			}
			if early := now.at.Sub(k.renewed); early < ttl {
				t.Errorf("the next one was elected %v after a renewal", early)
			}
			if _, err := cl.ResignRole(t.Context(), "r", next.ID()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// lateness measures how late a short timer fires, until it is asked. An overloaded machine is not a fault of the
// cluster.
func lateness() (worst func() time.Duration) {
	const look = 5 * time.Millisecond
	stop, result := make(chan struct{}), make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for {
			from := time.Now()
			select {
			case <-stop:
				result <- most
				return
			case <-time.After(look):
				most = max(most, time.Since(from)-look)
			}
		}
	}()
	return func() time.Duration { close(stop); return <-result }
}

// Sessions that are renewed, or attached, outlive every node. Not parallel: this process must renew them in time.
func TestRenewedSessionsOutliveEveryNode(t *testing.T) {
	ttl := testenv.Slowdown() * 2 * time.Second
	c := newCluster(t, 3, "--failover-takeover-delay", "1h")
	start(t, c)
	acquainted(t, c)
	cl := clientOf(t, c)
	sessions := make([]*client.Session, 20)
	for i := range sessions {
		var err error
		if sessions[i], err = cl.NewSession(t.Context(), client.SessionConfig{TTL: ttl, Attach: i%2 == 0}); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		n.Kill()
		mustPut(t, c, "k", n.ID)
		if err := c.StartNode(n); err != nil {
			t.Fatal(err)
		}
		steady(t, c)
	}
	for _, s := range sessions {
		if err := s.Err(); err != nil {
			t.Errorf("session %s: %v", s.ID(), err)
		}
		if _, err := cl.GetSession(t.Context(), s.ID()); err != nil {
			t.Errorf("session %s: %v", s.ID(), err)
		}
		if err := s.Close(t.Context()); err != nil && !errors.Is(err, client.ErrSessionEnded) {
			t.Errorf("session %s: %v", s.ID(), err)
		}
	}
}
