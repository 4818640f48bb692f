package state

import (
	"io"
	"sync"
	"testing"
)

// TestEncodingOnlyReads holds that encoding writes to no record, because readers share them. The race detector reports
// a write.
func TestEncodingOnlyReads(t *testing.T) {
	t.Parallel()
	_, cmds := goldenCommands()
	var encoders sync.WaitGroup
	for range 2 {
		encoders.Go(func() {
			for _, c := range cmds {
				if _, err := EncodeBatch([]Command{c}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	encoders.Wait()
}

// TestSnapshotOnlyReads holds the same for the records of a snapshot.
func TestSnapshotOnlyReads(t *testing.T) {
	t.Parallel()
	s := busyState(t)
	var writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			if _, err := s.Snapshot().WriteTo(io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
}
