package election

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

var update = flag.Bool("update", false, "rewrite the expected verdicts in testdata")

// start is the zero of all times in testdata.
var start = time.Unix(1_700_000_000, 0)

// TestGolden runs the cases of testdata. A case is "case NAME", lines of facts,
// "----" and the verdict; cases are apart by a blank line, # begins a comment.
func TestGolden(t *testing.T) {
	for file, decide := range map[string]func(*scene) string{
		"decide.txt": decideScene, "prevote.txt": preVoteScene, "target.txt": targetScene,
		"slowdisk.txt": slowDiskScene, "fulldisk.txt": fullDiskScene, "stickiness.txt": stickinessScene,
	} {
		t.Run(file, func(t *testing.T) {
			path := filepath.Join("testdata", file)
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			for i, part := range strings.Split(strings.TrimSpace(string(raw)), "\n\n") {
				facts, want, _ := strings.Cut(part, "\n----")
				want = strings.TrimPrefix(want, "\n")
				s := parse(t, facts)
				got := strings.TrimRight(decide(s), "\n")
				if !*update && got != strings.TrimRight(want, "\n") {
					t.Errorf("%s\n--- got\n%s\n--- want\n%s", facts, got, want)
				}
				if i > 0 {
					out.WriteString("\n")
				}
				fmt.Fprintf(&out, "%s\n----\n%s\n", facts, got)
			}
			if *update {
				if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// scene is what a case of testdata says.
type scene struct {
	t         *testing.T
	now       time.Time
	self      cluster.NodeID
	servers   []cluster.Server
	evidence  Evidence
	seen      map[cluster.NodeID]cluster.ReceivedClaim
	before    map[cluster.NodeID]cluster.ReceivedClaim
	peers     []Peer
	params    Params
	candidate cluster.NodeID
	contact   time.Time
	leading   LeaderView
	disk      OwnDisk
	zones     []string         // preferred for the leader
	members   []cluster.Member // with their zones
}

func parse(t *testing.T, facts string) *scene {
	s := &scene{
		t: t, now: start, seen: map[cluster.NodeID]cluster.ReceivedClaim{},
		before: map[cluster.NodeID]cluster.ReceivedClaim{}, params: Params{TimeoutMin: 150 * time.Millisecond},
		leading: LeaderView{Delay: 5 * time.Second},
	}
	for line := range strings.Lines(facts) {
		word := strings.Fields(line)
		if len(word) == 0 || strings.HasPrefix(word[0], "#") || word[0] == "case" {
			continue
		}
		args := map[string]string{}
		for _, w := range word[1:] {
			k, v, _ := strings.Cut(w, "=")
			args[k] = v
		}
		s.fact(word[0], word[1:], args)
	}
	s.params.ZoneRanks = ZoneRanks(s.zones, s.members)
	s.leading.Now, s.leading.Params, s.leading.Peers = s.now, s.params, s.peers
	return s
}

func (s *scene) fact(what string, words []string, args map[string]string) {
	switch what {
	case "now": // since start
		s.now = start.Add(s.duration(words[0]))
	case "self":
		s.self = cluster.NodeID(words[0])
	case "voters", "nonvoters":
		for _, id := range words {
			sv := cluster.Server{ID: cluster.NodeID(id), Suffrage: cluster.Voter}
			if what == "nonvoters" {
				sv.Suffrage = cluster.NonVoter
			}
			s.servers = append(s.servers, sv)
		}
	case "lease":
		s.params.Lease = true
	case "zones": // in the order of preference
		s.zones = words
	case "place": // of members: ID=ZONE
		for id, zone := range args {
			s.members = append(s.members, cluster.Member{ID: cluster.NodeID(id), Zone: zone})
		}
	case "evidence":
		_, lost := args["lost"]
		_, stalled := args["stalled"]
		s.evidence = Evidence{
			Leader: cluster.NodeID(words[0]), BootID: args["boot"], ProcessDead: lost,
			DiskStalled: stalled, At: start.Add(s.duration(args["at"])), Term: s.number(args["term"]),
		}
		if at, ok := args["active"]; ok {
			s.evidence.ProgressAt, s.evidence.Progress = start.Add(s.duration(at)), s.number(args["progress"])
		}
		s.evidence.UnwinnableTerm = s.number(cmp.Or(args["unwinnable-term"], "0"))
		if at, ok := args["agreed"]; ok {
			s.evidence.AgreedAt = start.Add(s.duration(at))
		}
	case "claim":
		s.claim(words[0], args)
	case "candidate":
		s.candidate = cluster.NodeID(words[0])
	case "contact":
		s.contact = start.Add(s.duration(words[0]))
	case "peer":
		s.peer(words[0], args)
	case "leader":
		s.leading.Self = cluster.Member{
			ID: cluster.NodeID(words[0]), Priority: int(s.number(args["priority"])), Zone: args["zone"],
		}
		s.leading.Left = cluster.NodeID(args["left"])
	case "paused":
		s.leading.Paused = true
	case "cooldown":
		s.leading.NotBefore = start.Add(s.duration(words[0]))
	case "disk":
		s.disk.FsyncP99, s.disk.Syncs = s.duration(args["p99"]), minSyncSamples
		if n, ok := args["syncs"]; ok {
			s.disk.Syncs = s.number(n)
		}
		if m, ok := args["median"]; ok {
			s.disk.RecentSync = s.duration(m)
		}
		_, s.disk.ReadOnly = args["full"]
		s.disk.SlowSince = start.Add(s.duration(args["since"]))
		if m, ok := args["moved"]; ok {
			s.disk.Moved = start.Add(s.duration(m))
		}
	default:
		s.t.Fatalf("unknown fact %q", what)
	}
}

// claim reads a node's claim: without arguments a healthy follower of n1 in
// term 5 that holds entry 44.
func (s *scene) claim(id string, args map[string]string) {
	c := cluster.Claim{
		NodeID: cluster.NodeID(id), Term: 5, Role: cluster.Follower, LeaderID: "n1", LeaderBootID: "b1",
		LeaderSilence: 10 * time.Millisecond,
		LastLogTerm:   5, LastLogIndex: 44, Priority: 100, Eligible: true, IsVoter: true, Lifecycle: cluster.Active,
	}
	seen := cluster.ReceivedClaim{At: s.now, Connected: true}
	late := false // it has not answered the poll
	for k, v := range args {
		switch k {
		case id:
		case "term":
			c.Term = s.number(v)
		case "role":
			c.Role = cluster.Role(v)
		case "leader":
			c.LeaderID = cluster.NodeID(v)
		case "boot":
			c.LeaderBootID = v
		case "silence":
			c.LeaderSilence = s.duration(v)
		case "lost":
			c.LeaderProcessDead = true
		case "log":
			term, index, _ := strings.Cut(v, "/")
			c.LastLogTerm, c.LastLogIndex = s.number(term), s.number(index)
		case "priority":
			c.Priority = int(s.number(v))
		case "ineligible":
			c.Eligible = false
		case "nonvoter":
			c.IsVoter = false
		case "draining":
			c.Draining = true
		case "paused":
			c.Paused = true
		case "stalled":
			c.Disk.Stalled = true
		case "hangs":
			c.Disk.Hangs = true
		case "full":
			c.Disk.ReadOnly = true
		case "p99":
			c.Disk.FsyncP99, c.Disk.Syncs = s.duration(v), minSyncSamples
		case "at":
			seen.At = start.Add(s.duration(v))
		case "cut":
			seen.Connected = false
		case "unanswered":
			late = true
		default:
			s.t.Fatalf("unknown in a claim: %q", k)
		}
	}
	seen.Claim = c
	if late {
		s.before[c.NodeID] = seen
	} else {
		s.seen[c.NodeID] = seen
	}
}

// peer reads what a leader knows of a voter: without arguments a fit one of
// priority 100.
func (s *scene) peer(id string, args map[string]string) {
	p := Peer{
		Member:  cluster.Member{ID: cluster.NodeID(id), Priority: 100, Eligible: true, Lifecycle: cluster.Active},
		Healthy: true, FitSince: start, DiskKnown: true, IsVoter: true,
	}
	for k, v := range args {
		switch k {
		case id:
		case "priority":
			p.Member.Priority = int(s.number(v))
		case "ineligible":
			p.Member.Eligible = false
		case "lifecycle":
			p.Member.Lifecycle = cluster.Lifecycle(v)
		case "sick":
			p.Healthy, p.Reasons = false, []string{v}
		case "zone":
			p.Member.Zone = v
		case "lag":
			p.LagEntries = s.number(v)
		case "fit":
			p.FitSince = start.Add(s.duration(v))
		case "aside":
			p.SelfIneligible = true
		case "nonvoter":
			p.IsVoter = false
		case "p99":
			p.Disk.FsyncP99 = s.duration(v)
			if _, given := args["syncs"]; !given {
				p.Disk.Syncs = minSyncSamples
			}
		case "syncs":
			p.Disk.Syncs = uint64(s.number(v))
		case "stalled":
			p.Disk.Stalled = true
		case "unknowndisk":
			p.DiskKnown = false
		default:
			s.t.Fatalf("unknown in a peer: %q", k)
		}
	}
	s.peers = append(s.peers, p)
}

func (s *scene) duration(text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *scene) number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func decideScene(s *scene) string {
	v := DecideElection(Input{
		Now: s.now, Servers: s.servers, Mine: s.seen[s.self].Claim, Responses: s.seen,
		LatestClaims: s.before, Evidence: s.evidence, Params: s.params,
	})
	var b strings.Builder
	switch {
	case v.StartElection && v.After == 0:
		fmt.Fprintf(&b, "start now (%s)\n", v.Trigger)
	case v.StartElection:
		fmt.Fprintf(&b, "start after %v (%s)\n", v.After, v.Trigger)
	case v.After > 0:
		fmt.Fprintf(&b, "ask again after %v\n", v.After)
	default:
		b.WriteString("leave it\n")
	}
	b.WriteString(v.Reason + "\n")
	for i, r := range v.Ranking {
		fmt.Fprintf(&b, "%d. %s: %s\n", i+1, r.ID, r.Why)
	}
	return b.String()
}

func preVoteScene(s *scene) string {
	ok, reason := MayPreVote(PreVoteInput{
		Now: s.now, Candidate: s.candidate, LastContact: s.contact,
		Servers: s.servers,
		Mine:    s.seen[s.self].Claim, Claims: s.seen, Params: s.params,
	})
	if ok {
		return "yes" + reason
	}
	return "no: " + reason
}

func targetScene(s *scene) string {
	s.leading.Disk = s.disk.DiskState
	target, reason := PriorityTarget(s.leading)
	return fmt.Sprintf("%s\n%s", orNone(target), reason)
}

func slowDiskScene(s *scene) string {
	target, reason := SlowDiskTarget(s.leading, s.disk)
	return fmt.Sprintf("%s\n%s", orNone(target), reason)
}

func fullDiskScene(s *scene) string {
	target, reason := FullDiskTarget(s.leading, s.disk.DiskState)
	return fmt.Sprintf("%s\n%s", orNone(target), reason)
}

func stickinessScene(s *scene) string {
	return fmt.Sprint(MayIgnoreLeader(s.seen[s.self].Claim, s.params))
}

func orNone(id cluster.NodeID) string {
	if id == "" {
		return "no target"
	}
	return "to " + string(id)
}

func TestCooldown(t *testing.T) {
	const delay = 5 * time.Second
	last := Cooldown(0, delay, false)
	if last != delay {
		t.Fatalf("after the first failure: %v", last)
	}
	for _, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		if last = Cooldown(last, delay, false); last != want {
			t.Fatalf("got %v, want %v", last, want)
		}
	}
	for range 20 {
		last = Cooldown(last, delay, false)
	}
	if last != maxCooldown {
		t.Errorf("it grows to %v, not to %v", last, maxCooldown)
	}
	if got := Cooldown(last, delay, true); got != delay {
		t.Errorf("after one that worked: %v", got)
	}
}

func TestLogBehind(t *testing.T) {
	mine := cluster.Claim{LastLogTerm: 5, LastLogIndex: 44}
	for _, tt := range []struct {
		term, index uint64
		want        string
	}{
		{5, 41, "log behind: 41 < 44"}, {4, 90, "log behind: term 4 < 5"}, {5, 44, ""}, {5, 45, ""}, {6, 1, ""},
	} {
		if got := LogReason(tt.term, tt.index, mine); got != tt.want {
			t.Errorf("%d/%d: %q, want %q", tt.term, tt.index, got, tt.want)
		}
	}
}
