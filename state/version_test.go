//go:build !northstar_next

package state

import (
	"errors"
	"testing"
)

// A batch of a build of the next version stops this build. Not even the put before the unknown command is returned.
func TestNextVersionStopsThisBuild(t *testing.T) {
	t.Parallel()
	cmds, err := DecodeBatch(noteBytes(t))
	var unknown *UnknownCommandError
	if !errors.As(err, &unknown) || unknown.Version != CommandVersion+1 || unknown.Kind != 1000 {
		t.Fatalf("got %v", err)
	}
	if cmds != nil {
		t.Fatalf("got %+v beside the error", cmds)
	}
}
