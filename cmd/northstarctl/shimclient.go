package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"northstar/client"
)

// shimTimeout is how long a keeper may take over a word.
const shimTimeout = time.Second

// shimHandle is a keeper at work, as run sees it.
type shimHandle struct {
	cmd           *exec.Cmd
	commands      *os.File
	reports       <-chan exitReport // one, and closed at the keeper's end
	deadline      time.Duration     // as last told
	stopRequested bool              // for the lease's sake
}

// runOnce runs the command until it has ended. The error is that it had no keeper, or
// that this was killed.
func (s *supervisor) runOnce(l *client.Leadership) (exitReport, error) {
	k, err := s.startShim(l)
	if err != nil {
		return exitReport{}, err
	}
	ended := false
	defer func() { k.close(ended) }()
	look := time.NewTicker(min(suspendPollInterval, s.TTL/20))
	defer look.Stop()
	lost := l.Done()
	for {
		select {
		case rep, ok := <-k.reports:
			switch {
			case !ok && k.stopRequested:
				return exitReport{Stopped: true}, nil
			case !ok:
				return exitReport{}, errors.New("the keeper of the command was killed, and the command with it")
			}
			ended = true
			return rep, nil
		case <-lost:
			lost, k.stopRequested = nil, true
			k.send(shimCommand{Stop: true})
		case sig := <-s.signals:
			s.terminating = s.terminating || terminatingSignals[sig]
			k.send(shimCommand{Signal: sig.(syscall.Signal)})
		case <-look.C:
			s.extendLease(k, l)
		}
	}
}

// extendLease passes a lease that was renewed on to the keeper, and does the keeper's work
// should that not: it is stopped, perhaps.
func (s *supervisor) extendLease(k *shimHandle, l *client.Leadership) {
	now := s.clock() // first, so that what is left is counted from too early
	if left := l.ValidFor(); left > 0 && now+left > k.deadline {
		k.deadline = now + left
		k.send(shimCommand{Deadline: k.deadline})
	}
	if now > k.deadline-s.effectiveKillMargin()/2 {
		k.stopRequested = true
		k.kill()
	}
}

// effectiveKillMargin is the time between SIGKILL and the end of the lease.
func (s *supervisor) effectiveKillMargin() time.Duration { return min(killMargin, s.TTL/20) }

// startShim starts a keeper with the command.
func (s *supervisor) startShim(l *client.Leadership) (*shimHandle, error) {
	ordersR, ordersW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ordersR.Close()
	reportsR, reportsW, err := os.Pipe()
	if err != nil {
		ordersW.Close()
		return nil, err
	}
	defer reportsW.Close()
	cmd := exec.Command("/proc/self/exe", "keep")
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.a.stdin, s.a.stdout, s.a.stderr
	cmd.ExtraFiles = []*os.File{ordersR, reportsW} // commandFD, reportFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		ordersW.Close()
		reportsR.Close()
		return nil, fmt.Errorf("start the keeper of the command: %w", err)
	}
	reports := make(chan exitReport)
	go func() {
		defer close(reports)
		defer reportsR.Close()
		var rep exitReport
		if json.NewDecoder(reportsR).Decode(&rep) == nil {
			reports <- rep
		}
	}()
	now := s.clock()
	k := &shimHandle{cmd: cmd, commands: ordersW, reports: reports, deadline: now + l.ValidFor()}
	k.send(shimConfig{
		Path: s.path, Args: s.Cmd, Deadline: k.deadline, Stop: s.StopTimeout, Kill: s.effectiveKillMargin(), Release: s.release(l),
		Env: append(os.Environ(), "NORTHSTAR_ROLE="+s.Role, "NORTHSTAR_FENCING_TOKEN="+strconv.FormatUint(l.Token, 10), "NORTHSTAR_SESSION="+l.Session),
	})
	return k, nil
}

// send ends a keeper that takes no orders.
func (k *shimHandle) send(v any) {
	_ = k.commands.SetWriteDeadline(time.Now().Add(shimTimeout))
	if err := json.NewEncoder(k.commands).Encode(v); err != nil {
		k.kill()
	}
}

// effectiveKillMargin ends the keeper at once; the kernel ends the command with it, and end the
// rest.
func (k *shimHandle) kill() { _ = k.cmd.Process.Kill() } // it may be gone already

// close returns when the keeper is gone, and the command with it: that has ended, or
// its keeper was killed.
func (k *shimHandle) close(ended bool) {
	if !ended {
		k.kill()
	}
	k.commands.Close()
	late := time.AfterFunc(shimTimeout, k.kill)
	for range k.reports {
	}
	_ = k.cmd.Wait() // the reports say it
	late.Stop()
	killChildren() // of a keeper that was killed
}
