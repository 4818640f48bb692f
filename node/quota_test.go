package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"northstar/cluster"
	"northstar/state"
)

// The limits of the leader's configuration are in force on all nodes, also after a restart, and are shown. Another
// leader brings its own. With them the state decides by RolesVersion.
func TestLimitsOfTheLeader(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, func(i int, c *Config) {
		c.Limits.StateBytes = Size(i+2) << 20
	})
	for _, n := range nodes {
		n.start()
	}
	inForce := func() (first *testNode) {
		t.Helper()
		eventually(t, "all nodes have the limits of the leader", func() bool {
			first = leader(t, nodes)
			return !slices.ContainsFunc(nodes, func(n *testNode) bool {
				v := n.Consensus().View()
				return v.Limits() != first.cfg.limits() || v.CommandVersion() < state.RolesVersion
			})
		})
		return first
	}
	first := inForce()
	url := "http://" + first.httpAddr
	value := strings.Repeat("v", 1<<20)
	for i := range 4 {
		status, _, err := request(plain, "PUT", url+fmt.Sprintf("/v1/kv/%d", i), value)
		if err != nil {
			t.Fatal(err)
		}
		if status != 200 {
			break
		}
	}
	want(t, plain, "PUT", url+"/v1/kv/more", value, 507, `"code":4020`)
	want(t, plain, "GET", url+"/v1/cluster", "", 200, fmt.Sprintf(`"bytes_limit":%d`, first.cfg.Limits.StateBytes))
	want(t, plain, "GET", url+"/metrics", "", 200,
		fmt.Sprintf("northstar_state_bytes_limit %v", float64(first.cfg.Limits.StateBytes)))
	want(t, plain, "GET", url+"/metrics", "", 200, `northstar_proposals_total{result="quota_exceeded"}`)
	eventually(t, "the refusal is an event", func() bool {
		_, text, err := request(plain, "GET", url+"/v1/events?type=quota", "")
		return err == nil && strings.Contains(text, "quota exceeded")
	})
	for _, n := range nodes {
		warned := slices.ContainsFunc(n.warnings(), func(w string) bool { return strings.HasPrefix(w, "limits: ") })
		if warned != (n.cfg.Limits != first.cfg.Limits) {
			t.Errorf("%s: warnings %q", n.cfg.ID, n.warnings())
		}
	}
	before := first.Consensus().View().StateBytes()
	first.stop()
	first.start()
	next := inForce()
	eventually(t, "the restarted node has the same state", func() bool {
		return first.Consensus().View().StateBytes() == before
	})
	if got := next.Consensus().View().Limits(); got != next.cfg.limits() || got == (state.Limits{}) {
		t.Errorf("%+v", got)
	}
}

// A leader proposes no limits that are in force already, or that some member cannot read.
func TestLimitsChange(t *testing.T) {
	t.Parallel()
	own := state.Limits{StateBytes: 1 << 30, SessionsPerIdentity: 7}
	bounded := own
	bounded.KeysPerSession = state.MaxSessionKeys
	const before, newest = state.BoundsVersion - 1, state.CommandVersion
	for _, c := range []struct {
		what         string
		inForce, own state.Limits
		inUse, reads uint32
		want         state.Limits // zero: no command
		raises       bool
	}{
		{"the first", state.Limits{}, own, newest, newest, own, false},
		{"in force already", own, own, newest, newest, state.Limits{}, false},
		{"only what some member cannot read", own, bounded, before, before, state.Limits{}, false},
		{"without what some member cannot read", state.Limits{}, bounded, before, before, own, false},
		{"the last member reads the bounds", own, bounded, before, state.BoundsVersion, bounded, false},
		{"some member reads less than RolesVersion", own, own, before, state.RolesVersion - 1, state.Limits{}, false},
		{"the last member reads RolesVersion", own, own, state.RolesVersion - 1, state.RolesVersion, own, true},
		{"a new cluster", state.Limits{}, bounded, 1, newest, bounded, true},
		{"RolesVersion is in the log", own, own, state.RolesVersion, newest, state.Limits{}, false},
		{"RolesVersion is in the log, other limits", own, bounded, state.RolesVersion, newest, bounded, false},
		{"a member has not started, in force already", own, own, state.RolesVersion, 1, state.Limits{}, false},
		{"a member has not started, other limits", own, bounded, state.RolesVersion, 1, bounded, false},
		{"a member has not started, RolesVersion is new", own, bounded, state.BoundsVersion, 1, bounded, false},
	} {
		cmd := limitsChange(c.inForce, c.own, c.inUse, c.reads)
		if cmd == nil && c.want == (state.Limits{}) {
			continue
		}
		want := c.want.Change(c.raises)
		if cmd == nil || *cmd.Limits != *want.Limits || cmd.NeededVersion(c.inUse) > c.reads {
			t.Errorf("%s: %+v", c.what, cmd)
		}
	}
	for reads := uint32(1); reads <= 4; reads++ {
		if cmd := limitsChange(state.Limits{}, own, 1, reads); cmd != nil {
			t.Errorf("members read version %d: %+v", reads, cmd)
		}
	}
}

// A cluster takes a fixed number of node IDs in its life. It warns before they run out, also if the nodes are gone.
func TestNodeIDsRunOut(t *testing.T) {
	t.Parallel()
	for records, want := range map[int]bool{
		3: false, state.MaxMembers - nodeIDsLeft - 1: false,
		state.MaxMembers - nodeIDsLeft: true, state.MaxMembers: true,
	} {
		if got := nodeIDsWarning(records); (got != "") != want {
			t.Errorf("%d records: %q", records, got)
		}
	}
	n := newCluster(t, 1, nil)[0]
	startAll(t, []*testNode{n})
	eventually(t, "the node has a record", func() bool { return len(n.Consensus().View().Members()) == 1 })
	var proposals sync.WaitGroup
	for i := range state.MaxMembers - nodeIDsLeft - 1 {
		proposals.Go(func() {
			id := cluster.NodeID(fmt.Sprint("gone", i))
			for _, cmd := range []state.Command{
				{Kind: state.KindMember, Member: &cluster.Member{ID: id, Lifecycle: cluster.Active}},
				{Kind: state.KindMemberRemove, MemberRemove: &state.MemberRemove{ID: id}},
			} {
				if _, err := n.Consensus().Propose(t.Context(), cmd); err != nil {
					t.Error(err)
				}
			}
		})
	}
	proposals.Wait()
	want(t, plain, "GET", "http://"+n.httpAddr+"/status", "", 200, `node IDs: the cluster knows 900`)
}
