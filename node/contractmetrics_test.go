package node

import (
	"encoding/json"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"northstar/cluster"
)

// contractMetrics are the metrics that users may rely on, each with its labels.
const contractMetrics = `
election_count{trigger,result} election_duration_ms election_success_rate leaderless_duration_ms
failover_count{trigger} leader_transfer_count{result} leader_transfer_duration_ms split_brain_detected
current_leader_id{leader_id} current_term is_leader leader_tenure_seconds votes_total{granted,reason}
peer_healthy{peer} peer_last_contact_ms{peer} peer_lag_entries{peer} heartbeat_age_ms disk_fsync_ms disk_stalled
commit_index applied_index apply_duration_ms proposals_total{result} role_held{role} role_token{role}
role_elections_total{role} sessions http_request_duration_ms{route,method,status} http_in_flight
rpc_rejected_total{kind,reason} auth_failures_total
build_info{version,commit,go_version} certificate_expiry_timestamp_seconds{kind} keys state_bytes state_bytes_limit
watchers watch_lag_revisions failover_gap_seconds outcome_unknown_total connections{listener}
needless_elections_total{cause} silence_threshold_seconds
`

// runningMetrics returns the metrics that the nodes of a running cluster show, with the labels of each. The cluster has
// certificates, a role and a rejected connection, so that no metric is without a series.
func runningMetrics(t *testing.T) map[string][]string {
	t.Helper()
	ca := newAuthority(t, "ca")
	nodes := newCluster(t, 3, func(i int, c *Config) {
		calm(i, c)
		c.TLS = ca.issue(string(c.ID), "northstar://northstar/node/"+string(c.ID), nil)
		c.EtcdAddr = "127.0.0.1:0"
	})
	lead := startAll(t, nodes)
	client, url := ca.httpsClient(nil), "https://"+lead.httpAddr
	var session struct {
		ID string `json:"session_id"`
	}
	eventually(t, "a session is made", func() bool { // leadership may move on a busy machine
		_, body, err := request(client, "POST", url+"/v1/sessions", `{"name":"a"}`)
		return err == nil && json.Unmarshal([]byte(body), &session) == nil && session.ID != ""
	})
	want(t, client, "POST", url+"/v1/roles/r/campaign", `{"session_id":"`+session.ID+`","required":true}`, 200, "token")
	conn, err := net.Dial("tcp", lead.raftAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(strings.Repeat("garbage", 1000))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rejected connection is counted, and every peer is known", func() bool {
		shown := gather(t, lead)
		return shown["northstar_rpc_rejected_total"] != nil &&
			len(shown["northstar_peer_last_contact_ms"].GetMetric()) == 2 &&
			!slices.ContainsFunc(lead.Consensus().Peers(), func(p cluster.PeerStatus) bool { return !p.Healthy })
	})
	metrics := map[string][]string{}
	for _, n := range nodes {
		for name, f := range gather(t, n) {
			metrics[name] = []string{}
			for _, l := range f.GetMetric()[0].GetLabel() {
				metrics[name] = append(metrics[name], l.GetName())
			}
		}
	}
	return metrics
}

func gather(t *testing.T, n *testNode) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := n.metrics.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return byName
}

// A running cluster shows every metric that users may rely on, and those that the Grafana dashboard and the alerts ask
// for.
func TestMetricsOfARunningCluster(t *testing.T) {
	t.Parallel()
	shown := runningMetrics(t)
	for _, entry := range strings.Fields(contractMetrics) {
		name, labels, _ := strings.Cut(strings.TrimSuffix(entry, "}"), "{")
		want := slices.DeleteFunc(strings.Split(labels, ","), func(l string) bool { return l == "" })
		slices.Sort(want)
		got, ok := shown["northstar_"+name]
		if !ok || !slices.Equal(got, want) {
			t.Errorf("northstar_%s: shown %v, with labels %v, want %v", name, ok, got, want)
		}
	}
	for _, file := range []string{"../deploy/grafana/northstar.json", "../deploy/prometheus/alerts.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		asked := regexp.MustCompile(`\b(northstar|process|go)_[a-z0-9_]+`).FindAllString(string(text), -1)
		if len(asked) < 10 {
			t.Errorf("%s asks for %v", file, asked)
		}
		for _, name := range asked {
			if _, ok := shown[name]; !ok && !shownHistogram(shown, name) && !onlyAfterEvents[name] {
				t.Errorf("%s asks for %s, which a running cluster does not show", file, name)
			}
		}
	}
}

func shownHistogram(shown map[string][]string, name string) bool {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && shown[base] != nil {
			return true
		}
	}
	return false
}

// onlyAfterEvents are metrics that a healthy cluster does not show.
var onlyAfterEvents = map[string]bool{"northstar_snapshot_install_repeated_total": true}
