package api

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

const jsonBody = "application/json"

func TestMembers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for _, n := range []*node{leader, follower} {
			r := n.do("POST", "/admin/members", `{"id":"n4","raft_address":"h4:7700","http_address":"h4:7701","reason":"grow"}`, "Content-Type", jsonBody)
			if r.status != 200 || !strings.Contains(r.body, `"id":"n4"`) {
				t.Fatalf("add: %+v", r)
			}
		}
		for _, r := range []reply{
			follower.do("POST", "/admin/members", `{"id":"n5","raft_address":"[::1]:7700","http_address":"h5:7701","suffrage":"nonvoter"}`, "Content-Type", jsonBody+"; charset=utf-8"),
			follower.do("PATCH", "/admin/members/n2", `{"priority":0,"eligible":false,"zone":"b"}`, "Content-Type", jsonBody),
			follower.do("PATCH", "/admin/members/n2", `{"readmit":true}`, "Content-Type", jsonBody),
			follower.do("PATCH", "/admin/members/n2", `{"suffrage":"voter","raft_address":"a:1","http_address":"b:2"}`, "Content-Type", jsonBody),
			follower.do("DELETE", "/admin/members/n2", ""),
			follower.do("DELETE", "/admin/members/n2", `{"reason":"gone"}`, "Content-Type", jsonBody),
		} {
			if r.status != 200 {
				t.Errorf("%+v", r)
			}
		}
		want := []string{
			`add {"ID":"n4","RaftAddress":"h4:7700","HTTPAddress":"h4:7701","Promote":true}`,
			`add {"ID":"n4","RaftAddress":"h4:7700","HTTPAddress":"h4:7701","Promote":true}`,
			`add {"ID":"n5","RaftAddress":"[::1]:7700","HTTPAddress":"h5:7701","Promote":false}`,
			`patch n2 {"Priority":0,"Eligible":false,"Zone":"b","Suffrage":null,"RaftAddress":null,"HTTPAddress":null,"Drain":null,"Readmit":false}`,
			`patch n2 {"Priority":null,"Eligible":null,"Zone":null,"Suffrage":null,"RaftAddress":null,"HTTPAddress":null,"Drain":null,"Readmit":true}`,
			`patch n2 {"Priority":null,"Eligible":null,"Zone":null,"Suffrage":"voter","RaftAddress":"a:1","HTTPAddress":"b:2","Drain":null,"Readmit":false}`,
			"remove n2", "remove n2",
		}
		leader.fake.addRecord(cluster.Member{ID: "n2", Priority: 100, Lifecycle: cluster.Active})
		if r := leader.do("POST", "/admin/members", `{"id":"n2","raft_address":"h2:7700","http_address":"h2:7701"}`, "Content-Type", jsonBody); !strings.Contains(r.body, "node n2 was a member already") {
			t.Errorf("add a member again: %+v", r)
		}
		want = append(want, `add {"ID":"n2","RaftAddress":"h2:7700","HTTPAddress":"h2:7701","Promote":true}`)
		if got := leader.fake.calls(); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("calls:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if leader.fake.awaitApplied != 3 {
			t.Errorf("of the changes of records %d were spread before the answer, want 3", leader.fake.awaitApplied)
		}
		leader.fake.set(func() {
			leader.fake.fail = cluster.Errorf(cluster.CodeQuorumAtRisk,
				"no quorum would be left")
		})
		follower.do("DELETE", "/admin/members/n2", "").is(t, 409, cluster.CodeQuorumAtRisk)
	})
}

func TestBadBodies(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for _, tc := range []struct {
			method, path, body, media, field string
			status                           int
		}{
			{"POST", "/admin/members", `{"id":"n4","raft_address":"h:1","http_address":"h:2","colour":1}`, jsonBody, "colour", 400},
			{"POST", "/admin/members", `{"ID":"n4","raft_address":"h:1","http_address":"h:2"}`, jsonBody, "ID", 400},
			{"POST", "/admin/members", `{"id":"n4","id":"n5","raft_address":"h:1","http_address":"h:2"}`, jsonBody, "id", 400},
			{"POST", "/admin/members", `{"id":"N4","raft_address":"h:1","http_address":"h:2"}`, jsonBody, "id", 400},
			{"POST", "/admin/members", `{"id":"n4","raft_address":"h","http_address":"h:2"}`, jsonBody, "raft_address", 400},
			{"POST", "/admin/members", `{"id":"n4","raft_address":"0.0.0.0:1","http_address":"h:2"}`, jsonBody, "raft_address", 400},
			{"POST", "/admin/members", `{"id":"n4","raft_address":"h:1","http_address":"[::]:2"}`, jsonBody, "http_address", 400},
			{"POST", "/admin/members", `{"id":"n4","raft_address":"h:1","http_address":"h:99999"}`, jsonBody, "http_address", 400},
			{"POST", "/admin/members", `{"id":"n4","raft_address":"h:1","http_address":":2"}`, jsonBody, "http_address", 400},
			{"POST", "/admin/members", `{"id":"n4","raft_address":"h:1","http_address":"h:2","suffrage":"staging"}`, jsonBody, "suffrage", 400},
			{"POST", "/admin/members", `{"id":3,"raft_address":"h:1","http_address":"h:2"}`, jsonBody, "id", 400},
			{"POST", "/admin/members", `{"id":"n4","raft_address":"h:1","http_address":"h:2"} {}`, jsonBody, "body", 400},
			{"POST", "/admin/members", `[]`, jsonBody, "body", 400},
			{"POST", "/admin/members", `{"id":`, jsonBody, "body", 400},
			{"POST", "/admin/members", `{`, jsonBody, "body: unexpected EOF", 400},
			{"POST", "/admin/members", "", "", "id", 400},
			{"POST", "/admin/members", `{}`, "text/plain", "Content-Type", 415},
			{"POST", "/admin/members", `{}`, "application/problem+json", "Content-Type", 415},
			{"POST", "/admin/members", `{"reason":"` + strings.Repeat("x", maxJSONBody) + `"}`, jsonBody, "body", 413},
			{"PATCH", "/admin/members/n2", `{"priority":256}`, jsonBody, "priority", 400},
			{"PATCH", "/admin/members/n2", `{"priority":-1}`, jsonBody, "priority", 400},
			{"PATCH", "/admin/members/n2", `{"priority":"high"}`, jsonBody, "priority", 400},
			{"PATCH", "/admin/members/n2", `{"priority":1.5}`, jsonBody, "priority", 400},
			{"PATCH", "/admin/members/n2", `{"eligible":1}`, jsonBody, "eligible", 400},
			{"PATCH", "/admin/members/n2", `{"zone":"a\nb"}`, jsonBody, "zone", 400},
			{"PATCH", "/admin/members/n2", `{"zone":"` + strings.Repeat("z", 257) + `"}`, jsonBody, "zone", 400},
			{"PATCH", "/admin/members/n2", `{"suffrage":""}`, jsonBody, "suffrage", 400},
			{"PATCH", "/admin/members/n2", `{}`, jsonBody, "nothing to change", 400},
			{"PATCH", "/admin/members/n2", `{"reason":"just so"}`, jsonBody, "nothing to change", 400},
			{"PATCH", "/admin/members/N2", `{"priority":1}`, jsonBody, "id", 404},
			{"DELETE", "/admin/members/n2", `{"force":true}`, jsonBody, "force", 400},
			{"POST", "/admin/nodes/n2/drain", `{"wait":true}`, jsonBody, "wait", 400},
			{"POST", "/admin/nodes/N2/drain", `{}`, jsonBody, "id", 404},
			{"DELETE", "/admin/members/n2", `{"plan_id":"x"}`, jsonBody, "plan_id", 400},
			{"POST", "/admin/transfer", `{"target_leader_id":"N"}`, jsonBody, "target_leader_id", 400},
			{"POST", "/admin/transfer", `{"timeout_ms":0}`, jsonBody, "timeout_ms", 400},
			{"POST", "/admin/transfer", `{"timeout_ms":60001}`, jsonBody, "timeout_ms", 400},
			{"POST", "/admin/transfer", `{"target_leader_id":"n7"}`, jsonBody, "target_leader_id", 404},
			{"POST", "/admin/snapshot/restore", "backup", "text/plain", "Content-Type", 415},
			{"POST", "/admin/snapshot/restore", "backup", "application/json", "Content-Type", 415},
		} {
			var headers []string
			if tc.media != "" {
				headers = []string{"Content-Type", tc.media}
			}
			code := (&cluster.Error{Code: cluster.CodeBadRequest, Status: tc.status}).Shown()
			p := n.do(tc.method, tc.path, tc.body, headers...).is(t, tc.status, code)
			if !strings.Contains(p.Detail, tc.field) {
				t.Errorf("%s %s: detail %q does not name %s", tc.path, tc.body, p.Detail, tc.field)
			}
		}
		if calls := n.fake.calls(); len(calls) != 0 {
			t.Errorf("refused requests did %q", calls)
		}
	})
}

func TestTransfer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		asked := make(chan string, 1)
		outcome := cluster.TransferOutcome{OldLeader: "n1", NewLeader: "n2", Term: 9, Duration: 4200 * time.Microsecond}
		var fail error
		leader, follower := pair(t, func(d *Deps) {
			d.Leadership = fakeTransfer(func(ctx context.Context, target cluster.NodeID) (cluster.TransferOutcome,
				error,
			) {
				if _, ok := ctx.Deadline(); !ok {
					t.Error("a transfer without deadline")
				}
				asked <- string(target)
				return outcome, fail
			})
		})
		for _, n := range []*node{leader, follower} {
			r := n.do("POST", "/admin/transfer", `{"target_leader_id":"n2","reason":"test"}`, "Content-Type", jsonBody)
			if want := `{"success":true,"message":"node n2 leads in term 9","old_leader_id":"n1","new_leader_id":"n2","term":9,"duration_ms":5}` + "\n"; r.status != 200 || r.body != want {
				t.Errorf("%d %s, want %s", r.status, r.body, want)
			}
			if got := <-asked; got != "n2" {
				t.Errorf("target %q", got)
			}
		}
		if r := follower.do("POST", "/admin/transfer", ""); r.status != 200 || <-asked != "n2" {
			t.Errorf("without a body: %+v", r)
		}
		for status, err := range map[int]*cluster.Error{
			409: {Code: cluster.CodeTransferFailed},
			504: {Code: cluster.CodeTransferFailed, Status: 504},
		} {
			fail = err
			follower.do("POST", "/admin/transfer", "").is(t, status, cluster.CodeTransferFailed)
			<-asked
		}
	})
}

// The outcome of a failed transfer is known when its timeout has passed. The client receives it through another
// node, too.
func TestTransfer_FailsLate(t *testing.T) {
	virtual(t, func(t *testing.T) {
		late := func(d *Deps) {
			d.TransferTimeout = 300 * time.Millisecond
			d.Leadership = &leadership{
				plan: func(o cluster.LeadershipRequest) (cluster.Plan, error) {
					return cluster.Plan{
						Action: o.Action, Term: 2, Target: "n2", Executor: "n1",
						Method: cluster.MethodTransfer,
					}, nil
				},
				execute: func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(50 * time.Millisecond) // to see who leads
					return &cluster.Error{
						Code: cluster.CodeTransferFailed, Status: 504, Detail: "told, and n3 leads",
						Leader: "n3",
					}
				},
			}
		}
		_, follower := pair(t, late)
		for path, body := range map[string]string{"/admin/transfer": `{"timeout_ms":100}`, "/admin/failover": `{}`} {
			p := follower.do("POST", path, body, "Content-Type", jsonBody).is(t, 504, cluster.CodeTransferFailed)
			if !strings.Contains(p.Detail, "n3 leads") || p.LeaderID != "n3" { // not n1, which the nodes follow still
				t.Errorf("%s: %+v", path, p)
			}
		}
	})
}

func TestSnapshot(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		leader.fake.set(func() { leader.fake.backup = "backup " + strings.Repeat("data ", 100_000) })
		sum := sha256.Sum256([]byte(leader.fake.backup))
		want := "sha256:" + hex.EncodeToString(sum[:])
		for _, n := range []*node{leader, follower} {
			resp, err := n.http.Get("http://" + n.addr + "/admin/snapshot")
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || string(body) != leader.fake.backup {
				t.Errorf("%d, %d bytes, %v", resp.StatusCode, len(body), err)
			}
			if got := resp.Trailer.Get("X-Northstar-Checksum"); got != want {
				t.Errorf("checksum %q, want %q", got, want)
			}
		}
		for _, n := range []*node{leader, follower} {
			r := n.do("POST", "/admin/snapshot/restore", leader.fake.backup, "Content-Type", "application/octet-stream")
			if r.status != 200 || !strings.Contains(r.body, `"revision":`) {
				t.Errorf("restore: %+v", r)
			}
			n.do("POST", "/admin/snapshot/restore", "rubbish", "Content-Type", "application/octet-stream").is(t, 400,
				cluster.CodeBadRequest)
		}
		if calls := leader.fake.calls(); len(calls) != 2 || calls[0] != "restore backup data data dat" {
			t.Errorf("calls %q", calls)
		}
	})
}

// TestBrokenSnapshot: what was cut short must not look whole.
func TestBrokenSnapshot(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		leader.fake.set(func() {
			leader.fake.backup = strings.Repeat("data ", 100_000)
			leader.fake.fail = errors.New("disk broke")
		})
		for _, n := range []*node{leader, follower} {
			resp, err := n.http.Get("http://" + n.addr + "/admin/snapshot")
			if err != nil {
				continue
			}
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil && resp.Trailer.Get("X-Northstar-Checksum") != "" {
				t.Error("a broken backup arrived with a checksum")
			}
			if err == nil {
				t.Error("a broken backup arrived without an error")
			}
		}
	})
}

func TestRestore_IsNotRetried(t *testing.T) {
	virtual(t, func(t *testing.T) {
		addr, requests := brokenLeader(t, false)
		n := followerOf(t, addr)
		n.do("POST", "/admin/snapshot/restore", "backup", "Content-Type", "application/octet-stream").is(t, 504,
			cluster.CodeOutcomeUnknown)
		if got := requests.Load(); got != 1 {
			t.Errorf("sent %d times", got)
		}
		// A node that does not lead may have read some of it: the rest is no backup.
		wrong := startServer(t, newFakeCluster("n1", false))
		n = followerOf(t, wrong.addr)
		n.do("POST", "/admin/snapshot/restore", "backup", "Content-Type", "application/octet-stream").is(t, 503,
			cluster.CodeNoLeader)
	})
}

// TestRestore_AnsweredEarly: the leader answers before it has read the backup, and reads on. The backup is still being
// sent to it while the node decides whether another attempt can be made. The race detector says if that is unsafe, in
// most rounds.
func TestRestore_AnsweredEarly(t *testing.T) {
	t.Parallel() // in real time: the node waits for a lock that a read from the client holds
	for i := range 6 {
		t.Run(fmt.Sprint("round ", i), answerRestoreEarly) //nolint:paralleltest // what others do orders the accesses
	}
}

func answerRestoreEarly(t *testing.T) {
	t.Helper()
	l := listen(t)
	var leader sync.WaitGroup
	t.Cleanup(func() { l.Close(); leader.Wait() })
	got := make(chan struct{}, 1) // the leader has received more of the backup
	leader.Go(func() {
		defer close(got)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		in := bufio.NewReader(c)
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		body := fmt.Sprintf(`{"code":%d,"retryable":true}`, cluster.CodeNoLeader)
		fmt.Fprintf(c, "HTTP/1.1 503 x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", apiv1.TypeProblem,
			len(body), body)
		for buf := make([]byte, 32<<10); ; {
			if _, err := in.Read(buf); err != nil {
				return
			}
			select {
			case got <- struct{}{}:
			default:
			}
		}
	})
	n := followerOf(t, l.Addr().String())
	backup, w := io.Pipe()
	go func() {
		for piece := make([]byte, 4<<10); ; <-got {
			if _, err := w.Write(piece); err != nil {
				return // the response is there
			}
		}
	}()
	resp, err := n.http.Post("http://"+n.addr+"/admin/snapshot/restore", apiv1.TypeBinary, backup)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	reply{resp.StatusCode, resp.Header, string(body)}.is(t, 503, cluster.CodeNoLeader)
}

func TestPanic_RespondsAndLogs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.barrier = func(context.Context) error { panic("a mistake") }
		n := startServer(t, f)
		n.do("GET", "/v1/kv/k", "").is(t, http.StatusInternalServerError, cluster.CodeInternal)
		if r := n.do("GET", "/livez", ""); r.status != 200 {
			t.Errorf("after a panic: %+v", r)
		}
		if n.requests.Load() != 0 {
			t.Error("the request is still counted")
		}
	})
}

// What curl sends, with or without a type of its own, is taken for what it must be.
func TestBodyWithoutItsType(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.fake.backup = "backup"
		for _, media := range []string{"", "application/x-www-form-urlencoded"} {
			var headers []string
			if media != "" {
				headers = []string{"Content-Type", media}
			}
			into[apiv1.SessionCreated](t, n.do("POST", "/v1/sessions", `{"name":"a"}`, headers...))
			into[apiv1.RestoreResult](t, n.do("POST", "/admin/snapshot/restore", "backup", headers...))
			n.do("POST", "/v1/sessions", `{"name":"a"}`, append(headers, "Origin", "http://evil.example")...).is(t, 403, cluster.CodeForbidden)
		}
	})
}
