package compat

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/proc"
)

// faultyCluster is a cluster of processes, and the faults that a seed draws for it.
type faultyCluster struct {
	t       *testing.T
	rand    *rand.Rand
	cluster *proc.Cluster
	network *proc.Network // nil: links cannot be cut on this machine
	disks   bool          // each data directory is a file system of its own, which can be frozen
	nodes   []*node       // addresses for clients, in the order of cluster.Nodes
}

// startFaulty starts three nodes. Each has a network namespace and a disk of its own if this machine has such things.
func startFaulty(t *testing.T, seed uint64) *faultyCluster {
	t.Helper()
	binary, err := buildNode()
	if err != nil {
		t.Fatal(err)
	}
	f := &faultyCluster{t: t, rand: rand.New(rand.NewPCG(seed, 1))}
	f.cluster, err = proc.EtcdAPI(binary, 3, "--insecure", "--disk-reserve", "1MiB", "--log-level", "info")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(f.cluster.Logs())
		}
		f.cluster.Close()
	})
	f.attach()
	f.mountDisks()
	for _, n := range f.cluster.Nodes {
		f.nodes = append(f.nodes, &node{id: n.ID, etcd: n.Etcd})
	}
	if err := f.cluster.Start(); err != nil {
		t.Fatal(err)
	}
	f.awaitAll("the start")
	return f
}

// attach puts each node into a network namespace.
func (f *faultyCluster) attach() {
	w, err := proc.NewNetwork()
	if err != nil {
		f.t.Logf("no cuts: %v", err)
		return
	}
	f.network = w
	f.t.Cleanup(func() {
		f.cluster.KillAll()
		if err := w.Close(); err != nil {
			f.t.Error(err)
		}
	})
	if err := w.Attach(f.cluster); err != nil {
		f.t.Fatal(err)
	}
}

// mountDisks mounts a small file system, which is in a file, for each node.
func (f *faultyCluster) mountDisks() {
	images := dataDir(f.t)
	for _, n := range f.cluster.Nodes {
		image, dir := filepath.Join(images, n.ID), f.cluster.DataDir(n)
		err := os.WriteFile(image, nil, 0o600)
		if err == nil {
			err = os.Truncate(image, 256<<20)
		}
		if err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
		if err == nil {
			err = command("mkfs.ext4", "-q", "-F", image)
		}
		if err == nil {
			err = command("mount", "-o", "loop", image, dir)
		}
		if err != nil {
			f.t.Logf("no stalls of disks: %v", err)
			return
		}
		f.t.Cleanup(func() {
			f.cluster.KillAll()
			if err := command("umount", dir); err != nil {
				f.t.Error(err)
			}
		})
	}
	f.disks = true
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// inject draws one fault, causes it, ends it, and waits until every node serves. It returns what it did.
func (f *faultyCluster) inject() string {
	n := f.cluster.Nodes[f.rand.IntN(len(f.cluster.Nodes))]
	onLeader := f.rand.IntN(3) > 0
	d := time.Duration(50+f.rand.IntN(1500)) * time.Millisecond
	pick := f.rand.IntN(10)
	if onLeader {
		lead, err := f.cluster.Leader(f.t.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		n = lead
	}
	what, begin, end := "kill -9", func() error { n.Kill(); return nil }, func() error { return f.cluster.StartNode(n) }
	switch {
	case pick < 4:
	case pick < 6 && f.network != nil:
		what, begin, end = "cut off", func() error { return f.network.Isolate(n) }, f.network.Heal
	case pick < 7 && f.network != nil:
		others := f.others(n)
		what, begin, end = "cut in one direction", func() error { return f.network.Cut(n, others...) }, f.network.Heal
	case pick < 9 && f.disks:
		dir := f.cluster.DataDir(n)
		what, begin = "disk stall", func() error { return command("fsfreeze", "-f", dir) }
		end = func() error { return command("fsfreeze", "-u", dir) }
	default:
		what, begin = "SIGSTOP", func() error { return n.Signal(syscall.SIGSTOP) }
		end = func() error { return n.Signal(syscall.SIGCONT) }
	}
	what = fmt.Sprintf("%s of %s for %v, of the leader: %v", what, n.ID, d, onLeader)
	if err := begin(); err != nil {
		f.t.Errorf("%s: %v", what, err)
	}
	<-time.After(d)
	if err := end(); err != nil {
		f.t.Fatalf("end of %s: %v", what, err)
	}
	f.awaitAll(what)
	return what
}

func (f *faultyCluster) others(n *proc.Node) (all []*proc.Node) {
	for _, o := range f.cluster.Nodes {
		if o != n {
			all = append(all, o)
		}
	}
	return all
}

// awaitAll waits until every node serves.
func (f *faultyCluster) awaitAll(after string) {
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	for _, n := range f.nodes {
		c := newClient(f.t, n)
		for {
			_, err := c.Get(ctx, "k")
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				f.t.Fatalf("after %s: %s does not serve: %v", after, n.id, err)
			}
			pause(ctx, 20*time.Millisecond)
		}
		c.Close()
	}
}
