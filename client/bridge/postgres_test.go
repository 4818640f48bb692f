package bridge_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/client"
	"northstar/client/bridge"
)

// A fleet of three processes moves from its own advisory lock to a role, and back, one process at a time. Meanwhile the
// leader of the cluster is killed, and so is the session of the lock's holder. No two processes act at the same time.
func TestPostgres_Move(t *testing.T) {
	t.Parallel()
	s, rec := start(t), newRecorder(t)
	fleet := make([]member, 3)
	for i := range fleet {
		fleet[i] = s.legacy(t, rec, fmt.Sprintf("p%d (legacy)", i))
	}
	rec.next("the start")
	for _, phase := range []bridge.Phase{
		bridge.PhaseOld, bridge.PhaseBoth, bridge.PhaseNew, bridge.PhaseBoth, bridge.PhaseOld,
	} {
		for i := range fleet {
			fleet[i].end()
			fleet[i] = s.moved(t, rec, fmt.Sprintf("p%d", i), phase)
			if i != 1 {
				continue
			}
			// A mixed fleet: in either phase.
			n := s.leader(t)
			n.Kill()
			rec.actor()
			s.killHolder(t)
			rec.actor()
			if err := s.cluster.StartNode(n); err != nil {
				t.Fatal(err)
			}
			s.leader(t)
		}
		actor := rec.actor()
		t.Logf("%s acts", actor)
		if !strings.HasSuffix(actor, fmt.Sprintf("(%v)", phase)) {
			t.Errorf("%s acts after the step to phase %v", actor, phase)
		}
		s.killHolder(t)
		rec.actor()
	}
}

// While the database is away, no process in phase both acts, and those in phase new do.
func TestPostgres_ServerDown(t *testing.T) {
	t.Parallel()
	s, rec := start(t), newRecorder(t)
	first := s.moved(t, rec, "first", bridge.PhaseBoth)
	rec.next("the first process")
	s.moved(t, rec, "second", bridge.PhaseNew)
	if err := s.server.Down(); err != nil {
		t.Fatal(err)
	}
	if name := rec.next("the database is away"); name != "second (new)" {
		t.Errorf("%s acts without the database", name)
	}
	if err := s.server.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if name := rec.actor(); name != "second (new)" {
		t.Errorf("%s acts", name)
	}
	first.end()
}

// An operator takes the role from its holder, which is in phase both. A process in phase old does not act before the
// holder has stopped.
func TestPostgres_RoleRevoked(t *testing.T) {
	t.Parallel()
	s, rec := start(t), newRecorder(t)
	s.moved(t, rec, "first", bridge.PhaseBoth)
	rec.next("the first process")
	s.legacy(t, rec, "legacy")
	s.moved(t, rec, "second", bridge.PhaseBoth)
	for range 3 {
		acting := rec.actor()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete,
			"http://"+s.cluster.Nodes[0].HTTP+"/admin/roles/"+s.role, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if acting == "legacy" {
			break // it needs no role
		}
		rec.next("the role was revoked")
	}
}

// hold acts until its gate is closed, and prints when it was open last.
func hold(l *client.Leadership) {
	var gate client.Gate
	gate.Bind(l)
	clock := client.NewDeadline(nil)
	last := clock.Now() // before the token is printed: the parent may stop this process right after that
	fmt.Println(l.Token)
	for {
		now := clock.Now()
		if gate.Require() != nil {
			fmt.Println(int64(last))
			return
		}
		last = now
	}
}

// A process that holds both and is stopped does not act when it continues. Meanwhile another process acts, in phase
// old, both or new.
func TestPostgres_PausedProcess(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, phase := range []bridge.Phase{bridge.PhaseOld, bridge.PhaseBoth, bridge.PhaseNew} {
		cmd, lines := startChild(t, s.candidacy(bridge.PhaseBoth))
		number := func() int64 {
			t.Helper()
			if !lines.Scan() {
				t.Fatal("the holder ends")
			}
			n, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		token := number()
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		l := s.campaign(t, phase)
		elected := int64(client.NewDeadline(nil).Now())
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if last := number(); last >= elected {
			t.Errorf("the stopped process acts %v after a process in phase %v", time.Duration(last-elected), phase)
		}
		if phase != bridge.PhaseOld && l.Token <= uint64(token) {
			t.Errorf("token %d after %d", l.Token, token)
		}
		if err := l.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func (s systems) campaign(t *testing.T, phase bridge.Phase) *client.Leadership {
	t.Helper()
	e, closeElector, err := s.candidacy(phase).elector()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeElector)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	l, err := e.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
