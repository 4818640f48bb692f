package proc

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"northstar/api/apiv1"
	"northstar/chaos/ports"
)

// A node that was removed comes back as docs/install.md describes it for a pod: with an empty data directory, and after
// an operator has added it. Neither its old data nor its certificate is enough.
func TestRemovedNodeIsAddedAgain(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	s := &secured{Cluster: newCluster(t, 3), t: t, dir: t.TempDir()}
	first := s.Nodes
	addrs, err := ports.Reserve(2)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{ID: "n4", Raft: addrs[0], HTTP: addrs[1]}
	s.Nodes = append(slices.Clone(first), n)
	s.certify(a)
	replace(t, s.file("ca.crt"), a.pem())
	for _, m := range s.Nodes {
		s.Extra[m.ID] = []string{
			"--tls-ca", s.file("ca.crt"), "--tls-cert", s.file(m.ID + ".crt"), "--tls-key", s.file(m.ID + ".key"),
		}
	}
	s.Extra[n.ID] = append(s.Extra[n.ID], "--initial-cluster=", "--join", first[0].HTTP) // the last flag counts
	cert, key := a.issue("--client", "operator/alice")
	operator := []string{
		"--endpoints", first[0].HTTP + "," + first[1].HTTP, "--ca", s.file("ca.crt"), "--cert", cert, "--key", key,
		"--yes", "members",
	}
	do := func(args ...string) {
		t.Helper()
		mustCtl(t, append(slices.Clone(operator), args...)...)
	}
	voter := func() {
		t.Helper()
		eventually(t, 2*soon, func() error {
			out, code := ctl(t, append(slices.Clone(operator), "list", "-o", "json")...)
			var list []apiv1.Member
			if code != 0 || json.Unmarshal([]byte(out), &list) != nil {
				return fmt.Errorf("exit code %d: %s", code, out)
			}
			i := slices.IndexFunc(list, func(m apiv1.Member) bool { return m.ID == n.ID })
			if i < 0 || !list[i].Healthy || list[i].Suffrage != "voter" || list[i].Lifecycle != "active" {
				return fmt.Errorf("%s is no voter yet: %+v", n.ID, list)
			}
			return nil
		})
	}
	start := func() {
		t.Helper()
		if err := s.StartNode(n); err != nil {
			t.Fatal(err)
		}
	}
	stop := func() {
		t.Helper()
		if err := n.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := n.Wait(); code != 0 {
			t.Errorf("exit code %d on SIGTERM", code)
		}
	}

	s.Nodes = first
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.Nodes = append(slices.Clone(first), n)
	start()
	voter()
	do("remove", n.ID)
	stop()

	logged := len(s.Log(n)) // it may have heard of its removal before it stopped
	start()
	awaitLogFrom(t, s.Cluster, n, logged, "refusal=removed")
	stop()
	if err := os.RemoveAll(s.DataDir(n)); err != nil {
		t.Fatal(err)
	}
	start()
	awaitLog(t, s.Cluster, n, "only an operator may add it again")
	do("add", n.ID, "--raft", n.Raft, "--http", n.HTTP)
	voter()
}
