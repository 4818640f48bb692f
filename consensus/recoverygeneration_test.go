package consensus_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/state"
)

// TestRecoverAfterARestore: the backup of a cluster that was recovered twice is restored into a new cluster. The quorum
// of that is lost then. What its nodes have given out is of later generations than theirs and than that of the backup.
func TestRecoverAfterARestore(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"online", "offline"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c, _ := startCluster(t, 3)
			backup := backupOfGeneration(t, 3)
			c.onLeader("a restore", func(n *testNode) error {
				return n.Restore(within(t, testTimeout), bytes.NewReader(backup))
			})
			c.write("a", "1")
			c.everywhere("a", "1")
			leader := c.leader()
			acked := leader.View().Revision()
			want := state.NextGeneration(1, acked)
			left := c.others(leader)[0]
			request := c.recoveryRequest(left)
			lose(c.others(left)...)
			var g cluster.Generation
			var err error
			if how == "offline" {
				g, err = left.recoverStopped(request.Confirm)
			} else {
				var plan cluster.RecoveryPlan
				eventually(t, "a plan", func() bool {
					plan, err = left.PlanRecovery(within(t, testTimeout), request)
					return err == nil
				})
				if plan.Generation != want {
					t.Errorf("planned: generation %d", plan.Generation)
				}
				g, err = left.Recover(within(t, testTimeout), request)
			}
			if err != nil || g.Number != want || want < 5 {
				t.Errorf("generation %d, %v", g.Number, err)
			}
			c.write("after", "recovery")
			items, _ := c.leader().View().List("", "", 0)
			for _, it := range items {
				if it.Revision>>40 != want-1 || it.Revision <= acked {
					t.Errorf("%s has revision %d; %d was acknowledged before", it.Key, it.Revision, acked)
				}
			}
		})
	}
}

// backupOfGeneration returns the backup of another cluster, in a generation.
func backupOfGeneration(t *testing.T, number uint64) []byte {
	t.Helper()
	s := state.New(state.Options{})
	for i, cmd := range []state.Command{
		{Kind: state.KindClusterInit, ClusterInit: &state.ClusterInit{
			ClusterID: "another", Generation: cluster.Generation{Number: number, RecoveryID: "r"}, AutoFailover: true,
		}},
		put("kept", "from backup"),
	} {
		if r := s.Apply(uint64(i+1), 1, []state.Command{cmd})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// recoverStopped stops a node, recovers its data directory, and starts it.
func (n *testNode) recoverStopped(confirm string) (cluster.Generation, error) {
	n.stop()
	dir, err := consensus.OpenOffline(n.dir)
	if err != nil {
		return cluster.Generation{}, err
	}
	g, err := dir.Recover(confirm, "test", rand.Reader)
	if err = errors.Join(err, dir.Close()); err == nil {
		n.start()
	}
	return g, err
}

// A recovery is refused when the revisions below 2^53 are used up. No node could apply its first command.
func TestRecoverAfterTheLastGeneration(t *testing.T) {
	t.Parallel()
	if g, err := consensus.PlanRecoveryIn(state.MaxGeneration - 1); err != nil || g.Number != state.MaxGeneration {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err := consensus.PlanRecoveryIn(state.MaxGeneration); !cluster.IsCode(err, cluster.CodeBadRequest) ||
		!strings.Contains(err.Error(), "at most 4096") {
		t.Error(err)
	}
}

// A member that was added and never started supports no version that is known. After a recovery roles have a lock delay
// nevertheless, because the log has a version with it.
func TestRecover_MemberThatNeverStarted(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	eventually(t, "members read this build's version", func() bool {
		return c.leader().ReadsVersion() == state.CommandVersion
	})
	c.write(strings.Repeat("k", 1025), "needs a newer command version")
	c.onLeader("an addition", func(n *testNode) error {
		return n.AddMember(within(t, testTimeout), cluster.MemberAdd{
			ID: "n4", RaftAddress: freeAddress(t), HTTPAddress: "http-n4",
		})
	})
	c.write("a", "1")
	c.everywhere("a", "1")
	leader := c.leader()
	left := c.others(leader)[0]
	if v := left.View().CommandVersion(); v < 4 || left.ReadsVersion() != 1 {
		t.Fatalf("the log has version %d, members read %d", v, left.ReadsVersion())
	}
	lose(c.others(left)...)
	request := c.recoveryRequest(left)
	eventually(t, "a plan", func() bool {
		_, err := left.PlanRecovery(within(t, testTimeout), request)
		return err == nil
	})
	if _, err := left.Recover(within(t, testTimeout), request); err != nil {
		t.Fatal(err)
	}
	if _, delay := left.View().ClusterLockDelay(); delay == 0 {
		t.Error("roles have no lock delay after the recovery")
	}
}
