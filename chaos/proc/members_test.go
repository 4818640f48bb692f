package proc

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"northstar/api/apiv1"
	"northstar/chaos/ports"
)

// memberList returns the members as northstarctl lists them.
func memberList(t *testing.T, c *Cluster) (list []apiv1.Member) {
	t.Helper()
	if err := json.Unmarshal([]byte(mustCtl(t, "--endpoints", endpoints(c), "members", "list", "-o", "json")),
		&list); err != nil {
		t.Fatal(err)
	}
	return list
}

// memberIs waits until a member's list entry satisfies a condition.
func memberIs(t *testing.T, c *Cluster, id string, is func(apiv1.Member) bool) {
	t.Helper()
	eventually(t, soon, func() error {
		list := memberList(t, c)
		i := slices.IndexFunc(list, func(m apiv1.Member) bool { return m.ID == id })
		if i < 0 || !is(list[i]) {
			return fmt.Errorf("%s is not yet as it should be: %+v", id, list)
		}
		return nil
	})
}

// An operator changes members while the cluster serves writes. Settings apply immediately, a node is demoted and
// promoted, a node moves to another address, and a dead node is replaced by one with a new ID. Changes that would cost
// the quorum are refused.
func TestMembersByHand(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--failover-takeover-delay", "200ms", "--election-timeout-min", "400ms",
		"--election-timeout-max", "800ms")
	start(t, c)
	old := acquainted(t, c)
	rest := others(c, old)
	ctl := func(args ...string) string {
		t.Helper()
		return mustCtl(t, append([]string{"--endpoints", endpoints(c), "--yes"}, args...)...)
	}
	ok := func(m apiv1.Member) bool { return m.Healthy && m.Suffrage == "voter" && m.Lifecycle == "active" }

	// A priority applies immediately: that node takes over leadership.
	ctl("members", "set", rest[0].ID, "--priority", "200", "--zone", "b")
	eventually(t, soon, func() error {
		if n := c.agreed(t.Context()); n != rest[0] {
			return fmt.Errorf("%s has priority 200, and does not lead", rest[0].ID)
		}
		return nil
	})
	memberIs(t, c, rest[0].ID, func(m apiv1.Member) bool { return ok(m) && m.Priority == 200 && m.Zone == "b" })
	ctl("members", "set", rest[0].ID, "--priority", "100")

	ctl("members", "demote", rest[1].ID)
	memberIs(t, c, rest[1].ID, func(m apiv1.Member) bool { return m.Suffrage == "nonvoter" })
	ctl("members", "promote", rest[1].ID)
	memberIs(t, c, rest[1].ID, ok)

	moves(t, c, rest[1], ctl)
	memberIs(t, c, rest[1].ID, func(m apiv1.Member) bool {
		return ok(m) && m.RaftAddress == rest[1].Raft && m.HTTPAddress == rest[1].HTTP
	})

	replaced(t, c, old, ctl)
	mustPut(t, c, "k", "after all of it")
}

// moves changes a node's addresses, as docs/members.md describes it.
func moves(t *testing.T, c *Cluster, n *Node, ctl func(...string) string) {
	t.Helper()
	if err := n.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := n.Wait(); code != 0 {
		t.Errorf("%s: exit code %d on SIGTERM", n.ID, code)
	}
	addrs, err := ports.Reserve(2)
	if err != nil {
		t.Fatal(err)
	}
	n.Raft, n.HTTP = addrs[0], addrs[1]
	ctl("members", "set", n.ID, "--raft", n.Raft, "--http", n.HTTP)
	if err := c.StartNode(n); err != nil {
		t.Fatal(err)
	}
}

// replaced kills a node permanently and adds another one. In between, changes that would cost the quorum are refused.
func replaced(t *testing.T, c *Cluster, gone *Node, do func(...string) string) {
	t.Helper()
	gone.Kill()
	left := others(c, gone)
	memberIs(t, c, gone.ID, func(m apiv1.Member) bool { return !m.Healthy })
	for _, args := range [][]string{{"demote", left[0].ID}, {"remove", left[1].ID}} {
		out, code := ctl(t, append([]string{"--endpoints", endpoints(c), "--yes", "members"},
			append(args, "--dry-run", "-o", "json")...)...)
		if code != 1 || !strings.Contains(out, "ERR_QUORUM_AT_RISK") {
			t.Errorf("%v with %s gone: exit code %d\n%s", args, gone.ID, code, out)
		}
		if out, code := ctl(t, append([]string{"--endpoints", endpoints(c), "--yes", "members"},
			args...)...); code != 1 {
			t.Errorf("%v with %s gone: exit code %d\n%s", args, gone.ID, code, out)
		}
	}
	if list := memberList(t, c); len(list) != 3 ||
		slices.ContainsFunc(list, func(m apiv1.Member) bool { return m.Suffrage != "voter" }) {
		t.Errorf("what was refused has changed the members: %+v", list)
	}
	do("members", "remove", gone.ID)
	addrs, err := ports.Reserve(2)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{ID: "n4", Raft: addrs[0], HTTP: addrs[1]}
	c.Extra[n.ID] = []string{"--initial-cluster=", "--join", left[0].HTTP} // the last flag counts
	c.Nodes = append(left, n)
	if err := c.StartNode(n); err != nil {
		t.Fatal(err)
	}
	memberIs(t, c, n.ID, func(m apiv1.Member) bool {
		return m.Healthy && m.Suffrage == "voter" &&
			m.Lifecycle == "active"
	})
}
