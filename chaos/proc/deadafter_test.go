package proc

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// members.dead-after: of four voters the dead one is removed by itself, and refused
// when it comes back; of the three that are left, and of three from the beginning,
// none is. Without the key, nobody ever is.
func TestDeadVoterIsRemoved(t *testing.T) {
	t.Parallel()
	const after = "10s" // the least that it takes
	four, three, off := newCluster(t, 4, "--members-dead-after", after), newCluster(t, 3, "--members-dead-after", after), newCluster(t, 4)
	var dead []*Node
	for _, c := range []*Cluster{four, three, off} {
		start(t, c)
		lead := steady(t, c)
		gone := others(c, lead)[0]
		gone.Kill()
		dead = append(dead, gone)
	}
	removed := fmt.Sprintf("member %s left the configuration", dead[0].ID)
	var told *Node
	eventually(t, 2*soon, func() error {
		for _, n := range others(four, dead[0]) {
			if strings.Contains(four.Log(n), removed) {
				told = n
				return nil
			}
		}
		return fmt.Errorf("%s is still a member", dead[0].ID)
	})
	if voters := members(t, told); len(voters) != 3 || voters[dead[0].ID] {
		t.Errorf("members: %v", voters)
	}
	mustPut(t, four, "k", "v")
	if err := four.StartNode(dead[0]); err != nil {
		t.Fatal(err)
	}
	says(t, four, dead[0], "refusal=removed")
	eventually(t, soon, func() error {
		s, err := nodeStatus(t.Context(), dead[0])
		if err == nil && s.Lifecycle != "dead" {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	// By now the others' dead voters have been silent for as long, but for moments.
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); pause(100 * time.Millisecond) {
		for i, c := range []*Cluster{three, off} {
			n := others(c, dead[i+1])[0]
			if left := members(t, n); len(left) != len(c.Nodes) {
				t.Fatalf("of %d voters, some were removed: %v", len(c.Nodes), left)
			}
		}
	}
}

// members are those of the configuration that vote, as a node sees it.
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
