package proc

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestContractHTTP sends the same requests to the leader and a follower: forwarding makes no difference.
func TestContractHTTP(t *testing.T) {
	t.Parallel()
	cl, lead, follower := contractCluster(t, 3, calm...)
	for i, n := range []*Node{lead, follower} {
		at := map[bool]string{true: "leader", false: "follower"}[i == 0]
		pre := "/v1/kv/" + at + "/"
		for name, test := range map[string]func(*contract){
			"discovery":   func(c *contract) { contractDiscovery(c, cl, n, lead) },
			"keys":        func(c *contract) { contractKeys(c, n, pre) },
			"conditions":  func(c *contract) { contractConditions(c, n, pre) },
			"parameters":  func(c *contract) { contractParameters(c, n, pre) },
			"list":        func(c *contract) { contractList(c, n, at) },
			"idempotency": func(c *contract) { contractIdempotency(c, n, lead, pre) },
			"admin":       func(c *contract) { contractAdmin(c, n) },
		} {
			t.Run(at+"/"+name, func(t *testing.T) { test(newContract(t)) })
		}
	}
	t.Run("forwarding", func(t *testing.T) { contractForwarding(newContract(t), lead, follower) })
}

func contractDiscovery(c *contract, cl *Cluster, n, lead *Node) {
	leads := n == lead
	l := c.ask(n, "GET", "/leader", "").is(200).has("leader_id", "leader_address", "raft_address", "term",
		"observed_by")
	if l["leader_id"] != lead.ID || l["leader_address"] != lead.HTTP || l["raft_address"] != lead.Raft ||
		l["observed_by"] != n.ID {
		c.t.Errorf("/leader: %v", l)
	}
	st := c.ask(n, "GET", "/status", "").is(200).fields()
	for key, zero := range map[string]any{
		"node_id": "", "cluster_id": "", "generation": json.Number(""), "cluster_name": "", "state": "",
		"term": json.Number(""), "leader_id": "",
		"leader_address": "", "suffrage": "", "priority": json.Number(""), "eligible": false, "zone": "",
		"lifecycle":    "",
		"commit_index": json.Number(""), "applied_index": json.Number(""), "last_log_index": json.Number(""),
		"last_contact_ms":    json.Number(""),
		"lease_remaining_ms": json.Number(""), "auto_failover": false, "disk": map[string]any{}, "version": "",
		"started_at": "",
	} {
		if got := fmt.Sprintf("%T", st[key]); got != fmt.Sprintf("%T", zero) {
			c.t.Errorf("/status: %s is %s %v", key, got, st[key])
		}
	}
	if at, err := time.Parse(time.RFC3339, st["started_at"].(string)); err != nil || at.Location() != time.UTC {
		c.t.Errorf("started_at %v: %v", st["started_at"], err)
	}
	eventually(c.t, soon, func() error { return wantStatus(c, n, "GET", "/readyz", 200) })
	if h := c.ask(n, "GET", "/readyz?verbose", "").is(200); strings.Count(string(h.body), "[+]") < 3 {
		c.t.Errorf("/readyz?verbose: %s", h.body)
	}
	c.ask(n, "GET", "/livez", "").is(200)
	status := map[bool]int{true: 200, false: 503}
	for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
		c.ask(n, method, "/health/leader", "").is(status[leads])
	}
	for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
		c.ask(n, method, "/health/follower", "").is(status[!leads])
		c.ask(n, method, "/health/follower?max_lag=100", "").is(status[!leads])
	}
	var v map[string]any
	eventually(c.t, soon, func() error { // a follower may just have started
		v = c.ask(n, "GET", "/v1/cluster", "").is(200).fields()
		if got := fmt.Sprint(v["quorum"]); got != "map[healthy:3 needed:2 tolerates:1 voters:3]" {
			return fmt.Errorf("quorum %s", got)
		}
		return nil
	})
	for _, m := range v["members"].([]any) {
		for _, key := range strings.Fields(
			"id raft_address http_address suffrage priority eligible zone lifecycle healthy reasons state last_contact_ms lag_entries version") {
			if _, ok := m.(map[string]any)[key]; !ok {
				c.t.Errorf("member without %s: %v", key, m)
			}
		}
	}
	if len(v["members"].([]any)) != len(cl.Nodes) {
		c.t.Errorf("members %v", v["members"])
	}
	for path, media := range map[string]string{"/": "text/html", "/metrics": "text/plain", "/openapi.json": jsonType} {
		if h := c.ask(n, "GET", path, "").is(200); !strings.HasPrefix(h.header.Get("Content-Type"), media) {
			c.t.Errorf("%s is %s", path, h.header.Get("Content-Type"))
		}
	}
	for request, allow := range map[string]string{
		"POST /leader": "GET, HEAD", "POST /v1/kv/x": "DELETE, GET, HEAD, PUT", "PUT /v1/kv": "GET, HEAD",
		"GET /admin/transfer": "POST", "BREW /livez": "GET, HEAD",
	} {
		method, path, _ := strings.Cut(request, " ")
		if h := c.ask(n, method, path, "").is(405, 4400); h.header.Get("Allow") != allow {
			c.t.Errorf("%s: Allow is %q", request, h.header.Get("Allow"))
		}
	}
	for _, path := range []string{"/nothing", "/v1", "/leader/", "//livez", "/v1/kvx"} {
		c.ask(n, "GET", path, "").is(404, 4404)
	}
}

func wantStatus(c *contract, n *Node, method, path string, status int) error {
	h, err := c.try(n, method, path, "")
	if err == nil && h.status != status {
		err = fmt.Errorf("%s: %d %s", h.what, h.status, h.body)
	}
	return err
}

func contractKeys(c *contract, n *Node, pre string) {
	for path, key := range map[string]string{
		"a": "a", "a//b": "a//b", "a/../b": "a/../b", ".": ".", "..": "..", "a/": "a/", "a%2Fb": "a/b", "%00": "\x00",
		"%C3%A9": "é", "%3Fq": "?q", "a+b%20c": "a+b c",
	} {
		m := c.ask(n, "PUT", pre+path, "of "+path).is(200).has("key", "revision", "created")
		if want := strings.TrimPrefix(pre, "/v1/kv/") + key; m["key"] != want {
			c.t.Errorf("%s is key %q, want %q", path, m["key"], want)
		}
		if h := c.ask(n, "GET", pre+path, "").is(200); string(h.body) != "of "+path {
			c.t.Errorf("%s holds %q", path, h.body)
		}
	}
	first := c.ask(n, "PUT", pre+"k", "1").is(200)
	second := c.ask(n, "PUT", pre+"k", "2").is(200)
	rev := second.revision()
	if first.fields()["created"] != true || second.fields()["created"] != false || rev <= first.revision() {
		c.t.Errorf("%s, then %s", first.body, second.body)
	}
	for _, method := range []string{"GET", "HEAD"} {
		h := c.ask(n, method, pre+"k", "").is(200)
		if h.header.Get("ETag") != fmt.Sprintf(`"%d"`, rev) || h.header.Get("X-Northstar-Revision") != fmt.Sprint(rev) {
			c.t.Errorf("%s: %v", h.what, h.header)
		}
	}
	for level, aged := range map[string]bool{"linearizable": false, "lease": false, "stale": true} {
		if aged { // a follower may apply a write after it was acknowledged
			eventually(c.t, soon, func() error { return wantStatus(c, n, "GET", pre+"k?consistency="+level, 200) })
		}
		h := c.ask(n, "GET", pre+"k?consistency="+level, "").is(200)
		if (h.header.Get("X-Northstar-Last-Contact-Ms") != "") != aged {
			c.t.Errorf("%s: %v", h.what, h.header)
		}
	}
	c.ask(n, "DELETE", pre+"k", "").is(200).has("key", "revision")
	c.ask(n, "DELETE", pre+"k", "").is(404, 4404)
	c.ask(n, "GET", pre+"k", "").is(404, 4404)
	long := "/v1/kv/" + strings.Repeat("k", 4096)
	c.ask(n, "PUT", long, "x").is(200)
	c.ask(n, "PUT", long+"k", "x").is(400, 4400)
	c.ask(n, "PUT", "/v1/kv/", "x").is(400, 4400)
	c.ask(n, "PUT", "/v1/kv/%FF", "x").is(400, 4400)
	big := strings.Repeat("x", 1<<20)
	c.ask(n, "PUT", pre+"big", big).is(200)
	if h := c.ask(n, "GET", pre+"big", "").is(200); string(h.body) != big {
		c.t.Errorf("%d bytes came back", len(h.body))
	}
	c.ask(n, "PUT", pre+"big", big+"x").is(413, 4400)
	c.ask(n, "PUT", pre+"z", "x", "Content-Encoding", "gzip").is(415, 4400)
	c.ask(n, "PUT", pre+"z?ttl_session=nobody", "x").is(404, 4012)
	c.ask(n, "PUT", pre+"z", "x", "X-Northstar-Fence", "role=1").is(409, 4011)
	c.ask(n, "PUT", pre+"z", "x", "X-Northstar-Fence", "role").is(400, 4400)
}

func contractConditions(c *contract, n *Node, pre string) {
	key, none := pre+"cond", pre+"none"
	old := c.ask(n, "PUT", key, "1").is(200).revision()
	rev := c.ask(n, "PUT", key, "2").is(200).revision()
	tag := fmt.Sprintf(`"%d"`, rev)
	for _, tc := range []struct {
		method, path, header, value string
		status                      int
	}{
		{"PUT", key, "If-Match", fmt.Sprintf(`"%d"`, old), 412},
		{"PUT", key, "If-None-Match", "*", 412},
		{"DELETE", key, "If-Match", fmt.Sprintf(`"%d"`, old), 412},
		{"PUT", none, "If-Match", tag, 412},
		{"PUT", none, "If-Match", "*", 412},
		{"DELETE", none, "If-Match", "*", 412},
		{"PUT", key, "If-Match", fmt.Sprint(rev), 400},
		{"PUT", key, "If-Match", "W/" + tag, 400},
		{"PUT", key, "If-Match", tag + `, "1"`, 400},
		{"PUT", key, "If-None-Match", tag, 400},
		{"GET", key, "If-None-Match", tag, 304},
		{"GET", key, "If-None-Match", `"1", W/` + tag, 304},
		{"GET", key, "If-None-Match", `"1"`, 200},
	} {
		h := c.ask(n, tc.method, tc.path, "3", tc.header, tc.value).is(tc.status)
		if tc.status != 412 {
			continue
		}
		want, current := tag, rev
		if tc.path == none {
			want, current = "", 0
		}
		if h.is(412, 4014); h.header.Get("ETag") != want || h.revision() != current {
			c.t.Errorf("%s with %s: %s: ETag %q, revision %d", h.what, tc.header, tc.value, h.header.Get("ETag"),
				h.revision())
		}
	}
	rev = c.ask(n, "PUT", key, "3", "If-Match", tag).is(200).revision()
	c.ask(n, "PUT", key, "4", "If-Match", "*").is(200)
	c.ask(n, "PUT", pre+"new", "1", "If-None-Match", "*").is(200)
	c.ask(n, "DELETE", key, "", "If-Match", fmt.Sprintf(`"%d"`, rev)).is(412, 4014)
	c.ask(n, "DELETE", key, "", "If-Match", "*").is(200)
}

func contractParameters(c *contract, n *Node, pre string) {
	for _, v := range []string{"0", "-1", "60001", "text", "", "1.5"} {
		c.ask(n, "GET", pre+"p?timeout_ms="+v, "").is(400, 4400)
		c.ask(n, "PUT", pre+"p?timeout_ms="+v, "x").is(400, 4400)
	}
	for _, path := range []string{
		pre + "p?unknown=1", "/livez?x", pre + "p?timeout_ms=5&timeout_ms=6", pre + "p?consistency=", pre +
			"p?consistency=fresh",
		pre + "p?redirect=maybe", pre + "p?a=%zz", "/health/follower?max_lag=-1", "/v1/kv?limit=0", "/v1/kv?limit=-1",
		"/v1/kv?limit=x",
		"/v1/watch?since=x", "/v1/watch?since=-1", "/v1/watch?since=", "/v1/watch?since=9007199254740993",
		"/v1/watch?prefix=%FF",
	} {
		c.ask(n, "GET", path, "").is(400, 4400)
	}
	c.ask(n, "GET", "/v1/kv?prefix=&limit=&after=", "").is(200)
	c.ask(n, "GET", "/v1/kv?limit=1001", "").is(200) // as many as fit, and where to continue
	c.ask(n, "GET", "/v1/watch", "", "Last-Event-ID", "junk").is(400, 4400)
}

func contractList(c *contract, n *Node, at string) {
	for i := range 5 {
		c.ask(n, "PUT", fmt.Sprintf("/v1/kv/list-%s/%d", at, i), fmt.Sprint(i)).is(200)
	}
	var keys []string
	after := ""
	for {
		m := c.ask(n, "GET", "/v1/kv?limit=2&prefix=list-"+at+"/&after="+after, "").is(200).has("revision", "items",
			"next")
		for _, it := range m["items"].([]any) {
			it := it.(map[string]any)
			value, err := base64.StdEncoding.DecodeString(it["value"].(string))
			if err != nil || len(it) != 5 || it["version"] != json.Number("1") ||
				it["revision"] != it["create_revision"] || !strings.HasSuffix(it["key"].(string), string(value)) {
				c.t.Errorf("item %v", it)
			}
			keys = append(keys, it["key"].(string))
		}
		if after = m["next"].(string); after == "" {
			break
		}
	}
	if len(keys) != 5 {
		c.t.Errorf("keys %v", keys)
	}
}

func contractIdempotency(c *contract, n, lead *Node, pre string) {
	name := "once for " + pre
	first := c.ask(n, "PUT", pre+"i", "1", "Idempotency-Key", name).is(200)
	for _, at := range []*Node{n, lead} {
		if again := c.ask(at, "PUT", pre+"i?timeout_ms=4000", "1", "Idempotency-Key",
			name).is(200); string(again.body) != string(first.body) {
			c.t.Errorf("%s, then %s", first.body, again.body)
		}
	}
	c.ask(n, "PUT", pre+"i", "2", "Idempotency-Key", name).is(422, 4400)
	c.ask(n, "DELETE", pre+"i", "", "Idempotency-Key", name).is(422, 4400)
	c.ask(n, "PUT", pre+"i", "2", "Idempotency-Key", strings.Repeat("x", 129)).is(400, 4400)
	c.ask(n, "PUT", pre+"i", "2", "Idempotency-Key", "").is(400, 4400)
}

func contractAdmin(c *contract, n *Node) {
	for _, tc := range []struct {
		method, path, body, media string
		status                    int
	}{
		{"POST", "/admin/transfer", "{}", "text/plain", 415},
		{"POST", "/admin/transfer", "{", jsonType, 400},
		{"POST", "/admin/transfer", "[]", jsonType, 400},
		{"POST", "/admin/transfer", "null", jsonType, 400},
		{"POST", "/admin/transfer", `{"unknown":1}`, jsonType, 400},
		{"POST", "/admin/transfer", `{"Reason":"x"}`, jsonType, 400},
		{"POST", "/admin/transfer", `{"reason":"x","reason":"y"}`, jsonType, 400},
		{"POST", "/admin/transfer", `{"target_leader_id":5}`, jsonType, 400},
		{"POST", "/admin/transfer", `{} x`, jsonType, 400},
		{"POST", "/admin/transfer", `{"timeout_ms":0}`, jsonType, 400},
		{"POST", "/admin/transfer", `{"target_leader_id":"nobody"}`, jsonType, 404},
		{"POST", "/admin/transfer", strings.Repeat(" ", 70000), jsonType, 413},
		{"POST", "/admin/members", `{"id":"n9"}`, jsonType, 400},
		{"PATCH", "/admin/members/n1", `{}`, jsonType, 400},
		{"PATCH", "/admin/members/n1", `{"priority":256}`, jsonType, 400},
		{"PATCH", "/admin/members/nobody", `{"zone":"z"}`, jsonType, 404},
		{"DELETE", "/admin/members/nobody", ``, "", 404},
		{"POST", "/admin/snapshot/restore", "garbage", "application/octet-stream", 400},
		{"POST", "/admin/snapshot/restore", "garbage", jsonType, 415},
	} {
		var headers []string
		if tc.media != "" {
			headers = []string{"Content-Type", tc.media}
		}
		code := 4400
		if tc.status == 404 {
			code = 4404
		}
		c.ask(n, tc.method, tc.path, tc.body, headers...).is(tc.status, code)
	}
}

func contractForwarding(c *contract, lead, follower *Node) {
	path := "/v1/kv/a%2Fb//c"
	c.ask(follower, "PUT", path, "x").is(200)
	if h := c.ask(follower, "PUT", path, "x").is(200); h.header.Get("X-Northstar-Leader") != lead.HTTP {
		c.t.Errorf("a forwarded answer names leader %q, it is %q", h.header.Get("X-Northstar-Leader"), lead.HTTP)
	}
	// A follower asks the leader for the commit index alone, and answers reads of keys itself.
	if h := c.ask(follower, "GET", path, "").is(200); h.header.Get("X-Northstar-Leader") != "" {
		c.t.Error("a read of a key was forwarded")
	}
	if h := c.ask(lead, "GET", path, "").is(200); h.header.Get("X-Northstar-Leader") != "" {
		c.t.Error("an answer that was not forwarded says that it was")
	}
	want := "http://" + lead.HTTP + path + "?redirect=true&timeout_ms=100"
	if h := c.ask(follower, "PUT", path+"?redirect=true&timeout_ms=100",
		"x").is(307); h.header.Get("Location") != want {
		c.t.Errorf("redirected to %s, want %s", h.header.Get("Location"), want)
	}
	c.ask(lead, "GET", path+"?redirect", "").is(200)
	for _, n := range []*Node{lead, follower} {
		h := c.ask(n, http.MethodGet, "/admin/snapshot", "").is(200)
		if sum := h.header.Get("X-Northstar-Checksum"); !strings.HasPrefix(sum, "sha256:") {
			c.t.Errorf("backup from %s: checksum %q", n.ID, sum)
		}
	}
	// A request that another node has forwarded is not forwarded again.
	c.ask(follower, "PUT", path, "x", "X-Northstar-Forwarded-By", lead.ID).is(503, 4002)
}
