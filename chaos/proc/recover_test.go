package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
)

// drill is a cluster that permanently loses a majority under write load.
type drill struct {
	*Cluster
	t          *testing.T
	left, lost []*Node
	acked      uint64    // highest acknowledged revision
	token      uint64    // of a tenure that began before the loss
	session    string    // the session that held it
	replaced   time.Time // the survivors' state was replaced after this time
	clusterID  string
	term       uint64 // highest observed term
}

func startDrill(t *testing.T, size int) *drill {
	t.Helper()
	d := &drill{Cluster: newCluster(t, size), t: t}
	lead := start(t, d.Cluster)
	d.left = slices.DeleteFunc(slices.Clone(d.Nodes), func(n *Node) bool { return n == lead })[:size/2]
	for _, n := range d.Nodes {
		if !slices.Contains(d.left, n) {
			d.lost = append(d.lost, n)
		}
	}
	w := newWriters(d.Cluster, 4)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx) }()
	eventually(t, soon, func() error {
		if n := w.highest(); n < 300 {
			return fmt.Errorf("%d writes", n)
		}
		return nil
	})
	s := mustStatus(t, lead)
	d.clusterID, d.term = s.ClusterID, s.Term
	session, won := holdsRole(t, clientOf(t, d.Cluster), "drilled", drillTTL)
	d.session, d.token = session, won.Token
	for _, n := range d.lost {
		_ = n.Cmd.Process.Kill()
	}
	for _, n := range d.lost {
		n.Kill()
	}
	stop()
	<-done
	d.acked = w.highest()
	return d
}

// drillTTL is the TTL of the role holder when the nodes are lost. After the recovery, roles are blocked for as long,
// even if no survivor knows of the tenure.
const drillTTL = 10 * time.Second

// newSession starts a session that no client renews.
func (d *drill) newSession(at *Node, ttl time.Duration) string {
	d.t.Helper()
	var made apiv1.SessionCreated
	d.admin(at, http.MethodPost, "/v1/sessions", map[string]any{"name": "worker", "ttl_ms": ttl.Milliseconds()}, &made)
	return made.SessionID
}

// elect elects a session to a role, and returns its token.
func (d *drill) elect(at *Node, role, session string) uint64 {
	d.t.Helper()
	var tenure apiv1.Role
	d.admin(at, http.MethodPost, "/v1/roles/"+role+"/campaign", map[string]any{"session_id": session, "wait_ms": 20000},
		&tenure)
	return tenure.Token
}

// electAgain elects a new session to the old role and to a new one. Both elections must wait until holders that the
// lost nodes may have elected have stopped.
func (d *drill) electAgain(at *Node) {
	d.t.Helper()
	for _, role := range []string{"drilled", "unheard-of"} {
		token := d.elect(at, role, d.newSession(at, time.Minute))
		if token <= max(d.token, d.acked) {
			d.t.Errorf("%s: token %d after %d, and revision %d", role, token, d.token, d.acked)
		}
		if waited := time.Since(d.replaced); waited < drillTTL {
			d.t.Errorf("%s was given to another %v after the recovery, and may be held for %v", role, waited, drillTTL)
		}
	}
}

// admin makes a call that must succeed.
func (d *drill) admin(n *Node, method, path string, body, out any) {
	d.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		d.t.Fatal(err)
	}
	eventually(d.t, soon, func() error {
		ctx, cancel := context.WithTimeout(d.t.Context(), soon)
		defer cancel()
		a, err := do(ctx, n, method, path, text, "Content-Type", "application/json")
		if err != nil || a.Status != http.StatusOK {
			return fmt.Errorf("%s %s at %s: %d %s %v", method, path, n.ID, a.Status, a.Body, err)
		}
		if out != nil {
			return json.Unmarshal(a.Body, out)
		}
		return nil
	})
}

func (d *drill) node(id string) *Node {
	i := slices.IndexFunc(d.Nodes, func(n *Node) bool { return n.ID == id })
	if i < 0 {
		d.t.Fatalf("no node %q", id)
	}
	return d.Nodes[i]
}

// recoverOnline recovers through the last survivor named.
func (d *drill) recoverOnline() *Node {
	var names []string
	for _, n := range d.left {
		names = append(names, n.ID)
	}
	request := map[string]any{
		"survivors": names, "confirm": d.clusterID, "force": true, "reason": "drill",
		"dry_run": true,
	}
	var plan apiv1.Plan
	asked := d.left[len(d.left)-1]
	d.admin(asked, http.MethodPost, "/admin/recover", request, &plan)
	if !plan.Possible || len(plan.Survivors) != len(d.left) || plan.Survivors[0].LastIndex == 0 {
		d.t.Fatalf("the plan: %+v", plan)
	}
	request["dry_run"] = false
	var out apiv1.RecoverResult
	began := time.Now()
	d.admin(asked, http.MethodPost, "/admin/recover", request, &out)
	d.t.Logf("recovered in %v: %+v", time.Since(began).Round(time.Millisecond), out)
	if out.RecoveredID != plan.TargetID || out.Generation != 2 || out.Revision <= d.acked {
		d.t.Fatalf("planned %+v, done %+v", plan, out)
	}
	for _, s := range out.Survivors[1:] {
		if s.Outcome != "set aside" {
			d.t.Errorf("%+v", s)
		}
	}
	return d.node(out.RecoveredID)
}

// recoverOffline recovers the most up-to-date of the survivors' data directories. The others must be wiped.
func (d *drill) recoverOffline() *Node {
	bin, err := nodeBin()
	if err != nil {
		d.t.Fatal(err)
	}
	tool := func(n *Node, more ...string) (string, error) {
		out, err := exec.Command(bin, append([]string{"recover", "--data-dir", d.DataDir(n)},
			more...)...).CombinedOutput()
		return string(out), err
	}
	if out, err := tool(d.left[0]); err == nil || !strings.Contains(out, "another process holds its lock") {
		d.t.Errorf("of a node that runs: %v\n%s", err, out)
	}
	var best *Node
	var bestTerm, bestIndex uint64
	for _, n := range d.left {
		n.Kill()
		out, err := tool(n)
		if err != nil {
			d.t.Fatalf("%v\n%s", err, out)
		}
		var term, index uint64
		for line := range strings.Lines(out) {
			_, _ = fmt.Sscanf(line, "last entry term %d, index %d", &term, &index)
		}
		if !strings.Contains(out, d.clusterID) || index == 0 {
			d.t.Fatalf("%s", out)
		}
		if term > bestTerm || term == bestTerm && index > bestIndex {
			best, bestTerm, bestIndex = n, term, index
		}
	}
	if out, err := tool(best, "--confirm", "another"); err == nil {
		d.t.Errorf("with another cluster's ID: %s", out)
	}
	out, err := tool(best, "--confirm", d.clusterID)
	if err != nil {
		d.t.Fatalf("%v\n%s", err, out)
	}
	d.t.Log(out)
	for _, n := range d.left {
		if n != best {
			d.lost = append(d.lost, n)
		}
	}
	d.left = []*Node{best}
	if err := d.StartNode(best); err != nil {
		d.t.Fatal(err)
	}
	return best
}

type drillStatus struct {
	status
	Generation uint64 `json:"generation"`
}

func (d *drill) status(n *Node) (s drillStatus, err error) {
	body, err := Get(d.t.Context(), "http://"+n.HTTP+"/status")
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}

// leads waits until the recovered node leads, and checks its data and reports.
func (d *drill) leads(n *Node, reason string) {
	eventually(d.t, soon, func() error {
		s, err := d.status(n)
		if err == nil && (s.State != "leader" || s.Generation != 2 || s.ClusterID != d.clusterID || s.Term <= d.term) {
			err = fmt.Errorf("%s: %+v", n.ID, s)
		}
		return err
	})
	var listed struct {
		Items []struct {
			Node, Message string
			Fields        struct {
				Generation  uint64 `json:"generation"`
				RecoveredID string `json:"recovered_id"`
				Reason      string `json:"reason"`
			} `json:"fields"`
		} `json:"items"`
	}
	eventually(d.t, soon, func() error {
		d.admin(n, http.MethodGet, "/v1/events?type=failover", nil, &listed)
		events := 0
		for _, e := range listed.Items {
			if strings.HasPrefix(e.Message, "cluster recovered") {
				events++
				if e.Node != n.ID || e.Fields.RecoveredID != n.ID || e.Fields.Generation != 2 ||
					e.Fields.Reason != reason {
					d.t.Fatalf("the event: %+v", e)
				}
			}
		}
		if events != 1 {
			return fmt.Errorf("%d events of the recovery: %+v", events, listed)
		}
		return nil
	})
	var list apiv1.List
	d.admin(n, http.MethodGet, "/v1/kv", nil, &list)
	if len(list.Items) == 0 {
		d.t.Error("nothing was kept")
	}
	for _, it := range list.Items {
		if it.Revision <= d.acked {
			d.t.Errorf("%s has revision %d, %d was acknowledged before", it.Key, it.Revision, d.acked)
		}
	}
	a, err := put(d.t.Context(), n, "after", "recovery")
	if err != nil || a.Status != http.StatusOK || a.Revision <= d.acked {
		d.t.Errorf("a write: %+v, %v", a, err)
	}
	if a, err := do(d.t.Context(), n, http.MethodPost, "/v1/sessions/"+d.session+"/renew", nil); err != nil ||
		a.Code != 4012 {
		d.t.Errorf("a session of the old generation: %+v, %v", a, err)
	}
	if a, err := do(d.t.Context(), n, http.MethodPut, "/v1/kv/fenced", []byte("x"), "X-Northstar-Fence",
		fmt.Sprintf("drilled=%d", d.token)); err != nil || a.Code != 4011 {
		d.t.Errorf("a write with a token of the old generation: %+v, %v", a, err)
	}
	d.electAgain(n)
}

// leader returns the current leader of the new generation. On a busy machine that is not always the recovered node.
func (d *drill) leader() (lead *Node) {
	d.t.Helper()
	eventually(d.t, soon, func() error {
		for _, n := range d.Nodes { // a re-admitted node may be elected, too
			if s, err := d.status(n); err == nil && s.State == "leader" && s.Generation == 2 {
				lead = n
				return nil
			}
		}
		return errors.New("none of the new generation leads")
	})
	return lead
}

// returns starts the lost nodes with their old data.
func (d *drill) returns() {
	before, err := d.status(d.leader())
	if err != nil {
		d.t.Fatal(err)
	}
	for _, n := range d.lost {
		if err := d.StartNode(n); err != nil {
			d.t.Fatal(err)
		}
	}
	for _, n := range d.lost {
		eventually(d.t, soon, func() error {
			s, err := d.status(n)
			if err == nil && s.Lifecycle != "dead" {
				err = fmt.Errorf("%s is %s", n.ID, s.Lifecycle)
			}
			return err
		})
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); pause(20 * time.Millisecond) {
		for _, n := range d.lost {
			if s, err := d.status(n); err == nil && (s.State == "leader" || s.LeaderID != "" || s.Generation != 1) {
				d.t.Fatalf("%s: %+v", n.ID, s)
			}
		}
	}
	var page apiv1.Elections
	d.admin(d.leader(), http.MethodGet, "/v1/elections?limit=100", nil, &page)
	for _, e := range page.Items {
		if e.Won() && e.Term > before.Term &&
			slices.ContainsFunc(d.lost, func(n *Node) bool { return n.ID == e.CandidateID }) {
			d.t.Errorf("%s was elected in term %d", e.CandidateID, e.Term)
		}
	}
	verdict(d.t, d.lost[0], "unreachable", true)
	refuses(d.t, d.lost[0])
	verdict(d.t, d.leader(), "unreachable", false)
	for _, n := range d.Nodes { // neither the recovery nor the lost nodes make two leaders
		if alarmed(d.t, n, "split_brain") {
			d.t.Errorf("%s raised the alarm of a split brain", n.ID)
		}
	}
	said := 0
	for _, n := range d.left {
		said += strings.Count(d.Log(n), "reason=old_generation")
	}
	if said == 0 {
		d.t.Error("no node of the new generation says that it turns others away")
	}
	for _, n := range d.lost {
		if s, err := d.status(n); err != nil || s.Term > before.Term {
			d.t.Errorf("%s: %+v, %v; the new generation was in term %d", n.ID, s, err, before.Term)
		}
		lines := strings.Count(d.Log(n), "refused by a peer")
		if lines != 1 || !strings.Contains(d.Log(n), "refusal=old_generation") {
			d.t.Errorf("%s says %d times that it is refused", n.ID, lines)
		}
		if a, err := do(d.t.Context(), n, http.MethodGet, "/v1/kv/after?consistency=stale", nil); err != nil ||
			a.Status != http.StatusServiceUnavailable {
			d.t.Errorf("%s serves reads, or has an entry of the new generation: %+v, %v", n.ID, a, err)
		}
		if a, err := do(d.t.Context(), n, http.MethodGet, "/livez", nil); err != nil || a.Status != http.StatusOK {
			d.t.Errorf("/livez of %s: %+v, %v", n.ID, a, err)
		}
	}
}

// readmit wipes the lost nodes, adds them again, and requires a complete cluster.
func (d *drill) readmit() {
	for _, n := range d.lost {
		if n.Running() {
			n.Kill()
		}
		if err := os.RemoveAll(d.DataDir(n)); err != nil {
			d.t.Fatal(err)
		}
		d.admin(d.leader(), http.MethodPatch, "/admin/members/"+n.ID, map[string]any{"readmit": true}, nil)
		if err := d.StartNode(n); err != nil {
			d.t.Fatal(err)
		}
	}
	eventually(d.t, 2*soon, func() error {
		var view struct {
			Quorum struct{ Voters, Healthy int }
		}
		body, err := Get(d.t.Context(), "http://"+d.leader().HTTP+"/v1/cluster")
		if err == nil {
			err = json.Unmarshal(body, &view)
		}
		if err == nil && (view.Quorum.Voters != len(d.Nodes) || view.Quorum.Healthy != len(d.Nodes)) {
			err = fmt.Errorf("%s", body)
		}
		return err
	})
	mustPut(d.t, d.Cluster, "whole", "again")
	for _, n := range d.Nodes {
		eventually(d.t, soon, func() error {
			a, err := do(d.t.Context(), n, http.MethodGet, "/v1/kv/whole?consistency=stale", nil)
			if err == nil && string(a.Body) != "again" {
				err = fmt.Errorf("%s: %d %s", n.ID, a.Status, a.Body)
			}
			return err
		})
	}
}

// A majority is lost permanently under write load, and a survivor is recovered. The lost nodes return with their old
// data: they are refused, elect no leader, and disturb no other node. After they are wiped and added again, the cluster
// is complete.
func TestRecoveryDrill(t *testing.T) {
	t.Parallel()
	for _, size := range []int{3, 5} {
		for reason, how := range map[string]func(*drill) *Node{
			"drill":   (*drill).recoverOnline,
			"offline": (*drill).recoverOffline,
		} {
			t.Run(fmt.Sprintf("%d nodes %s", size, map[string]string{"drill": "online", "offline": "offline"}[reason]),
				func(t *testing.T) {
					t.Parallel()
					d := startDrill(t, size)
					d.replaced = time.Now()
					leader := how(d)
					d.leads(leader, reason)
					d.returns()
					d.readmit()
				})
		}
	}
}
