package consensus_test

import (
	"fmt"
	"strings"
	"testing"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/state"
)

// TestLogIsBoundedInBytes: writes of large values that have no effect make every node's log long in bytes, not in
// entries. A snapshot is due long before its interval has passed, and few entries stay.
func TestLogIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	const limit, value, writes = 256 << 10, 4 << 10, 1000
	c := newCluster(t, 3)
	c.tune = func(cfg *consensus.Config) { cfg.LogBytes = limit }
	for _, n := range c.nodes {
		n.start()
	}
	c.elect()
	c.write("k", "v")
	refused := state.Command{Kind: state.KindPut, Put: &state.Put{
		Key: "k", Value: []byte(strings.Repeat("v", value)), IfAbsent: true,
	}}
	most := 0
	for i := range writes {
		c.whileLeading(fmt.Sprint("write ", i), func(leader *testNode) error {
			r, err := leader.Propose(within(t, testTimeout), refused)
			if err == nil {
				wantCode(t, r.Err, cluster.CodeConditionFailed)
			}
			return err
		})
		if i%100 == 0 {
			most = max(most, c.leader().LogBytes())
		}
	}
	for _, n := range c.nodes {
		eventually(t, "a short log on "+string(n.id), func() bool { return n.LogBytes() <= 3*limit })
	}
	if most >= writes*value {
		t.Errorf("the log had %d bytes", most)
	}
	n := c.others(c.leader())[0]
	n.restart()
	c.write("after", "1")
	c.everywhere("after", "1")
}

// TestFullStateKeepsTheLogShort: once the state is full, the leader refuses larger values without proposing them.
func TestFullStateKeepsTheLogShort(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 1)
	limits := &state.LimitsChange{StateBytes: state.MinStateBytes, SessionsPerIdentity: 1}
	eventually(t, "limits", func() bool {
		r, err := c.leader().Propose(within(t, testTimeout), state.Command{Kind: state.KindLimits, Limits: limits})
		return err == nil && r.Err == nil
	})
	const value = 64 << 10
	large := strings.Repeat("v", value)
	leader := c.leader()
	for i := 0; leader.put(fmt.Sprint("k", i), large) == nil; i++ {
	}
	before := leader.LogBytes()
	for range 10 {
		_, err := leader.Propose(within(t, testTimeout), put("n", large))
		wantCode(t, err, cluster.CodeQuotaExceeded)
	}
	if grown := leader.LogBytes() - before; grown >= value {
		t.Errorf("refused writes made the log grow by %d bytes", grown)
	}
	if err := leader.put("k0", "short"); err != nil {
		t.Error(err)
	}
}
