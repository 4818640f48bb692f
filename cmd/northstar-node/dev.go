package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"northstar/cluster"
	"northstar/node"
)

// Settings of the demo cluster.
const (
	maxDevNodes  = 9
	restartDelay = 5 * time.Second
	stopTimeout  = 10 * time.Second // time from SIGTERM to SIGKILL
	devReserve   = "16MiB"          // the data may be in memory: /tmp often is
)

type devCommand struct {
	Nodes    int    `default:"3" help:"Number of nodes, 1 to 9."`
	DataDir  string `name:"data-dir" placeholder:"DIR" help:"Directory of the data and logs of the nodes. Default: a temporary directory, removed at the end."`
	Etcd     bool   `help:"Serve the etcd v3 API on each node: node i, from 0, uses the port 2379+i. With --base-port 0: any free ports."`
	BasePort int    `name:"base-port" default:"7700" help:"Node i, from 0, uses the ports base+2i (peers) and base+2i+1 (HTTP). 0: any free ports."`

	KillEvery time.Duration `name:"kill-every" placeholder:"10s" help:"Kill the leader again and again (SIGKILL), and show each failover; at least 6s, and 3 nodes."`
}

// Run starts the nodes, prints their events until the first signal, and stops them.
func (d *devCommand) Run(p *commandEnv) error {
	if err := d.check(); err != nil {
		return &usageError{err}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	etcd, release, err := d.etcdAddresses()
	if err != nil {
		return err
	}
	members, err := d.members()
	release()
	if err != nil {
		return err
	}
	dir, temporary := d.DataDir, d.DataDir == ""
	if temporary {
		if dir, err = os.MkdirTemp("", "northstar-dev-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	} else if err := checkMembersFile(dir, members); err != nil {
		return err
	}
	c := newDevCluster(self, dir, members, &printer{w: p.stdout})
	c.serveEtcd(etcd)
	if err := c.start(); err != nil {
		c.kill()
		c.shutdown(p.immediate)
		return err
	}
	c.printMembers(dir, temporary)
	c.watch(p.graceful, d.KillEvery)
	if failovers := c.leader.summary(); failovers != "" {
		c.print.line("%s", failovers)
	}
	c.print.line("stopping")
	c.shutdown(p.immediate)
	return nil
}

func (d *devCommand) check() error {
	switch {
	case d.Nodes < 1 || d.Nodes > maxDevNodes:
		return fmt.Errorf("--nodes: must be 1 to %d (got %d)", maxDevNodes, d.Nodes)
	case d.BasePort != 0 && (d.BasePort < 1 || d.BasePort+2*d.Nodes-1 > 65535):
		return fmt.Errorf("--base-port: %d nodes need the ports up to base + %d (got %d)", d.Nodes, 2*d.Nodes-1,
			d.BasePort)
	case d.KillEvery != 0 && (d.KillEvery < restartDelay+time.Second || d.Nodes < 3):
		return fmt.Errorf("--kill-every: must be at least %v, with at least 3 nodes (got %v)", restartDelay+time.Second,
			d.KillEvery)
	case d.BasePort == 0 && d.DataDir != "":
		return errors.New("--base-port: 0 cannot be combined with --data-dir, because nodes keep their addresses")
	}
	return nil
}

// members returns the addresses of the nodes, and checks that these are free.
func (d *devCommand) members() (node.InitialCluster, error) {
	members := make(node.InitialCluster, d.Nodes)
	for i := range members {
		m := &members[i]
		m.ID = cluster.NodeID("n" + strconv.Itoa(i+1))
		for offset, address := range []*string{&m.RaftAddress, &m.HTTPAddress} {
			port := 0
			if d.BasePort != 0 {
				port = d.BasePort + 2*i + offset
			}
			l, err := reservePort(port)
			if err != nil {
				return nil, fmt.Errorf("port %d, for the %s address of %s, cannot be used: choose another --base-port: %w",
					port, []string{"raft", "HTTP"}[offset], m.ID, err)
			}
			defer l.Close() // when all have theirs
			*address = l.Addr().String()
		}
	}
	return members, nil
}

func reservePort(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// devEtcdPort is etcd's own port for clients.
const devEtcdPort = 2379

// etcdAddresses returns the addresses of the etcd API, none without --etcd. They are reserved until release is called.
func (d *devCommand) etcdAddresses() (addresses []string, release func(), err error) {
	var reserved []net.Listener
	release = func() {
		for _, l := range reserved {
			_ = l.Close() // nothing was accepted
		}
	}
	for i := 0; d.Etcd && i < d.Nodes; i++ {
		port := 0
		if d.BasePort != 0 {
			port = devEtcdPort + i
		}
		l, err := reservePort(port)
		if err != nil {
			release()
			return nil, nil, fmt.Errorf("port %d, for the etcd address of n%d, cannot be used (is an etcd running?): %w",
				port, i+1, err)
		}
		reserved = append(reserved, l)
		addresses = append(addresses, l.Addr().String())
	}
	return addresses, release, nil
}

// membersFile stores the nodes' addresses in a persistent data directory.
const membersFile = "members"

// checkMembersFile checks that a data directory is reused with the same addresses.
func checkMembersFile(dir string, members node.InitialCluster) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	name := filepath.Join(dir, membersFile)
	had, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return os.WriteFile(name, []byte(members.String()), 0o600)
	case err != nil:
		return err
	case string(had) != members.String():
		return &usageError{fmt.Errorf("%s was created with other addresses: use the original --nodes and --base-port, "+
			"or another --data-dir (found %s)", dir, had)}
	}
	return nil
}

// devCluster is the set of running nodes.
type devCluster struct {
	children []*child
	print    *printer
	leader   *leaderTracker
	etcd     []string // addresses of the etcd API; none without it
}

func newDevCluster(self, dir string, members node.InitialCluster, print *printer) *devCluster {
	c := &devCluster{print: print, leader: newLeaderTracker(members, print)}
	for _, m := range members {
		id := string(m.ID)
		ch := &child{
			InitialMember: m, self: self, logFile: filepath.Join(dir, id+".log"), print: print,
			exited: c.leader.exited, done: make(chan struct{}),
			args: []string{
				"run", "--id", id, "--data-dir", filepath.Join(dir, id),
				"--raft-addr", m.RaftAddress, "--http-addr", m.HTTPAddress, "--initial-cluster", members.String(),
				"--disk-reserve", devReserve, "--drain-timeout", (stopTimeout / 2).String(),
			},
		}
		ch.ctx, ch.cancel = context.WithCancel(context.Background())
		c.children = append(c.children, ch)
	}
	return c
}

// serveEtcd makes the nodes serve the etcd API at these addresses.
func (c *devCluster) serveEtcd(addresses []string) {
	c.etcd = addresses
	for i, address := range addresses {
		c.children[i].args = append(c.children[i].args, "--etcd-addr", address)
	}
}

// start starts every node.
func (c *devCluster) start() error {
	c.leader.startedAt = time.Now()
	var errs []error
	for _, ch := range c.children {
		started := make(chan error, 1)
		go ch.supervise(started)
		if err := <-started; err != nil {
			errs = append(errs, fmt.Errorf("start %s: %w", ch.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (c *devCluster) printMembers(dir string, temporary bool) {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"node", "pid", "HTTP address", "raft address"})
	for _, ch := range c.children {
		t.AppendRow(table.Row{ch.ID, ch.pid(), ch.HTTPAddress, ch.RaftAddress})
	}
	etcd := ""
	if len(c.etcd) > 0 {
		etcd = "etcd API   etcdctl --endpoints " + strings.Join(c.etcd, ",") + " endpoint status\n"
	}
	note := ""
	if temporary {
		note = " (removed at the end)"
	}
	c.print.text(t.Render() + fmt.Sprintf("\ndashboard  http://%s/\n%sdata, logs %s%s\n",
		c.children[0].HTTPAddress, etcd, dir, note))
}

// watch prints events until ctx ends. With killEvery it kills the leader that often.
func (c *devCluster) watch(ctx context.Context, killEvery time.Duration) {
	var wg sync.WaitGroup
	wg.Go(func() { c.leader.run(ctx) })
	if killEvery > 0 {
		wg.Go(func() { c.killLeaders(ctx, killEvery) })
	}
	for _, ch := range c.children {
		wg.Go(func() { followEvents(ctx, string(ch.ID), ch.HTTPAddress, c.print) })
	}
	wg.Wait()
}

// killLeaders kills the leader's process at an interval until ctx ends. Without a leader it kills nothing.
func (c *devCluster) killLeaders(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		leader := c.leader.current()
		for _, ch := range c.children {
			if p := ch.process.Load(); p != nil && string(ch.ID) == leader {
				c.print.line("killing the leader, %s (pid %d)", ch.ID, p.Pid)
				_ = p.Kill() // it may have exited
			}
		}
	}
}

// shutdown stops the followers first and the leader last. The leader then has no target for a transfer and just
// stops. If it stopped first, it would transfer leadership to nodes that stop next.
func (c *devCluster) shutdown(now context.Context) {
	undo := context.AfterFunc(now, c.kill)
	defer undo()
	leader := c.leader.current()
	for _, ch := range c.children {
		if string(ch.ID) != leader {
			ch.cancel()
		}
	}
	for _, ch := range c.children {
		if string(ch.ID) != leader {
			<-ch.done
		}
	}
	for _, ch := range c.children {
		ch.cancel()
		<-ch.done
	}
}

// kill kills all nodes permanently.
func (c *devCluster) kill() {
	for _, ch := range c.children {
		ch.cancel()
		if p := ch.process.Load(); p != nil {
			_ = p.Kill() // it may have exited
		}
	}
}

// cleanEnv returns the environment without NORTHSTAR_*: those settings are not for the demo's nodes.
func cleanEnv(env []string) []string {
	return slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, "NORTHSTAR_") })
}
