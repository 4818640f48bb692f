package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chartutil"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
)

// TestPoliciesOfTheProxies: the pods that lead to the leader admit the clients of networkPolicy and no others, since
// they pass connections on to the nodes.
func TestPoliciesOfTheProxies(t *testing.T) {
	client := map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"app": "a"}}}
	for name, clients := range map[string][]any{"everyone": {}, "some": {client, client}} {
		all := rendered(t, map[string]any{
			"leaderService": map[string]any{"enabled": true},
			"networkPolicy": map[string]any{"enabled": true, "clients": clients},
		})
		var of *networking.NetworkPolicy
		for _, p := range all.Policies {
			if maps.Equal(p.Spec.PodSelector.MatchLabels, all.Deployment.Spec.Template.Labels) {
				of = p
			}
		}
		if of == nil {
			t.Errorf("%s: no policy selects the proxies: %d policies", name, len(all.Policies))
			continue
		}
		rules := of.Spec.Ingress
		if len(rules) != 1 || len(rules[0].Ports) != 1 || rules[0].Ports[0].Port.StrVal != "http" {
			t.Fatalf("%s: %+v", name, rules)
		}
		if len(rules[0].From) != len(clients) {
			t.Errorf("%s: the proxies admit %+v", name, rules[0].From)
		}
		nodes := all.Policies[all.StatefulSet.Name].Spec.Ingress[1].From
		for _, peer := range rules[0].From {
			if peer.PodSelector.MatchLabels["app"] != "a" || !reflect.DeepEqual(peer, nodes[0]) {
				t.Errorf("%s: the proxies admit %+v, the nodes %+v", name, peer, nodes[0])
			}
		}
	}
	for name, v := range map[string]map[string]any{
		"no proxies":  {},
		"no policies": {"leaderService": map[string]any{"enabled": true}, "networkPolicy": map[string]any{"enabled": false}},
	} {
		if all := rendered(t, v); all.Policies["northstar-leader"] != nil {
			t.Errorf("%s: the proxies have a policy", name)
		}
	}
}

// keyRow is a row of the table of keys: key, flag, variable and default.
var keyRow = regexp.MustCompile("(?m)^\\| `([a-z0-9.-]+)` \\| `--([a-z0-9-]+)` \\| `([A-Z_]+)` \\| (?:`(.*?)`|–) \\|")

// nodeKeys returns the rows of the table of keys, which the tests of the program hold equal to its keys.
func nodeKeys(t *testing.T) [][]string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := keyRow.FindAllStringSubmatch(string(page), -1)
	if len(rows) < 50 {
		t.Fatalf("the table has only %d keys", len(rows))
	}
	return rows
}

// TestStopsAfterTheServices: a pod that is told to stop goes on serving while the Services forget it, and has the time
// for all of its drain after that.
func TestStopsAfterTheServices(t *testing.T) {
	all := rendered(t, map[string]any{"leaderService": map[string]any{"enabled": true}})
	sleep := func(pod core.PodSpec) time.Duration {
		l := pod.Containers[0].Lifecycle
		if l == nil || l.PreStop == nil || l.PreStop.Sleep == nil || l.PreStop.Sleep.Seconds < 3 {
			t.Errorf("%s stops immediately: %+v", pod.Containers[0].Name, l)
			return 0
		}
		return time.Duration(l.PreStop.Sleep.Seconds) * time.Second
	}
	sleep(all.Deployment.Spec.Template.Spec)
	pod := all.StatefulSet.Spec.Template.Spec
	var drain time.Duration
	for _, row := range nodeKeys(t) {
		if row[1] == "drain-timeout" {
			d, err := time.ParseDuration(row[4])
			if err != nil {
				t.Fatal(err)
			}
			drain = d
		}
	}
	need := sleep(pod) + drain
	if got := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; got <= need || drain == 0 {
		t.Errorf("a pod is killed after %v, and may need %v", got, need)
	}
	if _, err := render(t, map[string]any{"terminationGracePeriodSeconds": int(need / time.Second)}); err == nil {
		t.Errorf("%v to stop are taken", need)
	}
}

// TestSettingsAreKeys: settings are all keys of the configuration that the chart does not set. A flag, and the list of
// a pod's file, would silently win over a setting.
func TestSettingsAreKeys(t *testing.T) {
	args, files := "", "\n"
	for _, v := range []map[string]any{
		{"etcd": map[string]any{"enabled": true}},
		{"tls": map[string]any{"mode": "cert-manager"}},
		{"tls": map[string]any{"mode": "none"}},
	} {
		all := rendered(t, v)
		args += strings.Join(all.StatefulSet.Spec.Template.Spec.Containers[0].Args, "=\n") + "=\n"
		for _, text := range all.ConfigMaps[all.StatefulSet.Name].Data {
			files += text + "\n"
		}
	}
	// Nodes refuse these two beside the list of initial nodes.
	set := map[string]bool{"join-token": true, "discover": true}
	var want []string
	for _, row := range nodeKeys(t) {
		key, flag := row[1], row[2]
		set[key] = set[key] || strings.Contains(args, "--"+flag+"=") || strings.Contains(files, "\n"+key+" = ")
		if !set[key] {
			want = append(want, key)
		}
	}
	for _, key := range []string{"id", "cluster-name", "insecure", "auth.tokens", "log.level", "initial-cluster", "join"} {
		if !set[key] {
			t.Errorf("the chart does not set %s", key)
		}
	}
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Settings struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(schema.Properties.Settings.Properties)); !slices.Equal(got, want) {
		t.Errorf("values.schema.json has the settings\n%q, want\n%q", got, want)
	}
}

// TestCABundle: with a bundle, nodes, proxies and Prometheus trust it alone. The ca.crt beside a certificate has one
// authority, and changes before the certificates of the other nodes do.
func TestCABundle(t *testing.T) {
	for _, mode := range []string{"secret", "cert-manager", "csi"} {
		all := rendered(t, map[string]any{
			"tls":           map[string]any{"mode": mode, "caBundle": "both"},
			"leaderService": map[string]any{"enabled": true},
			"monitoring":    map[string]any{"serviceMonitor": true},
		})
		for _, pod := range []core.PodSpec{all.StatefulSet.Spec.Template.Spec, all.Deployment.Spec.Template.Spec} {
			checkMounts(t, pod)
			if got := trusted(pod); !slices.Equal(got, []string{"ca of both"}) {
				t.Errorf("%s: %s has ca.crt from %v", mode, pod.Containers[0].Name, got)
			}
		}
		if args := all.StatefulSet.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args,
			"--tls-ca=/etc/northstar/ca/ca.crt") {
			t.Errorf("%s: the nodes do not trust the bundle: %v", mode, args)
		}
		if c := all.ConfigMaps[all.Deployment.Name].Data["haproxy.cfg"]; !strings.Contains(c, "verify required") {
			t.Errorf("%s: the proxies do not verify nodes:\n%s", mode, c)
		}
		tls := all.Monitor.Spec.Endpoints[0].TLSConfig
		if ca := tls.CA.ConfigMap; ca == nil || ca.Name != "both" || ca.Key != "ca.crt" || tls.InsecureSkipVerify != nil {
			t.Errorf("%s: Prometheus trusts %+v", mode, tls)
		}
	}
	all := rendered(t, map[string]any{"tls": map[string]any{"mode": "cert-manager"}})
	if got := trusted(all.StatefulSet.Spec.Template.Spec); !slices.Equal(got, []string{"tls of northstar-0-tls"}) {
		t.Errorf("without a bundle: ca.crt from %v", got)
	}
}

// trusted returns the sources of ca.crt among a pod's volumes, in which it is named.
func trusted(pod core.PodSpec) (from []string) {
	has := func(items []core.KeyToPath) bool {
		return slices.ContainsFunc(items, func(i core.KeyToPath) bool { return i.Path == "ca.crt" })
	}
	for _, v := range pod.Volumes {
		if c := v.ConfigMap; c != nil && has(c.Items) {
			from = append(from, v.Name+" of "+c.Name)
		}
		if s := v.Secret; s != nil && has(s.Items) {
			from = append(from, v.Name+" of "+s.SecretName)
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.Secret != nil && has(s.Secret.Items) {
				from = append(from, v.Name+" of "+s.Secret.Name)
			}
		}
	}
	return from
}

// TestProxiesReadTheirCAAgain: a proxy that finds no leader for long, such as after a change of the CA, is restarted.
// It has run for more than the ten minutes after which the kubelet restarts it without a delay, also when it comes to
// that again and again.
func TestProxiesReadTheirCAAgain(t *testing.T) {
	all := rendered(t, map[string]any{"leaderService": map[string]any{"enabled": true}})
	c := all.Deployment.Spec.Template.Spec.Containers[0]
	live, ready := c.LivenessProbe, c.ReadinessProbe
	if !reflect.DeepEqual(live.ProbeHandler, ready.ProbeHandler) {
		t.Fatalf("a proxy without a leader is alive by %+v, and ready by %+v", live, ready)
	}
	if after := time.Duration(live.PeriodSeconds*live.FailureThreshold) * time.Second; after <= 10*time.Minute {
		t.Errorf("it is restarted after %v", after)
	}
}

// TestScrapesWithAToken: Prometheus sends the token of monitoring.tokenSecret. Without one, nodes whose metrics are not
// public would refuse it.
func TestScrapesWithAToken(t *testing.T) {
	private := func(public any, mode, secret string) map[string]any {
		return map[string]any{
			"settings":   map[string]any{"auth.public": public},
			"tls":        map[string]any{"mode": mode},
			"monitoring": map[string]any{"serviceMonitor": true, "tokenSecret": secret},
		}
	}
	for _, public := range []any{false, "false"} {
		if _, err := render(t, private(public, "secret", "")); err == nil || !strings.Contains(err.Error(),
			"monitoring.tokenSecret") {
			t.Errorf("auth.public %v without a token: %v", public, err)
		}
	}
	a := rendered(t, private(false, "secret", "prometheus")).Monitor.Spec.Endpoints[0].Authorization
	if a == nil || a.Credentials == nil || a.Credentials.Name != "prometheus" || a.Credentials.Key != "token" {
		t.Errorf("Prometheus authenticates with %+v", a)
	}
	for _, v := range []map[string]any{private(true, "secret", ""), private(false, "none", "")} {
		if a := rendered(t, v).Monitor.Spec.Endpoints[0].Authorization; a != nil {
			t.Errorf("%v: Prometheus authenticates with %+v", v, a)
		}
	}
}

// TestFirstStartHasAMajority: pods that are no majority of the first members never elect. Later there may be fewer.
func TestFirstStartHasAMajority(t *testing.T) {
	for _, tc := range []struct {
		replicas, initial int
		ok                bool
	}{{1, 3, false}, {2, 3, true}, {2, 5, false}, {3, 5, true}, {1, 1, true}, {3, 7, false}, {7, 3, true}} {
		v := map[string]any{"replicas": tc.replicas, "initialReplicas": tc.initial}
		_, err := render(t, v)
		if (err == nil) != tc.ok {
			t.Errorf("%d of %d pods: %v", tc.replicas, tc.initial, err)
		}
		if err != nil && (!strings.Contains(err.Error(), fmt.Sprintf("replicas %d ", tc.replicas)) ||
			!strings.Contains(err.Error(), fmt.Sprintf("initialReplicas %d:", tc.initial))) {
			t.Errorf("%d of %d pods: %v", tc.replicas, tc.initial, err)
		}
		upgrade := chartutil.ReleaseOptions{Name: "northstar", Namespace: "default", IsUpgrade: true, Revision: 2}
		if _, err := renderAs(t, v, upgrade); err != nil {
			t.Errorf("an upgrade to %d pods: %v", tc.replicas, err)
		}
	}
}
