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

// keeperTime is how long a keeper may take over a word.
const keeperTime = time.Second

// kept is a keeper at work, as run sees it.
type kept struct {
	cmd     *exec.Cmd
	orders  *os.File
	reports <-chan report // one, and closed at the keeper's end
	until   time.Duration // as last told
	stopped bool          // for the lease's sake
}

// once runs the command until it has ended. The error is that it had no keeper, or
// that this was killed.
func (s *supervisor) once(l *client.Leadership) (report, error) {
	k, err := s.startKeeper(l)
	if err != nil {
		return report{}, err
	}
	ended := false
	defer func() { k.end(ended) }()
	look := time.NewTicker(min(clockLook, s.TTL/20))
	defer look.Stop()
	lost := l.Done()
	for {
		select {
		case rep, ok := <-k.reports:
			switch {
			case !ok && k.stopped:
				return report{Stopped: true}, nil
			case !ok:
				return report{}, errors.New("the keeper of the command was killed, and the command with it")
			}
			ended = true
			return rep, nil
		case <-lost:
			lost, k.stopped = nil, true
			k.send(order{Stop: true})
		case sig := <-s.signals:
			s.ended = s.ended || ending[sig]
			k.send(order{Signal: sig.(syscall.Signal)})
		case <-look.C:
			s.look(k, l)
		}
	}
}

// look passes a lease that was renewed on to the keeper, and does the keeper's work
// should that not: it is stopped, perhaps.
func (s *supervisor) look(k *kept, l *client.Leadership) {
	now := s.clock() // first, so that what is left is counted from too early
	if left := l.ValidFor(); left > 0 && now+left > k.until {
		k.until = now + left
		k.send(order{Until: k.until})
	}
	if now > k.until-s.kill()/2 {
		k.stopped = true
		k.kill()
	}
}

// kill is the time between SIGKILL and the end of the lease.
func (s *supervisor) kill() time.Duration { return min(killAfter, s.TTL/20) }

// startKeeper starts a keeper with the command.
func (s *supervisor) startKeeper(l *client.Leadership) (*kept, error) {
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
	cmd.ExtraFiles = []*os.File{ordersR, reportsW} // ordersFD, reportsFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		ordersW.Close()
		reportsR.Close()
		return nil, fmt.Errorf("start the keeper of the command: %w", err)
	}
	reports := make(chan report)
	go func() {
		defer close(reports)
		defer reportsR.Close()
		var rep report
		if json.NewDecoder(reportsR).Decode(&rep) == nil {
			reports <- rep
		}
	}()
	now := s.clock()
	k := &kept{cmd: cmd, orders: ordersW, reports: reports, until: now + l.ValidFor()}
	k.send(keeping{
		Path: s.path, Args: s.Cmd, Until: k.until, Stop: s.StopTimeout, Kill: s.kill(), Release: s.release(l),
		Env: append(os.Environ(), "NORTHSTAR_ROLE="+s.Role, "NORTHSTAR_FENCING_TOKEN="+strconv.FormatUint(l.Token, 10), "NORTHSTAR_SESSION="+l.Session),
	})
	return k, nil
}

// send ends a keeper that takes no orders.
func (k *kept) send(v any) {
	_ = k.orders.SetWriteDeadline(time.Now().Add(keeperTime))
	if err := json.NewEncoder(k.orders).Encode(v); err != nil {
		k.kill()
	}
}

// kill ends the keeper at once; the kernel ends the command with it, and end the
// rest.
func (k *kept) kill() { _ = k.cmd.Process.Kill() } // it may be gone already

// end returns when the keeper is gone, and the command with it: that has ended, or
// its keeper was killed.
func (k *kept) end(ended bool) {
	if !ended {
		k.kill()
	}
	k.orders.Close()
	late := time.AfterFunc(keeperTime, k.kill)
	for range k.reports {
	}
	_ = k.cmd.Wait() // the reports say it
	late.Stop()
	endChildren() // of a keeper that was killed
}
