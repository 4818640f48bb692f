package compat

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const moveProgram = "../../../docs/examples/move-from-etcd"

// buildMove builds the program that copies an etcd.
func buildMove(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "move-from-etcd")
	if out, err := exec.Command("go", "build", "-C", moveProgram, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return binary
}

// TestMoveFromEtcd moves an etcd that is written to, while NorthStar's leader is killed.
func TestMoveFromEtcd(t *testing.T) {
	binary := buildMove(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	etcd, nodes := startEtcd(t), startNorthstar(t, 3)
	old := client(t, &node{etcd: etcd})
	for page := range 15 { // more than the program reads in one request
		var ops []clientv3.Op
		for i := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/data/%04d", 100*page+i), strings.Repeat("v", 100*page)))
		}
		if _, err := old.Txn(ctx).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	lease, err := old.Grant(ctx, 600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Put(ctx, "/session/1", "leased", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}

	first, others := leader(t, nodes)
	move := exec.CommandContext(ctx, binary, "-from", etcd, "-to", others[0].etcd+","+others[1].etcd)
	enter, err1 := move.StdinPipe()
	stdout, err2 := move.StdoutPipe()
	var stderr strings.Builder
	move.Stderr = &stderr
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	stop := make(chan struct{})
	written := make(chan int)
	go func() { written <- writeUntil(ctx, t, old, lease.ID, stop) }()
	if err := move.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	expect := func(prefix string) {
		t.Helper()
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), prefix) {
			cancel()
			_ = move.Wait() // for stderr
			t.Fatalf("%q, want %q: %s", lines.Text(), prefix, stderr.String())
		}
	}
	expect("copied ")
	expect("in step")
	first.kill()
	if _, err := client(t, others...).Get(ctx, "/data/0000"); err != nil { // there is a leader again
		t.Fatal(err)
	}
	close(stop)
	t.Logf("%d writes while it moved", <-written)
	if _, err := enter.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	expect("equal: ")
	if err := move.Wait(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	sameKeys(ctx, t, old, client(t, others...))
	again := exec.CommandContext(ctx, binary, "-from", etcd, "-to", others[0].etcd)
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "remove them first") {
		t.Errorf("over existing keys: %v: %s", err, out)
	}
}

// writeUntil changes, removes and makes keys, some of them with a lease.
func writeUntil(
	ctx context.Context, t *testing.T, c *clientv3.Client, lease clientv3.LeaseID, stop <-chan struct{},
) (writes int) {
	for ; ; writes++ {
		select {
		case <-stop:
			return writes
		default:
		}
		key, i := fmt.Sprintf("/data/%04d", writes%2000), fmt.Sprint(writes)
		var err error
		switch writes % 5 {
		case 0:
			_, err = c.Delete(ctx, key)
		case 1:
			_, err = c.Put(ctx, key, i, clientv3.WithLease(lease))
		case 2: // one transaction of many keys
			var ops []clientv3.Op
			for n := range 20 {
				ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s/%d", key, n), i))
			}
			_, err = c.Txn(ctx).Then(ops...).Commit()
		default:
			_, err = c.Put(ctx, key, i)
		}
		if err != nil {
			t.Errorf("write to etcd: %v", err)
			return writes
		}
	}
}

// sameKeys checks that a cluster has all keys of another one but those with a lease.
func sameKeys(ctx context.Context, t *testing.T, old, moved *clientv3.Client) {
	t.Helper()
	var lists [2]strings.Builder
	for i, c := range []*clientv3.Client{old, moved} {
		all, err := c.Get(ctx, "", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range all.Kvs {
			if kv.Lease == 0 {
				fmt.Fprintf(&lists[i], "%s=%s\n", kv.Key, kv.Value)
			} else if c == moved {
				t.Errorf("%s has a lease", kv.Key)
			}
		}
	}
	if lists[0].String() != lists[1].String() {
		t.Error("the keys differ")
	}
}
