package splitbrain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// said is a claim on a peer connection: "n2 5 n1" is n2 following n1 in term 5,
// and "n2 5 n2" is n2 leading. Options change it.
func said(text string, options ...func(*Claim)) Claim {
	c := Claim{Source: FromPeer, At: now, ClusterID: "C", Generation: cluster.Generation{Number: 1}}
	var leader string
	_, _ = fmt.Sscan(text, &c.Node, &c.Term, &leader)
	c.LeaderID, c.BootID = cluster.NodeID(leader), "boot-"+string(c.Node)
	c.Leads = c.LeaderID == c.Node
	c.Follows = c.LeaderID != "" && !c.Leads
	for _, o := range options {
		o(&c)
	}
	return c
}

func byHTTP(c *Claim)                  { c.Source, c.BootID, c.Follows = FromHTTP, "", false }
func hello(c *Claim)                   { c.Term, c.LeaderID, c.Leads, c.Follows = 0, "", false, false }
func unheard(c *Claim)                 { c.Follows = false }
func of(id string) func(*Claim)        { return func(c *Claim) { c.ClusterID = id } }
func old(d time.Duration) func(*Claim) { return func(c *Claim) { c.At = now.Add(-d) } }
func disbelieved(c *Claim)             { c.Disbelieved = true }
func silent(c *Claim)                  { *c = Claim{Node: c.Node, Source: FromHTTP, At: now, Error: "no answer"} }

func generation(n uint64, recovery string) func(*Claim) {
	return func(c *Claim) { c.Generation = cluster.Generation{Number: n, RecoveryID: recovery} }
}

func voters(ids ...cluster.NodeID) (servers []cluster.Server) {
	for _, id := range ids {
		servers = append(servers, cluster.Server{ID: id, Address: string(id) + ":7700", Suffrage: cluster.Voter})
	}
	return servers
}

func TestDetect(t *testing.T) {
	three := voters("n1", "n2", "n3")
	tests := []struct {
		name       string
		self       Claim
		servers    []cluster.Server
		claims     []Claim
		duplicates []DuplicateID
		since      time.Time
		proven     bool
		want       Verdict
		refuse     bool
		depose     uint64
		says       string // part of the detail
	}{
		{
			name: "all well", self: said("n1 5 n1"), want: OK,
			claims: []Claim{said("n2 5 n1"), said("n3 5 n1"), said("n2 5 n1", byHTTP), said("n3 5 n1", byHTTP)},
		},
		{
			name: "no cluster yet", self: said("n1 0 -", of("")), servers: []cluster.Server{},
			claims: []Claim{said("n2 5 n2")},
			want:   OK,
		},
		{
			name: "one cannot be asked", self: said("n1 5 n1"),
			claims: []Claim{said("n2 5 n1"), said("n3 0 -", silent)},
			want:   Unreachable, says: "n3",
		},
		{
			name: "what it said is too old", self: said("n1 5 n1"),
			claims: []Claim{said("n2 5 n1"), said("n3 5 n1", old(time.Minute))}, want: Unreachable, says: "n3",
		},
		{name: "by one way is enough", self: said("n1 5 n1"), claims: []Claim{
			said("n2 5 n1"), said("n3 0 -", silent),
			said("n3 5 n1"),
		}, want: OK},

		// Leaders of different terms.
		{
			name: "another is stale", self: said("n2 6 n2"), want: StaleLeader, says: "node n1 leads in term 5",
			claims: []Claim{said("n1 5 n1"), said("n3 6 n2")},
		},
		{
			name: "this one is stale", self: said("n1 5 n1"), want: StaleLeader, refuse: true, depose: 5,
			claims: []Claim{said("n2 6 n2"), said("n3 6 n2")},
		},
		{
			name: "this one can prove that it is not", self: said("n1 5 n1"), want: OK, proven: true,
			claims: []Claim{said("n2 6 n2"), said("n3 6 n2")},
		},
		{
			name: "its word alone deposes nobody", self: said("n1 5 n1"), want: OK,
			claims: []Claim{said("n2 6 n2"), said("n3 5 n1")},
		},
		{
			name: "HTTP answers depose nobody, however many", self: said("n1 5 n1"), want: OK,
			claims: []Claim{said("n2 5 n1"), said("n3 5 n1"), said("n2 999 n2", byHTTP), said("n3 999 n2", byHTTP)},
		},
		{
			name: "nor do they when their nodes say nothing else", self: said("n1 5 n1"), want: OK,
			claims: []Claim{said("n2 999 n2", byHTTP), said("n3 999 n2", byHTTP)},
		},
		{
			name: "a leader that nobody follows yet", self: said("n3 5 n1"), want: OK,
			claims: []Claim{said("n1 5 n1"), said("n2 6 n2")},
		},
		{
			name: "non-voters confirm nobody", self: said("n1 5 n1"), want: OK,
			servers: append(three[:3:3], cluster.Server{ID: "n4"}, cluster.Server{ID: "n5"}),
			claims:  []Claim{said("n2 6 n2"), said("n3 5 n1"), said("n4 6 n2"), said("n5 6 n2")},
		},
		{
			name: "old claims from before the suspicion", self: said("n2 6 n2"), since: now, want: OK,
			claims: []Claim{said("n1 5 n1", old(time.Millisecond)), said("n3 6 n2")},
		},

		// Two of one term.
		{
			name: "two leaders in one term", self: said("n3 5 n1"), want: SplitBrain, says: "n1, n2 all lead in term 5",
			claims: []Claim{said("n1 5 n1"), said("n2 5 n2")},
		},
		{
			name: "and this is one of them", self: said("n1 5 n1"), want: SplitBrain, refuse: true, depose: 5,
			claims: []Claim{said("n2 5 n2"), said("n2 5 n2", byHTTP), said("n3 5 n1")},
		},
		{
			name: "but the other says so in one way only", self: said("n1 5 n1"), want: SplitBrain,
			claims: []Claim{said("n2 5 n2"), said("n2 5 n1", byHTTP), said("n3 5 n1")},
		},
		{
			name: "an HTTP answer makes no second leader of who says otherwise", self: said("n1 5 n1"), want: OK,
			claims: []Claim{said("n2 5 n1"), said("n3 5 n1"), said("n2 5 n2", byHTTP)},
		},
		{
			name: "of who says nothing else it is told, and nobody deposed", self: said("n1 5 n1"), want: SplitBrain,
			claims: []Claim{said("n3 5 n1"), said("n2 5 n2", byHTTP)},
		},

		// Other clusters.
		{
			name: "a stray does not stop a cluster", self: said("n1 5 n1"), want: ForeignCluster, says: "cluster D",
			claims: []Claim{said("n2 5 n1"), said("n3 0 -", of("D"), hello)},
		},
		{
			name: "who is alone among strangers refuses", self: said("n1 5 -"), want: ForeignCluster, refuse: true,
			claims: []Claim{said("n2 0 -", of("D"), hello), said("n3 0 -", of("D"), hello)},
		},
		{
			name: "of two halves none goes on", self: said("n1 5 n1"), servers: voters("n1"), want: ForeignCluster,
			refuse: true, depose: 5,
			claims: []Claim{said("n2 0 -", of("D"), hello)},
		},
		{
			name: "the same ID elsewhere", self: said("n1 5 n1"), servers: voters("n1"), want: ForeignCluster,
			refuse: true, depose: 5,
			claims: []Claim{said("n1 0 -", of("D"), hello)},
		},
		{
			name: "HTTP answers of another cluster stop nobody", self: said("n1 5 n1"), want: ForeignCluster,
			claims: []Claim{said("n2 7 n2", of("D"), byHTTP), said("n3 7 n2", of("D"), byHTTP)},
		},
		{
			name: "a foreign leader is no leader here", self: said("n1 5 n1"), want: ForeignCluster,
			claims: []Claim{said("n2 5 n1"), said("n3 5 n3", of("D"))},
		},
		{
			name: "a node that has no cluster yet", self: said("n1 5 n1"), want: OK,
			claims: []Claim{said("n2 5 n1"), said("n3 0 -", of(""), hello)},
		},

		// Generations.
		{
			name: "recovered without this node, which has a majority with it", self: said("n1 5 n1"), want: SplitBrain,
			refuse: true, depose: 5,
			claims: []Claim{said("n2 5 n1"), said("n3 0 -", generation(2, "r"), hello)},
		},
		{
			name: "recovered without this node, which follows another", self: said("n1 5 n2"), want: SplitBrain, refuse: true,
			claims: []Claim{said("n2 5 n2"), said("n3 0 -", generation(2, "r"), hello)},
		},
		{
			name: "recovered without this node, whose leader is dead", self: said("n1 5 n2", unheard), want: OldGeneration,
			refuse: true,
			claims: []Claim{said("n3 0 -", generation(2, "r"), hello)},
		},
		{
			name: "recovered without this node, which knows no leader", self: said("n1 5", hello), want: OldGeneration,
			refuse: true,
			claims: []Claim{said("n3 9 n3", generation(2, "r"))},
		},
		{
			name: "as HTTP says", self: said("n1 5 n1"), want: SplitBrain,
			claims: []Claim{said("n2 5 n1"), said("n3 9 n3", generation(2, "r"), byHTTP)},
		},
		{
			name: "as a node says that is not believed", self: said("n1 5 n1"), want: SplitBrain, says: "node n9",
			claims: []Claim{said("n2 5 n1"), said("n3 5 n1"), said("n9 0 -", generation(2, "r"), hello, disbelieved)},
		},
		{
			name: "an older one knocks", self: said("n1 5 n1", generation(2, "r")), servers: voters("n1"),
			want: OldGeneration, says: "node n2, node n3 has data of an older generation",
			claims: []Claim{said("n2 0 -", hello), said("n3 0 -", hello)},
		},
		{
			name: "an older one has stopped", self: said("n1 5 n1", generation(2, "r")), servers: voters("n1"),
			since: now, want: OK,
			claims: []Claim{said("n2 0 -", hello, old(time.Millisecond)), said("n3 4 n3", old(time.Millisecond))},
		},
		{
			name: "an older one leads", self: said("n1 5 n1", generation(2, "r")), servers: voters("n1"), since: now,
			want: SplitBrain, says: "node n2 has a leader of an older generation",
			claims: []Claim{said("n2 4 n2"), said("n3 0 -", hello)},
		},
		{
			name: "an older one leads, as HTTP says", self: said("n1 5 n1", generation(2, "r")), servers: voters("n1"),
			want:   SplitBrain,
			claims: []Claim{said("n2 4 n2", byHTTP)},
		},
		{
			name: "an older one names a leader that it does not hear", self: said("n1 5 n1", generation(2, "r")),
			servers: voters("n1"), want: OldGeneration,
			claims: []Claim{said("n2 4 n3", unheard), said("n2 4 n3", byHTTP)},
		},
		{
			name: "an older one follows a leader", self: said("n1 5 n1", generation(2, "r")), servers: voters("n1"),
			want:   SplitBrain,
			claims: []Claim{said("n2 4 n3")},
		},
		{
			name: "rival recoveries, one against one", self: said("n1 5 n1",
				generation(2, "a")), servers: voters("n1"), want: SplitBrain, refuse: true, depose: 5,
			claims: []Claim{said("n2 0 -", generation(2, "b"), hello)},
		},
		{
			name: "rival recoveries, two against one", self: said("n1 5 n1", generation(2, "a")), servers: voters("n1",
				"n3"), want: SplitBrain,
			claims: []Claim{said("n2 0 -", generation(2, "b"), hello), said("n3 5 n1", generation(2, "a"))},
		},

		// One ID twice.
		{
			name: "another's ID twice", self: said("n1 5 n1"), want: SplitBrain, says: "two processes run as node n3",
			claims:     []Claim{said("n2 5 n1"), said("n3 5 n1")},
			duplicates: []DuplicateID{{Node: "n3", Boots: [2]string{"a", "b"}}},
		},
		{
			name: "this one's ID twice", self: said("n1 5 n1"), want: SplitBrain, refuse: true, depose: 5,
			says:       "boot IDs a and b",
			claims:     []Claim{said("n2 5 n1"), said("n3 5 n1")},
			duplicates: []DuplicateID{{Node: "n1", Boots: [2]string{"a", "b"}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			servers := tt.servers
			if servers == nil {
				servers = three
			}
			self := tt.self
			self.Source = FromSelf
			r := Detect(Input{
				Self: self, Servers: servers, Claims: tt.claims, DuplicateIDs: tt.duplicates,
				MaxAge: 3 * time.Second,
				Since:  tt.since, Proven: tt.proven,
			}, now)
			refuse, depose, says := false, uint64(0), ""
			for _, f := range r.Findings {
				refuse = refuse || f.RefuseService
				depose = max(depose, f.StepDownTerm)
				says += f.Detail + "\n"
			}
			if r.Verdict != tt.want || refuse != tt.refuse || depose != tt.depose || !strings.Contains(says, tt.says) {
				t.Errorf("%s, refuse %v, depose %d; want %s, %v, %d\n%s", r.Verdict, refuse, depose, tt.want, tt.refuse,
					tt.depose,
					says)
			}
			if len(r.Claims) != len(tt.claims)+1 || r.Claims[0].Source != FromSelf || !r.CheckedAt.Equal(now) {
				t.Errorf("the report has %d claims of %d", len(r.Claims), len(tt.claims)+1)
			}
		})
	}
}

// TestDetectNeverDeposesTheFollowed: a leader that a majority follows is not deposed by answers of HTTP
// addresses or by claims of a minority.
func TestDetectNeverDeposesTheFollowed(t *testing.T) {
	self := said("n1 5 n1")
	self.Source = FromSelf
	var lies []Claim
	for _, id := range []string{"n2", "n3", "n9"} {
		for _, cl := range []string{"C", "D", ""} {
			for _, g := range []uint64{0, 1, 2} {
				lies = append(lies, said(id+" 5 "+id, byHTTP, of(cl), generation(g, "")),
					said(id+" 77 n2", byHTTP, of(cl), generation(g, "")))
			}
		}
	}
	for i := range lies {
		for j := range lies {
			r := Detect(Input{
				Self: self, Servers: voters("n1", "n2", "n3"), MaxAge: time.Second,
				Claims: []Claim{said("n2 5 n1"), lies[i], lies[j]},
			}, now)
			for _, f := range r.Findings {
				if f.RefuseService || f.StepDownTerm != 0 {
					t.Fatalf("%+v and %+v: %+v", lies[i], lies[j], f)
				}
			}
		}
	}
}

func TestProcessLog(t *testing.T) {
	peer := func(id cluster.NodeID, boot string) cluster.Peer {
		return cluster.Peer{Identity: cluster.Identity{NodeID: id, ClusterID: "C"}, BootID: boot, RaftAddress: boot +
			":7700"}
	}
	at := func(s float64) time.Time { return now.Add(time.Duration(s * float64(time.Second))) }
	tests := []struct {
		name     string
		see      []string // "seconds id boot"
		at       float64
		double   string // of which IDs; "": none
		suspects string
	}{
		{name: "one process", see: []string{"0 n2 a", "1 n2 a", "9 n2 a"}, at: 9},
		{name: "restarted", see: []string{"0 n2 a", "1 n2 a", "1.5 n2 b", "9 n2 b"}, at: 9, suspects: "a:7700 b:7700"},
		{
			name: "a late hello of the old one", see: []string{"0 n2 a", "1 n2 b", "2 n2 a", "4 n2 b"}, at: 4,
			suspects: "a:7700 b:7700",
		},
		{
			name: "both live", see: []string{"0 n2 a", "1 n2 b", "4 n2 a", "4 n2 b"}, at: 4.5, double: "n2",
			suspects: "a:7700 b:7700",
		},
		{name: "both lived", see: []string{"0 n2 a", "1 n2 b", "4 n2 a", "9 n2 b"}, at: 9.5, suspects: "a:7700 b:7700"},
		{name: "with this node's ID", see: []string{"0 n1 a"}, at: 1, double: "n1", suspects: "a:7700"},
		{name: "with this node's ID, long ago", see: []string{"0 n1 a"}, at: 9, suspects: "a:7700"},
		{
			name: "of an ID that another one begins with", double: "n2n20",
			see: []string{
				"0 n2 0", "0 n2 1", "0 n2 2", "0 n20 15", "0 n20 2",
				"4 n2 0", "4 n2 1", "4 n2 2", "4 n20 15", "4 n20 2",
			},
			at: 4.5, suspects: "0:7700 15:7700 1:7700 2:7700",
		},
		{name: "this process, by way of itself", see: []string{"0 n1 own"}, at: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := processLog{self: "n1", boot: "own", overlapping: 2 * time.Second}
			for _, line := range tt.see {
				var when float64
				var id, boot string
				_, _ = fmt.Sscan(line, &when, &id, &boot)
				s.record(peer(cluster.NodeID(id), boot), at(when))
			}
			got := ""
			for _, d := range s.duplicateIDs("C", at(tt.at), 3*time.Second) {
				got += string(d.Node)
			}
			if got != tt.double {
				t.Errorf("duplicates %q, want %q", got, tt.double)
			}
			if got := strings.Join(s.duplicateAddresses(), " "); got != tt.suspects {
				t.Errorf("suspects %q, want %q", got, tt.suspects)
			}
			if len(s.duplicateIDs("other", at(tt.at), 3*time.Second)) != 0 {
				t.Error("duplicates of another cluster")
			}
		})
	}
}

func TestProcessLogIsBounded(t *testing.T) {
	s := processLog{self: "n1", boot: "own", overlapping: time.Second}
	for i := range 3 * maxProcesses {
		s.record(cluster.Peer{Identity: cluster.Identity{NodeID: "n2"}, BootID: fmt.Sprint(i)},
			now.Add(time.Duration(i)))
	}
	if len(s.procs) > maxProcesses {
		t.Errorf("%d are remembered", len(s.procs))
	}
	s.duplicateIDs("", now.Add(time.Hour), time.Second)
	if len(s.procs) != 0 {
		t.Errorf("%d are remembered after an hour", len(s.procs))
	}
}

// One certificate can say hello as any number of processes. They are one conflict, and push out no process of others.
func TestManyProcessesOfOneNode(t *testing.T) {
	s := processLog{self: "n1", boot: "own", overlapping: time.Second}
	at := func(second, ms int) time.Time {
		return now.Add(time.Duration(second)*time.Second + time.Duration(ms)*time.Millisecond)
	}
	meet := func(id cluster.NodeID, boot int, at time.Time) {
		s.record(cluster.Peer{
			Identity: cluster.Identity{NodeID: id, ClusterID: "C"}, BootID: fmt.Sprintf("%060d", boot),
			RaftAddress: fmt.Sprintf("10.0.0.1:%d", boot),
		}, at)
	}
	meet("n3", 7, at(0, 0))
	for i := range 512 {
		meet("n9", i, at(1, i))
	}
	for i := 512 - maxProcessesOfNode; i < 512; i++ {
		meet("n9", i, at(4, 0))
	}
	if n := len(s.duplicateAddresses()); n > maxProcessesOfNode {
		t.Errorf("%d addresses get hellos", n)
	}
	for id := range 2 * maxProcesses / maxProcessesOfNode {
		for i := range maxProcessesOfNode {
			meet(cluster.NodeID(fmt.Sprintf("x%d", id)), i, at(1, i))
		}
	}
	r := Detect(Input{
		Self: said("n1 5 n1"), Servers: voters("n1"), MaxAge: 10 * time.Second,
		Claims: s.claims(at(5, 0), 10*time.Second), DuplicateIDs: s.duplicateIDs("C", at(5, 0), 10*time.Second),
	}, at(5, 0))
	if len(r.DuplicateIDs) != 1 || len(r.Findings) != 1 || r.Findings[0].Verdict != SplitBrain {
		t.Errorf("%d IDs, %d findings", len(r.DuplicateIDs), len(r.Findings))
	}
	if text := fmt.Sprint(r); len(text) > 300*(maxProcesses+10) {
		t.Errorf("a report of %d bytes", len(text))
	}
	if !slices.ContainsFunc(r.Claims, func(c Claim) bool { return c.Node == "n3" }) {
		t.Error("the process of another node is forgotten")
	}
}
