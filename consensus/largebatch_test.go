package consensus_test

import (
	"testing"

	"northstar/consensus"
)

// TestManyLargeCommands: registrations of application nodes that come together are more than an entry may have. One
// entry with all of them would reach no follower, and the leader would commit nothing more.
func TestManyLargeCommands(t *testing.T) {
	t.Parallel()
	const count = 600 // of 33 kB each
	c, leader := startCalmCluster(t, 3)
	release := leader.HoldQueue()
	ctx, errs := within(t, 3*testTimeout), make(chan error, count) // 60 MB to disks under the race detector
	for range count {
		go func() {
			_, err := leader.Propose(ctx, consensus.LargeRegistration())
			errs <- err
		}()
	}
	eventually(t, "all of them wait", func() bool { return leader.QueuedWrites() == count })
	release()
	for done := range count {
		if err := <-errs; err != nil {
			t.Fatalf("%d of %d are done, %d wait: %v", done, count, leader.QueuedWrites(), err)
		}
	}
	c.write("after", "them")
	c.everywhere("after", "them")
}
