package node

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/state"
	"northstar/telemetry"
)

// TestLastResort_TakesNoWrites: a node that may not lead is elected when no other node can be. Its election says why,
// it takes no client's write, and it serves as usual once an operator lets it lead.
func TestLastResort_TakesNoWrites(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil)[0]
	n.start()
	set := func(eligible bool) {
		eventually(t, "the record is changed", func() bool {
			return leader(t, []*testNode{n}).Consensus().ChangeMember(t.Context(), cluster.MemberChange{
				ID: n.cfg.ID, Patch: &cluster.MemberPatch{Eligible: &eligible},
			}) == nil
		})
	}
	put := func() error {
		_, err := n.Consensus().Propose(t.Context(), state.Command{
			Kind: state.KindPut, Put: &state.Put{Key: "a", Value: []byte("1")},
		})
		return err
	}
	leader(t, []*testNode{n})
	set(false)
	if err := put(); err != nil {
		t.Errorf("a leader that was elected as usual: %v", err)
	}
	n.stop()
	n.start()
	leader(t, []*testNode{n})
	if err := put(); !cluster.IsCode(err, cluster.CodeNoLeader) ||
		!strings.Contains(err.Error(), "leads only to transfer leadership") {
		t.Errorf("a write: %v", err)
	}
	if why := n.electionFacts(99).Reason; !strings.HasPrefix(why, "last resort: node n1 is not eligible") {
		t.Errorf("the reason of such an election: %q", why)
	}
	set(true)
	eventually(t, "it takes writes", func() bool { return put() == nil })
}

// TestPriorityZeroEverywhere: a new cluster whose members all have priority 0 elects no leader, and each node says why.
// An operator's request elects one, which takes writes and sets priorities of members.
func TestPriorityZeroEverywhere(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, func(_ int, c *Config) { c.Priority = 0 })
	for _, n := range nodes {
		n.start()
	}
	for _, n := range nodes {
		eventually(t, "the node says why it starts no election", func() bool {
			_, body, err := request(plain, http.MethodGet, "http://"+n.httpAddr+"/status", "")
			return err == nil && n.mayVote() && strings.Contains(body, `"election_obstacle":"it has priority 0"`)
		})
	}
	for _, n := range nodes {
		if st := n.Consensus().Status(); st.LeaderID != "" {
			t.Errorf("%s leads in term %d", st.LeaderID, st.Term)
		}
	}
	eventually(t, "an operator's request elects a leader", func() bool {
		status, _, err := request(plain, http.MethodPost, "http://"+nodes[0].httpAddr+"/admin/failover/emergency",
			`{"target_leader_id":"n2","force":true,"reason":"no member may lead"}`)
		return err == nil && status == http.StatusOK
	})
	url := "http://" + nodes[0].httpAddr
	want(t, plain, http.MethodPut, url+"/v1/kv/a", "1", http.StatusOK, "")
	want(t, plain, http.MethodPatch, url+"/admin/members/n1", `{"priority":100,"reason":"it may lead"}`, http.StatusOK, "")
	eventually(t, "the member that may lead takes over", func() bool {
		return nodes[0].Consensus().Status().Role == cluster.Leader
	})
}

func TestLastResortWarning(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		voters, nonVoters int
		change            func(members []cluster.Member)
		want              string
	}{
		{3, 0, func([]cluster.Member) {}, ""},
		{3, 0, func(m []cluster.Member) { m[1].Eligible = false }, "of 3 voters, n2 may not lead"},
		{3, 0, func(m []cluster.Member) { m[2].Priority = 0 }, "of 3 voters, n3 may not lead"},
		{3, 0, func(m []cluster.Member) { m[1].Lifecycle = cluster.Draining }, ""},
		{3, 1, func(m []cluster.Member) { m[3].Eligible = false }, ""},
		{2, 0, func(m []cluster.Member) { m[1].Eligible = false }, ""},
		{1, 0, func(m []cluster.Member) { m[0].Eligible = false }, "no voter may lead"},
		{
			3, 0, func(m []cluster.Member) { m[0].Eligible, m[1].Priority, m[2].Eligible = false, 0, false },
			"no voter may lead",
		},
		{5, 0, func(m []cluster.Member) { m[1].Eligible = false }, ""},
		{5, 0, func(m []cluster.Member) { m[1].Eligible, m[2].Priority = false, 0 }, "of 5 voters, n2, n3 may"},
	} {
		var servers []cluster.Server
		var members []cluster.Member
		for i := range tt.voters + tt.nonVoters {
			id := cluster.NodeID("n" + string(rune('1'+i)))
			s := cluster.Server{ID: id, Suffrage: cluster.Voter}
			if i >= tt.voters {
				s.Suffrage = cluster.NonVoter
			}
			servers = append(servers, s)
			members = append(members, cluster.Member{ID: id, Eligible: true, Priority: 100, Lifecycle: cluster.Active})
		}
		tt.change(members)
		got := lastResortWarning(servers, members)
		if !strings.HasPrefix(got, tt.want) || (got != "") != (tt.want != "") {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// Each change of the leader is one line of the log, its loss a warning.
func TestLeaderChanges_AreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	eventLog := telemetry.NewEventLog("n1", "b", 8, hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info}))
	recordLeader(eventLog, "n2", 4)
	recordLeader(eventLog, "", 4)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "[INFO]  node n2 leads in term 4") ||
		!strings.Contains(lines[1], "[WARN]  no leader known") {
		t.Errorf("%q", lines)
	}
}
