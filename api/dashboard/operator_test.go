package dashboard_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/proc"
)

// stepsEnv names the directory for pictures of an operator's steps; "": none are taken.
const stepsEnv = "NORTHSTAR_STEPS"

// steps takes a numbered picture of each step of an operator.
type steps struct {
	p     *page
	taken int
}

func (s *steps) shot(name string) {
	s.p.t.Helper()
	dir := os.Getenv(stepsEnv)
	if dir == "" {
		return
	}
	s.taken++
	s.p.screenshot(filepath.Join(dir, fmt.Sprintf("%02d-%s.png", s.taken, name)))
}

// What an operator must be able to do with the page alone: find out why the last failover happened, move the leader
// after a dry run, take a role from its holder, see that the quorum is lost, and recover it. make steps keeps the
// pictures.
func TestOperator(t *testing.T) {
	t.Parallel()
	b := startChromium(t)
	s := startSite(t)
	old, own := s.leader(), s.Nodes[0]
	if own == old {
		own = s.Nodes[1]
	}
	p := b.open(t, "http://"+own.HTTP+"/", 1200, 900)
	see := &steps{p: p}
	p.waitText("This cluster asks for a token")
	see.shot("log-in")
	p.logIn(operatorToken)
	p.waitText("3 of 3 voters healthy, one may fail")
	p.waitText("Silence threshold")
	see.shot("overview")
	old.Kill()
	p.waitText("2 of 3 voters healthy, none may fail")
	see.shot("leader-lost")
	sessions := s.fillIn()
	if err := s.StartNode(old); err != nil {
		t.Fatal(err)
	}
	findsOutWhy(p, see, old)
	movesTheLeader(p, see, old)
	takesARole(p, see, s, sessions["crane-a"])
	recoversTheQuorum(p, see, s, own)
	if found := b.pageErrors(); len(found) > 0 {
		t.Errorf("errors in the page: %s", found)
	}
}

func findsOutWhy(p *page, see *steps, old *proc.Node) {
	p.click("#tabs a", "Elections")
	p.waitText("Who led when")
	p.click("summary", "Term")
	p.waitText("The election of term")
	p.waitText("leader " + old.ID) // in the words of the candidate
	p.waitText("The cluster had no leader for")
	see.shot("why-the-failover")
}

func movesTheLeader(p *page, see *steps, to *proc.Node) {
	p.click("#tabs a", "Overview")
	p.waitText("3 of 3 voters healthy, one may fail")
	p.click("button", "Transfer leadership…")
	p.fill("#field-target_leader_id", to.ID)
	p.fill("#field-reason", "the rack is repaired")
	see.shot("transfer-asked")
	p.click("button", "Show the plan")
	p.waitText("This would happen")
	p.waitText("2 held roles and 3 sessions stay as they are.")
	see.shot("transfer-plan")
	p.click("button", "Run this plan")
	p.waitText("It took")
	see.shot("transfer-done")
	p.click("button", "Close")
	p.waitText(to.ID + " leads")
}

func takesARole(p *page, see *steps, s *site, holder string) {
	p.click("#tabs a", "Roles")
	p.click("main a", "crane")
	p.waitText("holds it with token")
	see.shot("role")
	p.click("button", "Evict the holder…")
	p.fill("#field-reason", "crane-a hangs")
	p.click("button", "Show the plan")
	p.waitText("This would happen")
	p.waitText("This affects 1 held role and 1 session.")
	see.shot("evict-plan")
	p.click("button", "Run this plan")
	s.release(holder, "crane")
	p.waitText("It took")
	p.click("button", "Close")
	p.wait("the next in the queue holds it", `document.querySelector("main section .pill.lead").innerText === "crane-b"`)
	p.waitText("an operator evicted it")
	see.shot("evicted")
}

func recoversTheQuorum(p *page, see *steps, s *site, left *proc.Node) {
	p.click("#tabs a", "Overview")
	s.awaitApplied(left) // a follower learns what is committed with the next message of its leader
	for _, n := range s.Nodes {
		if n != left {
			n.Kill()
		}
	}
	p.waitText("Quorum lost")
	p.waitText("an operator can recover the cluster from the nodes that are left")
	see.shot("quorum-lost")
	p.click("button", "Recover the lost quorum…")
	var id string
	p.eval(`document.querySelector("label[for=field-confirm]").innerText.split(": ")[1]`, &id)
	p.fill("#field-confirm", id)
	p.fill("#field-reason", "two disks are lost")
	see.shot("recover-asked")
	p.click("button", "Show the plan")
	p.waitText("risk: high")
	p.waitText("All sessions end and all roles are vacated")
	p.waitText("This affects 2 held roles and 3 sessions.")
	see.shot("recover-plan")
	p.eval(`void (window.alarms = [], new MutationObserver(() => {
		const text = document.querySelector("#banners").innerText;
		if (text.includes("claim to lead")) window.alarms.push(text);
	}).observe(document.querySelector("#banners"), { childList: true, subtree: true, characterData: true }))`, nil)
	p.click("button", "Run this plan")
	p.waitText("It took")
	see.shot("recovered")
	p.click("button", "Close")
	p.waitText("1 voter, none may fail")
	p.waitText(left.ID + " leads")
	p.waitText("This cluster was recovered, without ")
	var alarms []string
	p.eval("window.alarms", &alarms)
	if len(alarms) > 0 {
		p.t.Errorf("a false alarm after the recovery: %q", alarms)
	}
	see.shot("after-recovery")
	s.call(left, "PUT", "/v1/kv/after", "recovery", nil)
}

// awaitApplied returns once a node has applied what the leader has applied now.
func (s *site) awaitApplied(n *proc.Node) {
	s.t.Helper()
	var leader, own apiv1.Status
	s.call(s.leader(), "GET", "/status", nil, &leader)
	for until := time.Now().Add(showTimeout); own.AppliedIndex < leader.AppliedIndex; {
		if time.Now().After(until) {
			s.t.Fatalf("node %s has applied %d of %d entries", n.ID, own.AppliedIndex, leader.AppliedIndex)
		}
		<-time.After(20 * time.Millisecond)
		s.call(n, "GET", "/status", nil, &own)
	}
}

// release lets a session give up a role when it hears that the role was taken from it.
func (s *site) release(session, role string) {
	s.t.Helper()
	n := s.leader()
	for until := time.Now().Add(showTimeout); time.Now().Before(until); {
		var stored apiv1.Session
		s.call(n, "GET", apiv1.PathSessions+"/"+session, nil, &stored)
		if len(stored.RevokedRoles) > 0 {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	s.call(n, "DELETE", "/v1/roles/"+role+"?session_id="+session, nil, nil)
}
