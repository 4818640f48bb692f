package clientgo

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"northstar/chaos/proc"
	"northstar/client"
)

// limit is the timeout of any condition, also on a busy machine.
const limit = time.Minute

var nodeBinary string

func TestMain(m *testing.M) {
	if endpoints := os.Getenv(asHolder); endpoints != "" {
		hold(endpoints)
		return
	}
	dir, err := os.MkdirTemp("", "northstar-adapter-")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	nodeBinary = filepath.Join(dir, "northstar-node")
	code := 1
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", nodeBinary, "./cmd/northstar-node").
		CombinedOutput(); err != nil {
		fmt.Printf("build: %v\n%s", err, out)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// cluster starts three nodes, and returns when one leads.
func cluster(t *testing.T) *proc.Cluster {
	t.Helper()
	c, err := proc.NorthStar(nodeBinary, 3, "--disk-reserve", "1MiB")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		c.Close()
	})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	leader(t, c)
	return c
}

func leader(t *testing.T, c *proc.Cluster) *proc.Node {
	t.Helper()
	n, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func endpoints(c *proc.Cluster) (all []string) {
	for _, n := range c.Nodes {
		all = append(all, n.HTTP)
	}
	return all
}

func newClient(t *testing.T, c *proc.Cluster) *client.Client {
	t.Helper()
	cl, err := client.New(client.Config{Endpoints: endpoints(c)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// receive returns the next value of a channel.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	select {
	case v := <-from:
		return v
	case <-ctx.Done():
		t.Fatalf("not within %v: %s", limit, what)
		panic("unreachable")
	}
}
