// Package proc runs clusters as separate processes, for tests and benchmarks. It starts, finds, signals, measures and
// ends processes by pid.
package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"northstar/chaos/ports"
	"northstar/chaos/testenv"
)

// Node is one process of a cluster.
type Node struct {
	ID, Raft, HTTP string
	Etcd           string   // address for etcd clients; "": none
	Wrapper        []string // command that runs the program, for example in a namespace; nil: none
	Cmd            *exec.Cmd
	log            *os.File
}

// Cluster is a set of nodes under one temporary directory.
type Cluster struct {
	Kind  string
	Nodes []*Node
	Dir   string
	Extra map[string][]string // additional arguments for single nodes, by ID
	Bin   map[string]string   // a different program for single nodes, by ID
	argv  func(n *Node, initial string) []string
}

// NorthStar prepares a cluster of size northstar-node processes.
func NorthStar(bin string, size int, extra ...string) (*Cluster, error) {
	return prepare("northstar", size, append([]string{"--log-level", "warn"}, extra...), func(n *Node) []string {
		args := []string{bin, "run", "--raft-addr", n.Raft, "--http-addr", n.HTTP}
		if n.Etcd != "" {
			args = append(args, "--etcd-addr", n.Etcd)
		}
		return args
	})
}

// EtcdAPI prepares a cluster as NorthStar does, whose nodes serve the etcd API.
func EtcdAPI(bin string, size int, extra ...string) (*Cluster, error) {
	c, err := NorthStar(bin, size, extra...)
	if err != nil {
		return nil, err
	}
	addrs, err := ports.Reserve(size)
	if err != nil {
		return nil, err
	}
	for i, n := range c.Nodes {
		n.Etcd = addrs[i]
	}
	return c, nil
}

// Bare prepares a cluster of size bare hashicorp/raft processes.
func Bare(bin string, size int, extra ...string) (*Cluster, error) {
	return prepare("bare raft", size, extra, func(n *Node) []string {
		return []string{bin, "--raft-addr", n.Raft, "--http-addr", n.HTTP}
	})
}

// Etcd prepares a cluster of size etcd processes, of the program that benchmarks/etcd builds. Leader does not support
// it.
func Etcd(bin string, size int, extra ...string) (*Cluster, error) {
	return prepare("etcd", size, extra, func(n *Node) []string {
		return []string{bin, "serve", "--peer-addr", n.Raft, "--client-addr", n.HTTP}
	})
}

// Consul prepares a cluster of size Consul servers, of the program that benchmarks/consul builds, with this
// raft_multiplier and its other defaults. Each server has an address of the loopback network of its own: gossip needs
// UDP, whose ports of 127.0.0.1 mark what is reserved. Leader does not support it, nor does Network.
func Consul(bin string, size, multiplier int) (*Cluster, error) {
	c, err := prepare("consul", size, nil, nil)
	if err != nil {
		return nil, err
	}
	var gossip []string // the arguments that name each server's address for it
	for i, n := range c.Nodes {
		_, raft, _ := strings.Cut(n.Raft, ":")
		_, http, _ := strings.Cut(n.HTTP, ":")
		host := fmt.Sprintf("127.0.1.%d", i+1)
		n.Raft = host + ":" + raft
		gossip = append(gossip, "-retry-join="+host+":"+http)
	}
	c.argv = func(n *Node, _ string) []string {
		host, raft, _ := strings.Cut(n.Raft, ":")
		client, http, _ := strings.Cut(n.HTTP, ":")
		return append([]string{
			bin, "agent", "-server", fmt.Sprintf("-bootstrap-expect=%d", size), "-node=" + n.ID,
			"-data-dir=" + c.DataDir(n), "-bind=" + host, "-server-port=" + raft, "-serf-lan-port=" + http,
			"-client=" + client, "-http-port=" + http, "-serf-wan-port=-1", "-dns-port=-1", "-grpc-port=-1",
			"-grpc-tls-port=-1", "-log-level=warn", "-retry-interval=1s", "-hcl=disable_update_check = true",
			fmt.Sprintf("-hcl=performance { raft_multiplier = %d }", multiplier),
		}, gossip...)
	}
	return c, nil
}

func prepare(kind string, size int, extra []string, program func(*Node) []string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "northstar-bench-")
	if err != nil {
		return nil, err
	}
	addrs, err := ports.Reserve(2 * size)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Kind: kind, Dir: dir, Extra: map[string][]string{}, Bin: map[string]string{}}
	c.argv = func(n *Node, initial string) []string {
		common := []string{"--id", n.ID, "--data-dir", c.DataDir(n), "--initial-cluster", initial}
		return slices.Concat(program(n), common, extra)
	}
	for i := range size {
		c.Nodes = append(c.Nodes, &Node{ID: fmt.Sprintf("n%d", i+1), Raft: addrs[2*i], HTTP: addrs[2*i+1]})
	}
	return c, nil
}

// Start starts every node.
func (c *Cluster) Start() error {
	for _, n := range c.Nodes {
		if err := c.StartNode(n); err != nil {
			return err
		}
	}
	return nil
}

// StartNode starts one node, for the first time or again.
func (c *Cluster) StartNode(n *Node) error {
	var initial []string
	for _, m := range c.Nodes {
		initial = append(initial, m.ID+"="+m.Raft+"@"+m.HTTP)
	}
	argv := append(c.argv(n, strings.Join(initial, ",")), c.Extra[n.ID]...)
	if bin, ok := c.Bin[n.ID]; ok {
		argv[0] = bin
	}
	argv = append(slices.Clone(n.Wrapper), argv...)
	f, err := os.OpenFile(filepath.Join(c.Dir, n.ID+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n.log = f
	n.Cmd = exec.Command(argv[0], argv[1:]...)
	n.Cmd.Stdout, n.Cmd.Stderr = f, f
	return startTied(n.Cmd)
}

// Kill ends one node with SIGKILL and waits for it.
func (n *Node) Kill() {
	if n.Cmd == nil || n.Cmd.Process == nil {
		return
	}
	_ = n.Cmd.Process.Kill()
	n.Wait()
}

// Signal sends a signal to a running node.
func (n *Node) Signal(sig os.Signal) error { return n.Cmd.Process.Signal(sig) }

// Wait waits until the process has ended and returns its exit code, -1 after a signal.
func (n *Node) Wait() int {
	_ = n.Cmd.Wait()
	code := n.Cmd.ProcessState.ExitCode()
	n.Cmd = nil
	_ = n.log.Close()
	return code
}

// Running reports whether the node was started and not yet waited for.
func (n *Node) Running() bool { return n.Cmd != nil }

// KillAll kills every node at the same moment.
func (c *Cluster) KillAll() {
	for _, n := range c.Nodes {
		if n.Running() {
			_ = n.Cmd.Process.Kill()
		}
	}
	for _, n := range c.Nodes {
		n.Kill()
	}
}

// DataDir returns the data directory of a node.
func (c *Cluster) DataDir(n *Node) string { return filepath.Join(c.Dir, n.ID) }

// Log returns what a node has logged so far.
func (c *Cluster) Log(n *Node) string {
	data, _ := os.ReadFile(filepath.Join(c.Dir, n.ID+".log"))
	return string(data)
}

// Close kills all nodes and removes the directory.
func (c *Cluster) Close() {
	c.KillAll()
	_ = os.RemoveAll(c.Dir)
}

// Logs returns the tail of every node's log, for error messages.
func (c *Cluster) Logs() string {
	var b strings.Builder
	for _, n := range c.Nodes {
		data := c.Log(n)
		if len(data) > 4000 {
			data = "…" + data[len(data)-4000:]
		}
		fmt.Fprintf(&b, "--- %s\n%s\n", n.ID, data)
	}
	return b.String()
}

// leaderWait is how long an election may take on a busy machine.
var leaderWait = testenv.Slowdown() * 30 * time.Second

// Leader waits until every live node names the same leader, and returns it.
func (c *Cluster) Leader(ctx context.Context) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, leaderWait)
	defer cancel()
	for {
		if n := c.agreed(ctx); n != nil {
			return n, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: no leader: %w\n%s", c.Kind, ctx.Err(), c.Logs())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (c *Cluster) agreed(ctx context.Context) *Node {
	var leader string
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		var answer struct {
			ID string `json:"leader_id"`
		}
		body, err := Get(ctx, "http://"+n.HTTP+"/leader")
		if err != nil || json.Unmarshal(body, &answer) != nil || answer.ID == "" {
			return nil
		}
		if leader != "" && leader != answer.ID {
			return nil
		}
		leader = answer.ID
	}
	i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.ID == leader && n.Running() })
	if i < 0 {
		return nil
	}
	return c.Nodes[i]
}

var httpClient = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// Get fetches a URL and requires status 200.
func Get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body, err
}

// Usage is the resource usage of one process.
type Usage struct {
	CPU time.Duration // user and system time since its start
	RSS int64         // resident bytes now
}

// Usage reads a node's /proc entries (Linux).
func (n *Node) Usage() (Usage, error) {
	if n.Cmd == nil {
		return Usage{}, errors.New("not running")
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.Cmd.Process.Pid))
	if err != nil {
		return Usage{}, err
	}
	// Fields are counted after the command name, which may contain blanks.
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 22 {
		return Usage{}, fmt.Errorf("short stat of %s", n.ID)
	}
	var user, system, pages int64
	used := bytes.Join([][]byte{f[11], f[12], f[21]}, []byte(" "))
	if _, err := fmt.Sscan(string(used), &user, &system, &pages); err != nil {
		return Usage{}, fmt.Errorf("stat of %s: %w", n.ID, err)
	}
	const tick = 10 * time.Millisecond
	return Usage{CPU: time.Duration(user+system) * tick, RSS: pages * int64(os.Getpagesize())}, nil
}
