package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"northstar/client"
)

// shimTimeout bounds a message to the shim, and its exit.
const shimTimeout = time.Second

// shimHandle is run's handle of a shim.
type shimHandle struct {
	cmd           *exec.Cmd
	commands      *os.File
	reports       <-chan exitReport // one report; closed when the shim has exited
	deadline      time.Duration     // as last sent
	stopRequested bool              // stopped because of the lease
}

// runOnce runs the command until it exits. The error means that the shim could not be started or was killed, or, if it
// is an *outlivedError, that processes of the command still run.
func (s *supervisor) runOnce(l *client.Leadership) (rep exitReport, err error) {
	k, err := s.startShim(l)
	if err != nil {
		return exitReport{}, err
	}
	exited := false
	defer func() {
		if left := k.close(exited, &s.a.own); left != nil {
			rep, err = exitReport{}, left
		}
	}()
	poll := time.NewTicker(min(suspendPollInterval, s.TTL/20))
	defer poll.Stop()
	lost := l.Done()
	for {
		select {
		case rep, ok := <-k.reports:
			switch {
			case !ok && k.stopRequested:
				return exitReport{Code: 128 + int(syscall.SIGKILL), Stopped: true}, nil
			case !ok:
				return exitReport{}, errors.New("supervisor shim was killed and the command terminated")
			}
			exited = true
			return rep, nil
		case <-lost:
			lost, k.stopRequested = nil, true
			k.send(shimCommand{Stop: true})
		case sig := <-s.signals:
			s.terminating = s.terminating || terminatingSignals[sig]
			k.send(shimCommand{Signal: sig.(syscall.Signal)})
		case <-poll.C:
			s.extendLease(k, l)
		}
	}
}

// extendLease sends a renewed lease to the shim. If the shim does not act before the deadline, for example because
// it is stopped, extendLease kills it.
func (s *supervisor) extendLease(k *shimHandle, l *client.Leadership) {
	now := s.clock() // read before ValidFor, so that the deadline is not too late
	if left := l.ValidFor(); left > 0 && now+left > k.deadline {
		k.deadline = now + left
		k.send(shimCommand{Deadline: k.deadline})
	}
	if now > k.deadline-killTime(s.TTL)/2 {
		k.stopRequested = true
		k.kill()
	}
}

// killTime returns the time between the forced end of a holder's work and the end of its lease.
func killTime(ttl time.Duration) time.Duration { return min(killMargin, ttl/20) }

// startShim starts a shim with the command.
func (s *supervisor) startShim(l *client.Leadership) (*shimHandle, error) {
	commandsR, commandsW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer commandsR.Close()
	reportsR, reportsW, err := os.Pipe()
	if err != nil {
		commandsW.Close()
		return nil, err
	}
	defer reportsW.Close()
	cmd := exec.Command("/proc/self/exe", "shim")
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.a.stdin, s.a.stdout, s.a.stderr
	cmd.ExtraFiles = []*os.File{commandsR, reportsW} // commandFD, reportFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.a.own.start(cmd); err != nil {
		commandsW.Close()
		reportsR.Close()
		return nil, fmt.Errorf("start the supervisor shim: %w", err)
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
	k := &shimHandle{cmd: cmd, commands: commandsW, reports: reports, deadline: now + l.ValidFor()}
	k.send(shimConfig{
		Path: s.path, Args: s.Cmd, Deadline: k.deadline, Stop: s.StopTimeout, Kill: killTime(s.TTL),
		Release: roleRelease{Cluster: s.a.globals, Postgres: s.Postgres, Role: s.Role, Session: l.Session},
		Env: append(commandEnviron(os.Environ()), "NORTHSTAR_ROLE="+s.Role,
			"NORTHSTAR_FENCING_TOKEN="+strconv.FormatUint(l.Token, 10), "NORTHSTAR_SESSION="+l.Session),
	})
	return k, nil
}

// send sends a message. It kills a shim that does not read.
func (k *shimHandle) send(v any) {
	_ = k.commands.SetWriteDeadline(time.Now().Add(shimTimeout))
	if err := json.NewEncoder(k.commands).Encode(v); err != nil {
		k.kill()
	}
}

// kill kills the shim. The kernel then kills the command, and close kills the rest.
func (k *shimHandle) kill() { _ = k.cmd.Process.Kill() } // it may have exited

// close returns when the shim and the command have ended. exited reports that the shim has sent its report. The error
// is that of killOrphans.
func (k *shimHandle) close(exited bool, own *ownChildren) error {
	if !exited {
		k.kill()
	}
	k.commands.Close()
	timeout := time.AfterFunc(shimTimeout, k.kill)
	for range k.reports {
	}
	_ = k.cmd.Wait() // the report has the result
	timeout.Stop()
	own.forget(k.cmd)
	return own.killOrphans() // left by a shim that was killed, or that could not end them
}

// commandEnviron returns the environment without this program's own secrets: the command may be less trusted.
func commandEnviron(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(v string) bool {
		return strings.HasPrefix(v, "NORTHSTAR_TOKEN=") || strings.HasPrefix(v, "NORTHSTAR_POSTGRES=")
	})
}
