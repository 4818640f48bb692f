package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
	"northstar/client"
)

// etcdSettings are those of the etcd clusters, in ms: the defaults of etcd, and the shortest ones at which an idle
// cluster on this machine keeps its leader.
var etcdSettings = []struct{ heartbeat, election int }{{100, 1000}, {10, 50}}

// failureSubjects prepares what is measured side by side, those of one cluster together.
func (b *bench) failureSubjects(ctx context.Context, kind fault, size int) (groups [][]*subject, err error) {
	args := []string{"--failover-takeover-delay", "1h"}
	if kind.network {
		args = append(args, "--insecure")
	}
	if b.logs != "" {
		args = append(args, "--log-level", "debug")
	}
	timeout, err := time.ParseDuration(failoverTimeout)
	if err != nil {
		return nil, err
	}
	ns := &subject{name: "northstar, Go client", ours: true, timeout: timeout, open: openClient}
	err = b.prepare(ns, kind, func() (*proc.Cluster, error) { return proc.EtcdAPI(b.northstar, size, args...) })
	if err != nil {
		return nil, err
	}
	survivor := *ns // the same cluster, in the same rounds
	survivor.name, survivor.open = "northstar, HTTP at a survivor", openSurvivor
	group := []*subject{ns, &survivor}
	if b.consul {
		groups, err := b.consulSubjects(kind, size)
		return append([][]*subject{group}, groups...), err
	}
	viaEtcd := *ns
	viaEtcd.name = "northstar, clientv3 at the survivors"
	if viaEtcd.open, err = b.openWithDriver(ctx, &viaEtcd); err != nil {
		return nil, err
	}
	groups = [][]*subject{append(group, &viaEtcd)}
	if b.noCompare {
		return groups, nil
	}
	for _, set := range etcdSettings {
		s := &subject{
			name:       fmt.Sprintf("etcd %d/%d ms, clientv3 at the survivors", set.heartbeat, set.election),
			findLeader: etcdLeader, timeout: time.Duration(set.election) * time.Millisecond,
		}
		err := b.prepare(s, kind, func() (*proc.Cluster, error) {
			return proc.Etcd(b.etcdBin, size, "--heartbeat", fmt.Sprint(set.heartbeat), "--election",
				fmt.Sprint(set.election))
		})
		if err != nil {
			return nil, err
		}
		if s.open, err = b.openWithDriver(ctx, s); err != nil {
			return nil, err
		}
		groups = append(groups, []*subject{s})
	}
	bare := &subject{name: "bare raft, HTTP at any node", timeout: timeout, uncounted: true}
	err = b.prepare(bare, kind, func() (*proc.Cluster, error) {
		return proc.Bare(b.baseline, size, "--timeout-min", failoverTimeout)
	})
	bare.open = func(s *subject, _ *proc.Node) (func(context.Context, int) error, func(), error) {
		write, done := writeAnyNode(addresses(s.cluster), func() {})
		return write, done, nil
	}
	return append(groups, []*subject{bare}), err
}

// until repeats a write until it is acknowledged or ctx ends, and counts what failed.
func (s *subject) until(ctx context.Context, once func() error) error {
	for {
		err := once()
		if err == nil || ctx.Err() != nil {
			return err
		}
		s.failed[len(s.failed)-1]++
		_ = wait(ctx, attemptDelay)
	}
}

// clientConfig has the defaults of this project's Go client, but for the time of a write: the other clients have that.
func clientConfig(s *subject) client.Config {
	return client.Config{Endpoints: addresses(s.cluster), Timeout: attemptTimeout}
}

// openClient writes through this project's Go client.
func openClient(s *subject, _ *proc.Node) (func(context.Context, int) error, func(), error) {
	c, err := client.New(clientConfig(s))
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, n int) error {
		return s.until(ctx, func() error {
			_, err := c.Put(ctx, fmt.Sprintf("gap-%d", n%64), value, client.WriteOptions{})
			return err
		})
	}, c.Close, nil
}

// openSurvivor writes with plain HTTP, over one connection to a node that does not lead.
func openSurvivor(s *subject, leader *proc.Node) (func(context.Context, int) error, func(), error) {
	addr := s.without(leader)[0].HTTP
	var conn *load.Conn
	drop := func() {
		if conn != nil {
			_ = conn.Close()
		}
		conn = nil
	}
	once := func(ctx context.Context, n int) (err error) {
		if conn == nil {
			if conn, err = load.Dial(ctx, addr); err != nil {
				return err
			}
			conn.Limit(attemptTimeout)
		}
		open := conn // drop may be called meanwhile
		stop := context.AfterFunc(ctx, func() { _ = open.Close() })
		defer stop()
		status, err := conn.Do("PUT", fmt.Sprintf(apiv1.PathKVPrefix+"gap-%d", n%64), value)
		if err != nil {
			drop()
		} else if status/100 != 2 {
			err = fmt.Errorf("status %d", status)
		}
		return err
	}
	return func(ctx context.Context, n int) error {
		return s.until(ctx, func() error { return once(ctx, n) })
	}, drop, nil
}

// openWithDriver starts a process with etcd's Go client, which writes at the nodes that do not lead.
func (b *bench) openWithDriver(ctx context.Context, s *subject) (
	func(*subject, *proc.Node) (func(context.Context, int) error, func(), error), error,
) {
	var endpoints []string
	for _, n := range s.cluster.Nodes {
		endpoints = append(endpoints, etcdEndpoint(n))
	}
	driver, err := b.openDriver(ctx, s.cluster, endpoints)
	if err != nil {
		return nil, err
	}
	return func(s *subject, leader *proc.Node) (func(context.Context, int) error, func(), error) {
		var survivors []string
		for _, n := range s.without(leader) {
			survivors = append(survivors, etcdEndpoint(n))
		}
		at := strings.Join(survivors, ",")
		return func(ctx context.Context, _ int) error {
			return s.until(ctx, func() error {
				// A command that is broken off would end the driver, which bounds each write itself.
				done, err := driver.measure(context.WithoutCancel(ctx), 2, "write", at)
				if err != nil {
					return err
				}
				s.failed[len(s.failed)-1] += int(done[1])
				if done[0] != 1 {
					return errors.New("not acknowledged")
				}
				return nil
			})
		}, func() {}, nil
	}, nil
}

// etcdEndpoint returns the address of a node for etcd clients.
func etcdEndpoint(n *proc.Node) string {
	if n.Etcd != "" {
		return n.Etcd
	}
	return n.HTTP
}

// etcdLeader waits until every live member of an etcd cluster names the same leader, and returns it.
func etcdLeader(ctx context.Context, c *proc.Cluster) (*proc.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		if n := agreedMember(ctx, c); n != nil {
			return n, nil
		}
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return nil, fmt.Errorf("etcd: no leader: %w\n%s", err, c.Logs())
		}
	}
}

func agreedMember(ctx context.Context, c *proc.Cluster) (leader *proc.Node) {
	named := ""
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		status, err := memberStatusOf(ctx, n)
		if err != nil || status.Leader == "" || status.Leader == "0" || named != "" && named != status.Leader {
			return nil
		}
		named = status.Leader
		if status.Header.Member == named {
			leader = n
		}
	}
	return leader
}

// memberStatus is a member's own view, as the etcd API tells it.
type memberStatus struct {
	Header struct {
		Member string `json:"member_id"`
	} `json:"header"`
	Leader string `json:"leader"`
	Term   uint64 `json:"raftTerm,string"`
}

func memberStatusOf(ctx context.Context, n *proc.Node) (status memberStatus, err error) {
	err = post(ctx, "http://"+etcdEndpoint(n)+"/v3/maintenance/status", &status)
	return status, err
}

var etcdGateway = &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// post reads the answer of a call of etcd's gateway that takes no arguments.
func post(ctx context.Context, url string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	resp, err := etcdGateway.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(answer)
}

// missing returns what a failure needs and this machine or user does not have.
func (f fault) missing() error {
	if f.network {
		probe, err := proc.NewNetwork()
		if err != nil {
			return err
		}
		return probe.Close()
	}
	if !f.disks {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("file systems of their own need root")
	}
	for _, program := range []string{"mkfs.ext4", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			return err
		}
	}
	return nil
}

const diskBytes = 1 << 30 // sparse

// mountDisks mounts a file system of its own for each node of a cluster that has not been started.
func (b *bench) mountDisks(s *subject) error {
	for _, n := range s.cluster.Nodes {
		dir, image := s.cluster.DataDir(n), filepath.Join(s.cluster.Dir, n.ID+".img")
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(image, nil, 0o600),
			os.Truncate(image, diskBytes)); err != nil {
			return err
		}
		for _, args := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
			}
		}
		_ = os.Remove(filepath.Join(dir, "lost+found"))
		b.add(func() error {
			_ = thaw(dir) // if it is frozen
			s.cluster.KillAll()
			return unix.Unmount(dir, unix.MNT_DETACH)
		})
	}
	return nil
}

// freeze has every write and sync below a mounted directory wait until thaw.
func freeze(dir string) error { return freezer(dir, fiFreeze) }

func thaw(dir string) error { return freezer(dir, fiThaw) }

// FIFREEZE and FITHAW of ioctl_fs(2).
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

func freezer(dir string, request uint) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), request, 0)
}

// draw draws the distributions of the CSV file.
func (b *bench) draw(ctx context.Context) error {
	bin, err := b.build(ctx, "benchmarks/plot", ".")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, bin, "-in", b.csv, "-out", b.svg)
	cmd.Stderr = os.Stderr
	return cmd.Run()
}
