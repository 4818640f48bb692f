package proc

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// members.dead-after removes the dead one of four voters, which is refused when it returns. It removes none of the
// three that are left, and none of a cluster of three.
func TestDeadVoterIsRemoved(t *testing.T) {
	t.Parallel()
	const after = "10s" // the minimum
	four, three := newCluster(t, 4, "--members-dead-after", after), newCluster(t, 3, "--members-dead-after", after)
	var dead []*Node
	for _, c := range []*Cluster{three, four} {
		start(t, c)
		lead := steady(t, c)
		gone := others(c, lead)[0]
		gone.Kill()
		dead = append(dead, gone)
	}
	first, second := dead[1], dead[0] // of four, and of three
	removed := fmt.Sprintf("member %s was removed from the Raft configuration", first.ID)
	var witness *Node
	eventually(t, 2*soon, func() error {
		for _, n := range others(four, first) {
			if strings.Contains(four.Log(n), removed) {
				witness = n
				return nil
			}
		}
		return fmt.Errorf("%s is still a member", first.ID)
	})
	if voters := members(t, witness); len(voters) != 3 || voters[first.ID] {
		t.Errorf("members: %v", voters)
	}
	mustPut(t, four, "k", "v")
	if err := four.StartNode(first); err != nil {
		t.Fatal(err)
	}
	awaitLog(t, four, first, "refusal=removed")
	eventually(t, soon, func() error {
		s, err := nodeStatus(t.Context(), first)
		if err == nil && s.Lifecycle != "dead" {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	// The dead node of the three has been silent for longer by now.
	for end := time.Now().Add(time.Second); time.Now().Before(end); pause(100 * time.Millisecond) {
		if left := members(t, others(three, second)[0]); len(left) != 3 {
			t.Fatalf("of three voters, some were removed: %v", left)
		}
	}
}

// members returns the voters of the configuration, as a node reports them.
func members(t *testing.T, n *Node) map[string]bool {
	t.Helper()
	var found map[string]bool
	eventually(t, soon, func() error {
		var view struct {
			Members []struct{ ID, Suffrage string }
		}
		body, err := Get(t.Context(), "http://"+n.HTTP+"/v1/cluster")
		if err == nil {
			err = json.Unmarshal(body, &view)
		}
		if err != nil {
			return err
		}
		found = map[string]bool{}
		for _, m := range view.Members {
			if m.Suffrage == "voter" {
				found[m.ID] = true
			}
		}
		return nil
	})
	return found
}
