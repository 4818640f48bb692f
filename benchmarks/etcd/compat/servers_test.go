package compat

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"northstar/chaos/ports"
)

// buildNode builds northstar-node once for all tests.
var buildNode = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "northstar-compat-")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "northstar-node")
	cmd := exec.Command("go", "build", "-C", "../../..", "-o", binary, "./cmd/northstar-node")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return binary, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if binary, err := buildNode(); err == nil {
		os.RemoveAll(filepath.Dir(binary))
	}
	os.Exit(code)
}

var onDisk = flag.Bool("disk", false, "data directories on disk, below TMPDIR")

// dataDir returns a directory in memory where there is one, unless -disk is set: most tests compare answers, not disks.
func dataDir(t testing.TB) string {
	t.Helper()
	base := "/dev/shm"
	if _, err := os.Stat(base); err != nil || *onDisk {
		base = ""
	}
	dir, err := os.MkdirTemp(base, "northstar-compat-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// addresses returns free addresses of this machine, which the kernel gives to no outgoing connection.
func addresses(t testing.TB, n int) []string {
	t.Helper()
	out, err := ports.Reserve(n)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// startEtcd runs an etcd in this process and returns the address for its clients.
func startEtcd(t testing.TB) string {
	t.Helper()
	addrs := addresses(t, 2)
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.LogLevel, cfg.UnsafeNoFsync = "n1", dataDir(t), "fatal", true
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls(addrs[0]), urls(addrs[0])
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls(addrs[1]), urls(addrs[1])
	cfg.InitialCluster = "n1=http://" + addrs[0]
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		t.Fatal("etcd does not start")
	}
	return addrs[1]
}

func urls(addr string) []url.URL { return []url.URL{{Scheme: "http", Host: addr}} }

// node is a process of northstar-node.
type node struct {
	id, etcd, http string
	args           []string
	log            string
	cmd            *exec.Cmd
}

// calm are timeouts of clusters whose clients must not see an error: with the default ones an overloaded machine causes
// elections, and requests are held for twice the longer one. A killed leader is noticed without them. With -limits the
// default ones are used.
func calm() []string {
	if *gapLimits {
		return nil
	}
	return []string{"--election-timeout-min", "5s", "--election-timeout-max", "10s"}
}

// startNorthstar runs a cluster and returns its nodes once each serves a client.
func startNorthstar(t testing.TB, size int, extra ...string) []*node {
	t.Helper()
	dir, addrs := dataDir(t), addresses(t, 3*size)
	var initial []string
	for i := range size {
		initial = append(initial, fmt.Sprintf("n%d=%s@%s", i+1, addrs[3*i], addrs[3*i+1]))
	}
	nodes := make([]*node, size)
	for i := range nodes {
		n := &node{id: fmt.Sprintf("n%d", i+1), http: addrs[3*i+1], etcd: addrs[3*i+2]}
		n.log = filepath.Join(dir, n.id+".log")
		n.args = []string{
			"run", "--id", n.id, "--data-dir", filepath.Join(dir, n.id), "--raft-addr", addrs[3*i],
			"--http-addr", n.http, "--etcd-addr", n.etcd, "--initial-cluster", strings.Join(initial, ","),
			"--disk-reserve", "1MiB", "--log-level", "warn",
		}
		n.args = append(n.args, extra...)
		n.start(t)
		nodes[i] = n
		t.Cleanup(func() {
			n.kill()
			if text, err := os.ReadFile(n.log); err == nil && t.Failed() {
				t.Logf("log of %s:\n%s", n.id, text[max(0, len(text)-3000):])
			}
		})
	}
	for _, n := range nodes {
		kv := pb.NewKVClient(dial(t, n.etcd))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for {
			_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("k")}, grpc.WaitForReady(true))
			if err == nil {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%s does not serve: %v", n.id, err)
			}
		}
		cancel()
	}
	return nodes
}

func (n *node) start(t testing.TB) {
	t.Helper()
	binary, err := buildNode()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	n.cmd = exec.Command(binary, n.args...)
	n.cmd.Stderr = log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// signal sends SIGKILL and does not wait.
func (n *node) signal(t testing.TB) {
	t.Helper()
	if err := n.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// kill ends the process as a crash does. It may be called more than once.
func (n *node) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill() // it may have ended
		_ = n.cmd.Wait()
		n.cmd = nil
	}
}

func dial(t testing.TB, addr string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
