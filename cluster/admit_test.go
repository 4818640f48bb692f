package cluster

import (
	"strings"
	"testing"
)

func peer(id NodeID, clusterID, incarnation string) Peer {
	return Peer{Identity: Identity{
		NodeID: id, ClusterID: clusterID, Generation: Generation{Number: 1},
		Incarnation: incarnation,
	}, BootID: "boot-" + string(id)}
}

func TestAdmit(t *testing.T) {
	withGeneration := func(p Peer, n uint64, recovery string) Peer {
		p.Generation = Generation{Number: n, RecoveryID: recovery}
		return p
	}
	withBootstrap := func(p Peer, digest string) Peer {
		p.Bootstrap = digest
		return p
	}
	self := peer("n1", "C", "i1")
	blank := peer("n1", "", "i1")
	at := func(p Peer, s Start) Peer {
		p.Start = s
		return p
	}
	started := at(blank, StartBootstrapped)
	recorded := func(p Peer, index uint64) Peer {
		p.RecordedIndex = index
		return p
	}
	known := Record{Incarnation: "i2", AsOfIndex: 7, Confirmed: "i3"}
	removed := Record{Incarnation: "i2", Removed: true, AsOfIndex: 7, Confirmed: "i3"}
	confirmed := func(r Record, incarnation string) Record {
		r.Confirmed = incarnation
		return r
	}
	tests := []struct {
		name       string
		self, peer Peer
		rec        Record
		want       Refusal
		votes      bool
		mayAdopt   bool
		outdated   bool
	}{
		{name: "same cluster", self: self, peer: peer("n2", "C", "i2"), votes: true},
		{
			name: "same cluster, recorded", self: self, peer: peer("n2", "C", "i2"), rec: Record{Incarnation: "i2"},
			votes: true,
		},
		{name: "own ID", self: self, peer: peer("n1", "C", "i9"), want: RefusedDuplicateID},
		{name: "foreign cluster", self: self, peer: peer("n2", "D", "i2"), want: RefusedCluster},
		{
			name: "old generation", self: withGeneration(self, 2, "r"), peer: peer("n2", "C", "i2"),
			want: RefusedGeneration,
		},
		{
			name: "newer generation", self: self, peer: withGeneration(peer("n2", "C", "i2"), 2, "r"),
			want: RefusedSelfOld,
		},
		{
			name: "rival recovery", self: withGeneration(self, 2, "a"), peer: withGeneration(peer("n2", "C", "i2"), 2,
				"b"),
			want: RefusedRecovery,
		},
		{
			name: "wiped, ID adopted", self: self, peer: peer("n2", "C", "i3"), rec: Record{Incarnation: "i2"},
			want: RefusedIncarnation,
		},
		{
			name: "wiped, no ID", self: self, peer: peer("n2", "", "i3"), rec: Record{Incarnation: "i2"},
			want: RefusedIncarnation,
		},
		{
			name: "removed", self: self, peer: peer("n2", "C", "i2"), rec: Record{Incarnation: "i2", Removed: true},
			want: RefusedRemoved,
		},
		{
			name: "removed, wiped", self: self, peer: peer("n2", "", "i3"),
			rec:  Record{Incarnation: "i2", Removed: true},
			want: RefusedRemoved,
		},
		{name: "late first start: entries, no votes", self: self, peer: peer("n2", "", "i2")},
		{
			name: "without ID but on the roster: may adopt the cluster ID", self: self, peer: peer("n2", "", "i2"),
			rec: Record{Incarnation: "i2"}, mayAdopt: true,
		},
		{name: "self without ID takes entries only", self: blank, peer: peer("n2", "C", "i2")},
		{name: "both without ID, neither has bootstrapped", self: blank, peer: peer("n2", "", "i2")},
		{
			name: "both have bootstrapped and met", self: started, peer: at(peer("n2", "", "i2"), StartBootstrapped),
			rec: Record{Incarnation: "i2"}, votes: true, mayAdopt: true,
		},
		{name: "both have bootstrapped and not met", self: started, peer: at(peer("n2", "", "i2"), StartBootstrapped)},
		{
			name: "met, the peer has not bootstrapped yet", self: started, peer: peer("n2", "", "i2"),
			rec: Record{Incarnation: "i2"}, mayAdopt: true,
		},
		{
			name: "met, the peer waits to be admitted", self: started, peer: at(peer("n2", "", "i2"), StartJoinOnly),
			rec: Record{Incarnation: "i2"}, mayAdopt: true,
		},
		{
			name: "met, wiped since", self: started, peer: peer("n2", "", "i3"), rec: Record{Incarnation: "i2"},
			want: RefusedIncarnation,
		},
		{
			name: "met, wiped and bootstrapped again", self: started, peer: at(peer("n2", "", "i3"), StartBootstrapped),
			rec: Record{Incarnation: "i2"}, want: RefusedIncarnation,
		},
		{name: "self waits", self: at(blank, StartJoinOnly), peer: at(peer("n2", "", "i2"), StartBootstrapped)},
		{name: "both without ID, one joins", self: withBootstrap(blank, "x"), peer: peer("n2", "", "i2")},
		{
			name: "wiped and re-admitted since", self: self, peer: recorded(peer("n2", "C", "i3"), 8), rec: known,
			outdated: true,
		},
		{
			name: "removed and added again since", self: self, peer: recorded(peer("n2", "C", "i3"), 8), rec: removed,
			outdated: true,
		},
		{
			name: "wiped, and claims to be re-admitted since", self: self, peer: recorded(peer("n2", "C", "i3"), 8),
			rec: confirmed(known, ""), want: RefusedIncarnation,
		},
		{
			name: "removed, and claims to be added again since", self: self, peer: recorded(peer("n2", "C", "i2"), 1<<60),
			rec: confirmed(removed, ""), want: RefusedRemoved,
		},
		{
			name: "removed, and others know another data directory", self: self,
			peer: recorded(peer("n2", "C", "i2"), 1<<60), rec: removed, want: RefusedRemoved,
		},
		{
			name: "without a data directory", self: self, peer: recorded(peer("n2", "C", ""), 8),
			rec: confirmed(known, ""), want: RefusedIncarnation,
		},
		{
			name: "re-admitted, this node knows as much", self: self, peer: recorded(peer("n2", "C", "i3"), 7),
			rec:  known,
			want: RefusedIncarnation,
		},
		{
			name: "its old data directory, replaced since", self: self, peer: recorded(peer("n2", "C", "i1"), 6),
			rec:  known,
			want: RefusedIncarnation,
		},
		{
			name: "recorded until it was removed", self: self, peer: recorded(peer("n2", "C", "i2"), 6), rec: removed,
			want: RefusedRemoved,
		},
		{
			name: "of an older version, which says nothing of its record", self: self, peer: peer("n2", "C", "i3"),
			rec: Record{Incarnation: "i2"}, want: RefusedIncarnation,
		},
		{
			name: "recorded on both sides", self: self, peer: recorded(peer("n2", "C", "i2"), 8), rec: known,
			votes: true,
		},
		{
			name: "re-admitted by a foreign cluster",
			self: self, peer: recorded(peer("n2", "D", "i3"), 8), rec: known,
			want: RefusedCluster,
		},
		{
			name: "re-admitted before a recovery", self: withGeneration(self, 2, "r"),
			peer: recorded(peer("n2", "C", "i3"),
				8), rec: known, want: RefusedGeneration,
		},
		{
			name: "re-admitted after another recovery", self: withGeneration(self, 2, "a"),
			peer: recorded(withGeneration(peer("n2", "C", "i3"), 2, "b"), 8), rec: known, want: RefusedRecovery,
		},
		{
			name: "without ID no record of its own counts", self: self, peer: recorded(peer("n2", "", "i3"), 8),
			rec:  known,
			want: RefusedIncarnation,
		},
		{
			name: "rival bootstraps", self: withBootstrap(blank, "x"), peer: withBootstrap(peer("n2", "", "i2"), "y"),
			want: RefusedBootstrap,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Admit(tt.self, tt.peer, tt.rec)
			if got.Refusal != tt.want || got.Votes != tt.votes || got.MayAdoptClusterID != tt.mayAdopt ||
				got.RecordStale != tt.outdated {
				t.Fatalf("got %+v, want refusal %q, votes %v, mayAdopt %v, outdated %v", got, tt.want, tt.votes, tt.mayAdopt,
					tt.outdated)
			}
			if got.OK() != (tt.want == "") || (got.Reason == "") != (got.OK() && !got.RecordStale) {
				t.Fatalf("it must say why: %+v", got)
			}
		})
	}
}

// The reason for a refusal says which of the two nodes an operator has to re-admit.
func TestAdmit_ReasonSaysWhatToDo(t *testing.T) {
	self, other := peer("n5", "C", "i5"), peer("n1", "C", "i3")
	rec := Record{Incarnation: "i1", AsOfIndex: 7}
	for index, want := range map[uint64]string{
		0: "if its disk was replaced, re-admit it", // it was wiped
		7: "if its disk was replaced, re-admit it",
		8: "while node n5 was offline, wipe and re-admit node n5",
	} {
		other.RecordedIndex = index
		if a := Admit(self, other, rec); a.Refusal != RefusedIncarnation || !strings.HasSuffix(a.Reason, want) {
			t.Errorf("recorded as of entry %d: %+v, want %q", index, a, want)
		}
	}
}

// TestConfirmed: only the newest roster of a node that this one would follow counts.
func TestConfirmed(t *testing.T) {
	t.Parallel()
	records := map[NodeID]Record{
		"n2": {Incarnation: "i2", Removed: true}, "n3": {Incarnation: "i3"}, "n4": {Incarnation: "i4"},
		"n5": {Incarnation: "i5", Removed: true},
	}
	roster := func(p Peer, index uint64, rec Record) Peer {
		p.Roster = &Roster{Index: index, Records: map[NodeID]Record{"n2": rec}}
		return p
	}
	generation := func(p Peer) Peer {
		p.Generation.Number++
		return p
	}
	again := Record{Incarnation: "new"}
	for name, tc := range map[string]struct {
		hellos []Peer
		want   string
	}{
		"no hello":                 {nil, ""},
		"a hello without a roster": {[]Peer{peer("n3", "C", "i3")}, ""},
		"a member":                 {[]Peer{roster(peer("n3", "C", "i3"), 8, again)}, "new"},
		"a node without a record":  {[]Peer{roster(peer("n9", "C", "i9"), 8, again)}, "new"},
		"no newer than this node":  {[]Peer{roster(peer("n3", "C", "i3"), 7, again)}, ""},
		"itself":                   {[]Peer{roster(peer("n2", "C", "new"), 8, again)}, ""},
		"another removed node":     {[]Peer{roster(peer("n5", "C", "i5"), 8, again)}, ""},
		"a wiped node":             {[]Peer{roster(peer("n3", "C", "other"), 8, again)}, ""},
		"another cluster":          {[]Peer{roster(peer("n3", "D", "i3"), 8, again)}, ""},
		"another generation":       {[]Peer{roster(generation(peer("n3", "C", "i3")), 8, again)}, ""},
		"it is removed there, too": {[]Peer{roster(peer("n3", "C", "i3"), 8, records["n2"])}, ""},
		"it is not there":          {[]Peer{roster(peer("n3", "C", "i3"), 8, Record{})}, ""},
		"a newer roster has it as removed": {[]Peer{
			roster(peer("n3", "C", "i3"), 8, again), roster(peer("n4", "C", "i4"), 9, records["n2"]),
		}, ""},
		"a newer roster has it": {[]Peer{
			roster(peer("n3", "C", "i3"), 8, records["n2"]), roster(peer("n4", "C", "i4"), 9, again),
		}, "new"},
	} {
		hellos := map[NodeID]Peer{}
		for _, p := range tc.hellos {
			hellos[p.NodeID] = p
		}
		self := peer("n1", "C", "i1").Identity
		if got := Confirmed(self, "n2", 7, hellos, func(id NodeID) Record { return records[id] }); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestAdmit_Outside: a node takes no Raft messages from a peer that is not a member, as far as it knows and other
// members say. Hellos go on, because they bring the news.
func TestAdmit_Outside(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rec             Record
		peer            Peer
		outside, passes bool
	}{
		"a stranger":                {Record{Unknown: true, AsOfIndex: 7}, peer("n2", "C", "i2"), true, true},
		"another member knows it":   {Record{Unknown: true, Confirmed: "i2"}, peer("n2", "C", "i2"), false, true},
		"with another disk":         {Record{Unknown: true, Confirmed: "i3"}, peer("n2", "C", "i2"), true, true},
		"a member without a record": {Record{}, peer("n2", "C", "i2"), false, true},
		"removed, others say":       {Record{Incarnation: "i2", Superseded: true}, peer("n2", "C", "i2"), true, true},
		"its disk is another":       {Record{Incarnation: "i2", Superseded: true}, peer("n2", "C", "i3"), false, false},
		"a stranger without an ID":  {Record{Unknown: true}, peer("n2", "", "i2"), true, true},
		"a node that joins":         {Record{}, peer("n2", "", "i2"), false, true},
		"another member has it":     {Record{Unknown: true, Confirmed: "i2"}, peer("n2", "", "i2"), false, true},
	} {
		a := Admit(peer("n1", "C", "i1"), tc.peer, tc.rec)
		if a.Outside != tc.outside || a.OK() != tc.passes || a.Outside && (a.Votes || a.Reason == "") {
			t.Errorf("%s: %+v", name, a)
		}
	}
	for _, other := range []Peer{peer("n2", "C", "i2"), peer("n2", "", "i2")} {
		if a := Admit(peer("n1", "", "i1"), other, Record{Unknown: true}); a.Outside {
			t.Errorf("a node without a cluster, of %+v: %+v", other, a)
		}
	}
}

// TestSuperseded: one removed node that lies counts no more than a member, and strangers count for nothing.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	records := map[NodeID]Record{
		"n2": {Incarnation: "i2", AsOfIndex: 7}, "n3": {Incarnation: "i3"}, "n4": {Incarnation: "i4"},
		"n5": {Incarnation: "i5", Removed: true}, "n9": {Unknown: true},
	}
	says := func(from NodeID, index uint64, rec Record) Peer {
		p := peer(from, "C", "i"+string(from[1]))
		p.Roster = &Roster{Index: index, Records: map[NodeID]Record{"n2": rec}}
		return p
	}
	has, other := Record{Incarnation: "i2"}, Record{Incarnation: "new"}
	removed := Record{Incarnation: "i2", Removed: true}
	for name, tc := range map[string]struct {
		hellos []Peer
		want   bool
	}{
		"nobody says anything":    {nil, false},
		"a member has it":         {[]Peer{says("n3", 8, has)}, false},
		"a member lacks it":       {[]Peer{says("n3", 8, Record{})}, true},
		"a member has it removed": {[]Peer{says("n3", 8, removed)}, true},
		"with another disk":       {[]Peer{says("n3", 8, other)}, true},
		"no newer than this node": {[]Peer{says("n3", 7, Record{})}, false},
		"itself":                  {[]Peer{says("n2", 8, Record{})}, false},
		"a removed node":          {[]Peer{says("n5", 8, Record{})}, false},
		"a stranger":              {[]Peer{says("n9", 8, Record{})}, false},
		"as many have it":         {[]Peer{says("n3", 1<<60, Record{}), says("n4", 8, has)}, false},
	} {
		hellos := map[NodeID]Peer{}
		for _, p := range tc.hellos {
			hellos[p.NodeID] = p
		}
		record := func(id NodeID) Record { return records[id] }
		if got := Superseded(peer("n1", "C", "i1").Identity, "n2", records["n2"], hellos, record); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
		if c := Confirmed(peer("n1", "C", "i1").Identity, "n2", 7, hellos, record); c != "" && name == "a stranger" {
			t.Errorf("%s confirms %s", name, c)
		}
	}
}

// Two nodes never disagree about whether they may vote for one another: a
// one-sided verdict would let one node's vote count that the other refuses.
func TestAdmitVotesAreMutual(t *testing.T) {
	nodes := []Peer{}
	for _, id := range []string{"", "C", "D"} {
		for _, gen := range []Generation{{1, ""}, {2, "a"}, {2, "b"}} {
			for _, boot := range []string{"", "x", "y"} {
				for _, start := range []Start{StartUndecided, StartBootstrapped, StartJoinOnly} {
					p := peer("n1", id, "i1")
					p.Generation, p.Bootstrap, p.Start = gen, boot, start
					nodes = append(nodes, p)
				}
			}
		}
	}
	for _, a := range nodes {
		for _, b := range nodes {
			b.NodeID, b.Incarnation = "n2", "i2"
			if a.ClusterID == b.ClusterID && MayRecordIncarnation(a, b) != MayRecordIncarnation(b, a) {
				t.Errorf("%+v and %+v: only one records the other", a, b)
			}
			ab, ba := Admit(a, b, Record{Incarnation: "i2"}), Admit(b, a, Record{Incarnation: "i1"})
			if ab.Votes != ba.Votes || ab.OK() != ba.OK() {
				t.Errorf("%+v and %+v: %+v against %+v", a, b, ab, ba)
			}
		}
	}
}

// A node that has bootstrapped records only peers that could not have voted before a wipe of their disk.
func TestMeets(t *testing.T) {
	at := func(id NodeID, clusterID string, start Start, digest string) Peer {
		p := peer(id, clusterID, "i")
		p.Start, p.Bootstrap = start, digest
		return p
	}
	self := at("n1", "", StartBootstrapped, "x")
	for _, tt := range []struct {
		name string
		self Peer
		peer Peer
		want bool
	}{
		{"both have bootstrapped", self, at("n2", "", StartBootstrapped, "x"), true},
		{"the peer's directory is empty", self, at("n2", "", StartUndecided, "x"), false},
		{"the peer waits", self, at("n2", "", StartJoinOnly, "x"), false},
		{
			"this node's directory is empty", at("n1", "", StartUndecided, "x"), at("n2", "", StartBootstrapped, "x"),
			false,
		},
		{"another list", self, at("n2", "", StartBootstrapped, "y"), false},
		{"the peer has a cluster", self, at("n2", "C", StartBootstrapped, "x"), false},
		{"this node has a cluster", at("n1", "C", StartBootstrapped, "x"), at("n2", "", StartBootstrapped, "x"), true},
		{
			"this node has a cluster, the peer's directory is empty", at("n1", "C", StartBootstrapped, "x"),
			at("n2", "", StartUndecided, "x"), false,
		},
		{
			"this node has joined a cluster", at("n1", "C", StartJoinOnly, ""), at("n2", "", StartBootstrapped, ""),
			false,
		},
		{"itself", self, self, false},
	} {
		if got := MayRecordIncarnation(tt.self, tt.peer); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
