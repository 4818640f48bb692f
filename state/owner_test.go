package state

import (
	"bytes"
	"strings"
	"testing"

	"northstar/cluster"
)

func ownedSession(name, owner string) Command {
	c := create(name)
	c.SessionCreate.Owner = owner
	return c
}

// A session keeps the identity of its creator, also in a snapshot. Only that field needs the newer version.
func TestSessionOwner(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	c := ownedSession("a", "client alice")
	mustApply(t, s, create("old"))
	if v := s.View().version; v != 1 {
		t.Fatalf("version %d without an owner", v)
	}
	id := apply(s, c)[0].Session.ID
	if v := s.View().version; v != ownerVersion || c.MinVersion() != ownerVersion {
		t.Fatalf("version %d with an owner", v)
	}
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	if got, ok := again.View().Session(id); !ok || got.Owner != "client alice" {
		t.Fatalf("%+v after a restart", got)
	}
	if !bytes.Equal(snapshotOf(t, again), snapshotOf(t, s)) {
		t.Fatal("read and written differently")
	}
	wantCode(t, apply(s, ownedSession("a", strings.Repeat("x", MaxOwner+1)))[0].Err, cluster.CodeBadRequest)

	created := c.SessionCreate
	c.DropOwner()
	if c.MinVersion() != 1 || created.Owner == "" || c.SessionCreate.Name != "a" {
		t.Fatalf("%+v of %+v", c.SessionCreate, created)
	}
}
