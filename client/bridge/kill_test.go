package bridge_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/client"
	"northstar/client/bridge"
)

// step is where a child process waits to be killed. "": nowhere.
type step string

// The steps of a process, in order.
const (
	hasRole     step = "has the role"
	hasLock     step = "has the lock"
	acts        step = "acts"
	hasStopped  step = "has stopped its work"
	hasReleased step = "has released the lock"
)

// at prints the name of the step and waits to be killed, if this is the step.
func (h step) at(now step) {
	if h == now {
		fmt.Println(now)
		select {}
	}
}

func (h step) elector(e client.Elector) client.Elector { return haltingElector{e, h} }

type haltingElector struct {
	client.Elector
	halt step
}

func (e haltingElector) Campaign(ctx context.Context) (*client.Leadership, error) {
	l, err := e.Elector.Campaign(ctx)
	if err == nil {
		e.halt.at(hasRole)
	}
	return l, err
}

func (h step) lock(l bridge.Lock) bridge.Lock { return haltingLock{l, h} }

type haltingLock struct {
	bridge.Lock
	halt step
}

func (l haltingLock) Acquire(ctx context.Context) (*client.Deadline, func(context.Context) error, error) {
	held, release, err := l.Lock.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	l.halt.at(hasLock)
	return held, func(ctx context.Context) error {
		l.halt.at(hasStopped)
		err := release(ctx)
		l.halt.at(hasReleased)
		return err
	}, nil
}

// child is a process of a fleet. Without a step to wait at, it acts until its gate is closed.
func child(text string) error {
	var c candidacy
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	e, closeElector, err := c.elector()
	if err != nil {
		return err
	}
	defer closeElector()
	l, err := e.Campaign(context.Background())
	if err != nil {
		return err
	}
	if c.Halt == "" {
		hold(l)
		return nil
	}
	c.Halt.at(acts)
	return errors.Join(l.Resign(context.Background()), fmt.Errorf("step %q was not reached", c.Halt))
}

// startChild starts a child process, which ends with the test at the latest. It returns the lines that it prints.
func startChild(t *testing.T, c candidacy) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asHolder+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewScanner(out)
}

// killed is a process that is killed at a step, and the process of a neighbouring phase that runs beside it.
type killed struct {
	phase bridge.Phase
	halt  step
	other bridge.Phase // old: a process of today
	// excludes reports whether no other process may act before the kill.
	excludes bool
}

func killedProcesses() (all []killed) {
	for _, s := range []step{hasLock, acts, hasStopped, hasReleased} {
		all = append(all, killed{bridge.PhaseOld, s, bridge.PhaseOld, s != hasReleased})
	}
	for _, s := range []step{hasRole, hasLock, acts, hasStopped, hasReleased} {
		holdsLock := s != hasRole && s != hasReleased
		all = append(all, killed{bridge.PhaseBoth, s, bridge.PhaseOld, holdsLock},
			killed{bridge.PhaseBoth, s, bridge.PhaseNew, true})
	}
	return append(all, killed{bridge.PhaseNew, hasRole, bridge.PhaseNew, true})
}

// A process is killed after each of its steps, beside one in phase both and one in a neighbouring phase. What the dead
// process held excludes the others until then, and comes free afterwards: the lock for a process of today, and the role
// for the others.
func TestPostgres_KilledAfterEachStep(t *testing.T) {
	t.Parallel()
	s := start(t)
	for i, k := range killedProcesses() {
		t.Run(fmt.Sprintf("%v, %s, beside %v", k.phase, k.halt, k.other), func(t *testing.T) {
			t.Parallel()
			s := s
			s.role, s.key = fmt.Sprintf("killed-%d", i), int64(i+1)
			k.kill(t, s)
		})
	}
}

func (k killed) kill(t *testing.T, s systems) {
	c := s.candidacy(k.phase)
	c.Halt = k.halt
	victim, lines := startChild(t, c)
	if !lines.Scan() || lines.Text() != string(k.halt) {
		t.Fatalf("the child prints %q", lines.Text())
	}
	rec := newRecorder(t)
	if k.excludes {
		rec.acting["the killed process"] = true // the others see that it may act
	}
	s.moved(t, rec, "second", bridge.PhaseBoth)
	var other member
	if k.other == bridge.PhaseOld {
		other = s.legacy(t, rec, "today (old)")
	} else {
		other = s.moved(t, rec, "third", k.other)
	}
	if k.excludes { // time for mistakes
		select {
		case name := <-rec.began:
			t.Errorf("%s acts before the kill", name)
		case <-time.After(2 * today):
		}
	}
	_ = victim.Process.Kill()
	_ = victim.Wait()
	rec.mu.Lock()
	delete(rec.acting, "the killed process")
	rec.mu.Unlock()
	rec.actor()

	other.end()
	for began := time.Now(); ; <-time.After(5 * time.Millisecond) {
		if name := rec.actor(); strings.HasPrefix(name, "second") {
			break
		} else if time.Since(began) > limit {
			t.Fatalf("only %s acts", name)
		}
	}
}
