package examples_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/chaos/proc"
)

// TestEtcdExamples: programs with the etcd libraries of other languages go on when the leader is killed, to which they
// are connected. They hold what they hold, every write happens once, and their watches show each write once.
func TestEtcdExamples(t *testing.T) {
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		survivesByEtcd(t, []string{pythonWith(t, "etcd3"), "etcd/election.py"})
	})
	t.Run("node", func(t *testing.T) {
		t.Parallel()
		survivesByEtcd(t, []string{"node", filepath.Join(installNode(t, "etcd"), "election.mjs")})
	})
}

// pythonWith returns an interpreter that has a module.
func pythonWith(t *testing.T, module string) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} { // the second is the distribution's
		if exec.Command(python, "-c", "import "+module).Run() == nil {
			return python
		}
	}
	t.Skipf("no python3 on this machine has the module %s (Debian: python3-%s)", module, module)
	return ""
}

// installNode copies a directory with a package.json, has npm install what that needs, and returns the copy.
func installNode(t *testing.T, dir string) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not on this machine", program)
		}
	}
	there := t.TempDir()
	if err := os.CopyFS(there, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = there
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("npm does not get the package etcd3: %v\n%s", err, out)
	}
	return there
}

// survivesByEtcd runs an example, whose first node is the leader, and kills the leader after some writes.
func survivesByEtcd(t *testing.T, argv []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, nodes := startCluster(ctx, t)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Etcd)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1], "example", fmt.Sprint(writes))
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS="+strings.Join(addrs, ","))
	output, killed := run(ctx, t, cmd, c)

	wrote := numbered(output, "write")
	if len(wrote) != writes || !slices.Equal(wrote, numbered(output, "seen")) {
		t.Errorf("the watch does not show each of %d writes once:\n%s", writes, output)
	}
	if !strings.HasSuffix(output, "resigned\n") {
		t.Errorf("the example did not resign:\n%s", output)
	}
	want := map[string]string{} // and not the key that it has held
	for i := 1; i <= writes; i++ {
		want[fmt.Sprintf("examples/example/%d", i)] = fmt.Sprint(i)
	}
	survivor := c.Nodes[slices.IndexFunc(c.Nodes, func(n *proc.Node) bool { return n != killed })]
	if got := allKeys(t, survivor); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("keys at the end: %v", got)
	}
}

// numbered returns what follows a word at the beginnings of lines, if the first numbers there are 1, 2, 3 and so on.
func numbered(output, word string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^`+word+` ((\d+) revision \d+)$`).FindAllStringSubmatch(output, -1) {
		if m[2] != fmt.Sprint(len(all)+1) {
			return nil
		}
		all = append(all, m[1])
	}
	return all
}

// allKeys returns all keys with their values, as a node's JSON gateway lists them.
func allKeys(t *testing.T, n *proc.Node) map[string]string {
	t.Helper()
	zero := base64.StdEncoding.EncodeToString([]byte{0}) // as key and end: all keys
	body, err := json.Marshal(map[string]string{"key": zero, "range_end": zero})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+n.Etcd+"/v3/kv/range", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct {
		Kvs []struct{ Key, Value []byte }
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, kv := range list.Kvs {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all
}
