package state

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func grant(id, ttl int64) Command {
	return Command{Kind: KindLeaseGrant, LeaseGrant: &LeaseGrant{ID: id, TTL: ttl}}
}

func revoke(id int64) Command {
	return Command{Kind: KindLeaseRevoke, LeaseRevoke: &LeaseRevoke{ID: id}}
}

func leasePut(key string, lease int64) Command {
	return txnCommand(Txn{Success: []Op{{Put: &TxnPut{Key: key, Lease: lease}}}})
}

func leaseIDs(v *View) (ids []int64) {
	for s := range v.Leases() {
		ids = append(ids, s.Lease)
	}
	return ids
}

func TestLeaseGrant(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	for _, c := range []struct {
		id, ttl int64
		want    time.Duration
		err     Refusal
	}{
		{5, 10, 10 * time.Second, 0},
		{5, 10, 0, LeaseExists},
		{6, 0, time.Second, 0},
		{7, -3, time.Second, 0},
		{-8, MaxLeaseTTL, MaxSessionTTL, 0},
		{9, MaxLeaseTTL + 1, 0, LeaseTTLTooLarge},
		{0, 10, 0, LeaseNotFound},
	} {
		r := apply(s, grant(c.id, c.ttl))[0]
		if refusalOf(r.Err) != c.err {
			t.Errorf("%d: %v", c.id, r.Err)
		} else if c.err == 0 && (r.Session.TTL != c.want || r.Session.Lease != c.id || LeaseOf(r.Session.ID) != c.id) {
			t.Errorf("%d: %+v", c.id, r.Session)
		}
	}
	if ids := leaseIDs(s.View()); !slices.Equal(ids, []int64{-8, 5, 6, 7}) || s.View().Revision() != 0 {
		t.Errorf("%d, revision %d", ids, s.View().Revision())
	}
}

// IDs of sessions grow in the order of creation, leases included: package roles finds new sessions by that.
func TestSessionIDsGrow(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	last := ""
	for i, c := range []Command{
		grant(1<<62, 1), grant(3, 1), create("a"), grant(2, 1), grant(-1, 1), put("a", ""), grant(9, 1), create("b"),
		grant(8, 1),
	} {
		r := apply(s, c)[0]
		if r.Session == nil {
			continue
		}
		if r.Session.ID <= last {
			t.Errorf("session %d: %q after %q", i, r.Session.ID, last)
		}
		last = r.Session.ID
	}
	mustApply(t, s, revoke(8))
	r := apply(s, grant(8, 1))[0]
	if r.Session.ID <= last {
		t.Errorf("a lease that is granted again: %q after %q", r.Session.ID, last)
	}
}

// A node that lags behind does not take a session for ended that it has not seen yet.
func TestMadeBefore(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("a", ""))
	empty := s.View()
	lease := apply(s, grant(7, 1))[0].Session.ID
	native := newSession(t, s, "native")
	mustApply(t, s, revoke(7))
	for _, id := range []string{lease, native} {
		if before, ok := empty.MadeBefore(id); before || !ok {
			t.Errorf("%q: %v, %v before it was made", id, before, ok)
		}
		if before, ok := s.View().MadeBefore(id); !before || !ok {
			t.Errorf("%q: %v, %v afterwards", id, before, ok)
		}
	}
	revision := strings.Repeat("f", SessionRevisionDigits)
	for _, id := range []string{
		"", "x", "zzzzzzzzzzzzzzabcdefgh", "deadbeef", revision, revision + "abcdefg", revision + "ABCDEFGH",
		revision + "-abc", revision + strings.Repeat("a", 33), revision + "~0-0",
		strings.ToUpper(revision) + "abcdefgh",
		lease + "0", lease[:len(lease)-1],
	} {
		if _, ok := empty.MadeBefore(id); ok {
			t.Errorf("%q is taken for an ID", id)
		}
	}
}

// The keys of a lease are deleted in one revision, when it is revoked and when it expires.
func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(*View) Command{
		"revoked": func(*View) Command { return revoke(4) },
		"expired": func(v *View) Command {
			l, _ := v.Lease(4)
			return end(CauseExpired, l.ID)
		},
	} {
		s := New(Options{})
		mustApply(t, s, grant(4, 10), leasePut("b", 4), leasePut("a", 4), put("c", ""), leasePut("d", 4))
		mustApply(t, s, leasePut("d", 0))
		if keys := s.View().LeaseKeys(4); !slices.Equal(keys, []string{"a", "b"}) {
			t.Fatal(keys)
		}
		c := cursor(t, s, "", s.View().Revision())
		mustApply(t, s, ends(s.View()))
		wantNext(t, c, 10, "6:a! 6:b!")
		if _, ok := s.View().Lease(4); ok || s.View().Sessions() != 0 || leaseIDs(s.View()) != nil {
			t.Errorf("%s: the lease is still there", name)
		}
		wantRefusal(t, apply(s, revoke(4))[0].Err, LeaseNotFound)
		wantRefusal(t, apply(s, leasePut("a", 4))[0].Err, LeaseNotFound)
	}
}

// A lease without keys ends without a revision.
func TestLeaseTakesNoRevision(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("a", ""), grant(4, 10), revoke(4), grant(4, 10))
	if v := s.View(); v.Revision() != 1 {
		t.Errorf("revision %d", v.Revision())
	}
}

// The number of keys of a lease is bounded, and known after a restart.
func TestLeaseKeysAreBounded(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, grant(4, 10))
	var cmds []Command
	for i := range MaxLeaseKeys {
		cmds = append(cmds, leasePut(fmt.Sprint("k", i), 4))
	}
	mustApply(t, s, cmds...)
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		wantRefusal(t, apply(s, leasePut("one more", 4))[0].Err, TooManyOps)
		mustApply(t, s, leasePut("k7", 4), del("k8"), leasePut("one more", 4))
		wantRefusal(t, apply(s, leasePut("k8", 4))[0].Err, TooManyOps)
	}
}

// A retried grant has the result of the first attempt.
func TestLeaseGrantReplay(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	c := grant(4, 10)
	c.Idempotency = &Idempotency{Key: "k"}
	mustApply(t, s, c, c)
	r := apply(s, c)[0]
	if r.Err != nil || r.Session.TTL != 10*time.Second || r.Session.ID == "" {
		t.Fatalf("%+v", r)
	}
	mustApply(t, s, revoke(4))
	if r = apply(s, c)[0]; r.Err != nil || r.Session.TTL != 10*time.Second || s.View().Sessions() != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestFirstRevision(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	first := Command{Kind: KindFirstRevision, FirstRevision: &FirstRevision{}}
	mustApply(t, s, first, first)
	if v := s.View(); v.Revision() != 1 || v.CompactRevision() != -1 {
		t.Fatalf("revision %d, compacted %d", v.Revision(), v.CompactRevision())
	}
	mustApply(t, s, put("a", ""), first)
	if v := s.View(); v.Revision() != 2 {
		t.Fatal(v.Revision())
	}
}

// Behind revision 0 the command begins to keep what changes replace, at the present revision, and changes no revision.
// A second one changes nothing.
func TestFirstRevisionKeepsReplaced(t *testing.T) {
	t.Parallel()
	first := Command{Kind: KindFirstRevision, FirstRevision: &FirstRevision{}}
	for name, native := range map[string]func(uint64, string) Command{
		"without numbers": func(_ uint64, value string) Command { return put("a", value) },
		"with numbers":    func(n uint64, value string) Command { return numbered(put("a", value), n, n, 1) },
	} {
		s := New(Options{})
		mustApply(t, s, native(1, "1"), native(2, "2"))
		if v := s.View(); v.KeepsReplaced() || v.CompactRevision() != 2 {
			t.Fatalf("%s: replaced items are kept before, compact revision %d", name, v.CompactRevision())
		}
		mustApply(t, s, first)
		if v := s.View(); !v.KeepsReplaced() || v.Revision() != 2 || allKeys(t, v, 0) != "a=2@2/1/2" {
			t.Errorf("%s: kept %v, revision %d, %s", name, v.KeepsReplaced(), v.Revision(), allKeys(t, v, 0))
		}
		mustApply(t, s, native(3, "3"), first)
		again := New(Options{})
		restore(t, again, snapshotOf(t, s))
		for _, s := range []*State{s, again} {
			v := s.View()
			if v.Revision() != 3 || v.CompactRevision() != 2 || allKeys(t, v, 2) != "a=2@2/1/2" {
				t.Errorf("%s: revision %d, compact revision %d, %s", name, v.Revision(), v.CompactRevision(), allKeys(t, v, 2))
			}
		}
	}
}

func TestCompact(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	compact := func(revision int64) Refusal {
		return refusalOf(apply(s, Command{Kind: KindCompact, Compact: &Compact{Revision: revision}})[0].Err)
	}
	mustApply(t, s, Command{Kind: KindFirstRevision, FirstRevision: &FirstRevision{}})
	for i := range 4 {
		mustApply(t, s, put("a", fmt.Sprint(i)))
	}
	mustApply(t, s, del("a"))
	for _, c := range []struct {
		revision int64
		want     Refusal
	}{{-1, Compacted}, {7, FutureRevision}, {4, 0}, {4, Compacted}, {3, Compacted}, {6, 0}, {6, Compacted}} {
		if got := compact(c.revision); got != c.want {
			t.Errorf("compact %d: %v, want %v", c.revision, got, c.want)
		}
	}
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		v := s.View()
		if v.CompactRevision() != 6 || allKeys(t, v, 6) != "" {
			t.Errorf("compacted %d", v.CompactRevision())
		}
		_, err := v.Range(context.Background(), &RangeQuery{Key: "a", Revision: 5}, nil)
		wantRefusal(t, err, Compacted)
		_, err = s.Feed().RangeCursor("a", "", 5)
		wantRefusal(t, err, Compacted)
		c, err := s.Feed().RangeCursor("a", "", 6) // the deletion at the compact revision is still there
		if err != nil {
			t.Fatal(err)
		}
		wantNext(t, c, 10, "6:a!")
		wantNext(t, cursor(t, s, "", 4), 10, "5:a 6:a!") // native watches are not affected
	}
}

// A lease is used by its owner and by operators only, also if its number was another identity's before.
func TestLeaseOfAnotherIdentity(t *testing.T) {
	t.Parallel()
	owned := func(id int64, owner string) Command {
		c := grant(id, 10)
		c.LeaseGrant.Owner = owner
		return c
	}
	end := func(id int64, caller string) Command {
		c := revoke(id)
		c.LeaseRevoke.Caller = caller
		return c
	}
	attach := func(id int64, caller string) Command {
		c := leasePut("a", id)
		c.Txn.Caller = caller
		return c
	}
	s := New(Options{})
	mustApply(t, s, owned(7, "client ann"), attach(7, "client ann"), end(7, "client ann"), owned(7, "client bob"),
		owned(8, ""), attach(8, "client ann"), owned(9, "client bob"))
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		nested := txnCommand(Txn{Success: []Op{
			putOp("b", "1"), {Txn: &Txn{Success: attach(7, "").Txn.Success, Caller: "client bob"}},
		}})
		nested.Txn.Caller = "client ann"
		before := s.View().Revision()
		for _, r := range apply(s, attach(7, "client ann"), nested, end(7, "client ann")) {
			if r.Err == nil || refusalOf(r.Err) != LeaseNotOwned {
				t.Errorf("the lease of another identity: %+v", r)
			}
		}
		if got := s.View().Revision(); got != before {
			t.Errorf("revision %d, want %d", got, before)
		}
		mustApply(t, s, attach(7, "client bob"), attach(9, ""), end(7, "client bob"), end(8, "client ann"), end(9, ""))
	}
}

// The keys of sessions and leases are counted up to a number, also behind a restart.
func TestOwnedKeys(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	one, two := newSession(t, s, "one"), newSession(t, s, "two")
	campaign(t, s, "r", one)
	mustApply(t, s, grant(7, 10))
	lease, _ := s.View().Lease(7)
	for i, id := range []string{one, one, one, two, lease.ID, lease.ID} {
		c := put(fmt.Sprint("k", i), "")
		c.Put.Session = id
		mustApply(t, s, c)
	}
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		for _, c := range []struct {
			id         string
			most, want int
		}{
			{one, 9, 3},
			{one, 3, 3},
			{one, 2, 2},
			{one, 0, 0},
			{two, 9, 1},
			{lease.ID, 9, 2},
			{lease.ID, 1, 1},
			{"x", 9, 0},
		} {
			if got := s.View().OwnedKeys(c.id, c.most); got != c.want {
				t.Errorf("%s: %d keys of at most %d, want %d", c.id, got, c.most, c.want)
			}
		}
	}
}
