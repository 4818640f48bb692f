package tests

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// variable returns a variable of a container. No variable is there twice: the last would win.
func variable(t *testing.T, c core.Container, name string) (found *core.EnvVar) {
	t.Helper()
	for i := range c.Env {
		if c.Env[i].Name != name {
			continue
		}
		if found != nil {
			t.Errorf("%s is set twice", name)
		}
		found = &c.Env[i]
	}
	return found
}

// TestExtras: values of secrets become variables, and files of other volumes are in the node's container.
func TestExtras(t *testing.T) {
	all := rendered(t, map[string]any{
		"extraEnv": []any{map[string]any{
			"name": "NORTHSTAR_FAILOVER_EXTERNAL_LOCK",
			"valueFrom": map[string]any{
				"secretKeyRef": map[string]any{"name": "lock", "key": "url"},
			},
		}},
		"extraEnvFrom": []any{map[string]any{"secretRef": map[string]any{"name": "otel"}}},
		"extraVolumes": []any{map[string]any{
			"name": "etcd-tls", "secret": map[string]any{"secretName": "etcd"},
		}},
		"extraVolumeMounts": []any{map[string]any{
			"name": "etcd-tls", "mountPath": "/etc/northstar/etcd", "readOnly": true,
		}},
	})
	pod := all.StatefulSet.Spec.Template.Spec
	checkMounts(t, pod)
	c := pod.Containers[0]
	if v := variable(t, c, "NORTHSTAR_FAILOVER_EXTERNAL_LOCK"); v == nil || v.ValueFrom.SecretKeyRef.Name != "lock" {
		t.Errorf("the variable of a secret is %+v", v)
	}
	if len(c.EnvFrom) != 1 || c.EnvFrom[0].SecretRef.Name != "otel" {
		t.Errorf("envFrom is %+v", c.EnvFrom)
	}
	if v := pod.Volumes[len(pod.Volumes)-1]; v.Secret == nil || v.Secret.SecretName != "etcd" {
		t.Errorf("the last volume is %+v", v)
	}
	if m := c.VolumeMounts[len(c.VolumeMounts)-1]; m.MountPath != "/etc/northstar/etcd" || !m.ReadOnly {
		t.Errorf("the last mount is %+v", m)
	}
	for key, v := range map[string]any{
		"extraEnv":          []any{map[string]any{"value": "x"}},
		"extraEnvFrom":      []any{"otel"},
		"extraVolumes":      map[string]any{"name": "x"},
		"extraVolumeMounts": []any{map[string]any{"name": "x"}},
	} {
		if _, err := render(t, map[string]any{key: v}); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s %v: %v", key, v, err)
		}
	}
}

// TestMemoryFitsTheState: a pod's memory limit is at least three times the limit of the state and 512 MiB, as
// docs/sizing.md says, and Go collects harder before the kernel kills.
func TestMemoryFitsTheState(t *testing.T) {
	for name, v := range values(t) {
		c := rendered(t, v).StatefulSet.Spec.Template.Spec.Containers[0]
		state := variable(t, c, "NORTHSTAR_LIMITS_STATE_BYTES")
		if state == nil {
			t.Errorf("%s: limits.state-bytes is the node's default", name)
			continue
		}
		size := resource.MustParse(strings.TrimSuffix(state.Value, "B"))
		limit := c.Resources.Limits.Memory().Value()
		if need := 3*size.Value() + 512<<20; limit < need {
			t.Errorf("%s: %d bytes of memory, %d are needed", name, limit, need)
		}
		if v := variable(t, c, "GOMEMLIMIT"); v == nil || v.Value != strconv.FormatInt(limit*9/10, 10) {
			t.Errorf("%s: GOMEMLIMIT is %+v for %d bytes", name, v, limit)
		}
	}
}

func TestGoMemory(t *testing.T) {
	for _, tc := range []struct {
		memory any
		want   string
	}{
		{"3Gi", "2899102924"},
		{"1.5Gi", "1449551462"},
		{"512Mi", "483183820"},
		{"2G", "1800000000"},
		{3000000000, "2700000000"},
		{"3000000000", "2700000000"},
		{nil, ""},
	} {
		v := map[string]any{"resources": map[string]any{"limits": map[string]any{"memory": tc.memory}}}
		c := rendered(t, v).StatefulSet.Spec.Template.Spec.Containers[0]
		if got := variable(t, c, "GOMEMLIMIT"); (got == nil) != (tc.want == "") || got != nil && got.Value != tc.want {
			t.Errorf("memory %v: GOMEMLIMIT is %+v, want %q", tc.memory, got, tc.want)
		}
	}
	own := map[string]any{"extraEnv": []any{map[string]any{"name": "GOMEMLIMIT", "value": "1GiB"}}}
	c := rendered(t, own).StatefulSet.Spec.Template.Spec.Containers[0]
	if v := variable(t, c, "GOMEMLIMIT"); v == nil || v.Value != "1GiB" {
		t.Errorf("GOMEMLIMIT of extraEnv is %+v", v)
	}
	wrong := map[string]any{"resources": map[string]any{"limits": map[string]any{"memory": "3GiB"}}}
	if _, err := render(t, wrong); err == nil || !strings.Contains(err.Error(), `(got "3GiB")`) {
		t.Errorf("memory 3GiB: %v", err)
	}
}

// TestMissingTargets: the alert that Prometheus has no target is about this cluster's job, which the ServiceMonitor
// sets.
func TestMissingTargets(t *testing.T) {
	for scraped, want := range map[bool]string{
		true: `absent(up{job="northstar-default-northstar"})`, false: `absent(up{job=~"northstar.*"})`,
	} {
		all := rendered(t, map[string]any{"monitoring": map[string]any{"prometheusRule": true, "serviceMonitor": scraped}})
		found := 0
		for _, r := range all.Rule.Spec.Groups[0].Rules {
			if expr := strings.TrimSpace(r.Expr.StrVal); strings.HasPrefix(expr, "absent(") && expr == want {
				found++
			}
		}
		if found != 1 {
			t.Errorf("a ServiceMonitor %v: %d rules %s", scraped, found, want)
		}
		if scraped && !strings.Contains(want, `"`+*all.Monitor.Spec.Endpoints[0].RelabelConfigs[0].Replacement+`"`) {
			t.Errorf("the job is %v", all.Monitor.Spec.Endpoints[0].RelabelConfigs)
		}
	}
}

// maxconn is a limit of connections of haproxy.
var maxconn = regexp.MustCompile(`(?m)^  maxconn (\d+)$`)

// TestProxiesFitTheLimitOfAnAddress: the connections of clients that a proxy passes on, and its checks, are not more
// than a node takes from one address. So many clients leave places for the probes of the kubelet.
func TestProxiesFitTheLimitOfAnAddress(t *testing.T) {
	standard := ""
	for _, row := range nodeKeys(t) {
		if row[1] == "limits.connections-per-address" {
			standard = row[4]
		}
	}
	for _, setting := range []any{nil, 4000, "4000", 16} {
		v := map[string]any{"leaderService": map[string]any{"enabled": true}}
		want := standard
		if setting != nil {
			v["settings"] = map[string]any{"limits.connections-per-address": setting}
			want = fmt.Sprint(setting)
		}
		limit, err := strconv.Atoi(want)
		if err != nil {
			t.Fatal(err)
		}
		all := rendered(t, v)
		found := maxconn.FindAllStringSubmatch(all.ConfigMaps[all.Deployment.Name].Data["haproxy.cfg"], -1)
		if len(found) != 2 {
			t.Fatalf("maxconn is set %d times", len(found))
		}
		process, _ := strconv.Atoi(found[0][1])
		clients, _ := strconv.Atoi(found[1][1])
		if clients > limit-8 || clients < limit/2 || process <= clients {
			t.Errorf("%v: %d connections of clients, %d in all, a node takes %d", setting, clients, process, limit)
		}
	}
}

// TestNodesListenOnBothFamilies: the nodes take IPv4 and IPv6, so that a cluster with IPv6 alone works.
func TestNodesListenOnBothFamilies(t *testing.T) {
	all := rendered(t, map[string]any{"etcd": map[string]any{"enabled": true}})
	listeners := 0
	for _, arg := range all.StatefulSet.Spec.Template.Spec.Containers[0].Args {
		key, address, _ := strings.Cut(arg, "=")
		if !strings.HasSuffix(key, "-addr") {
			continue
		}
		listeners++
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0")) // as a node does
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		checkDials(t, l.Addr().(*net.TCPAddr).Port, "127.0.0.1", "::1")
	}
	if listeners != 3 {
		t.Errorf("the nodes have %d listeners", listeners)
	}
}

// checkDials dials a port of this machine by some of its addresses, where it has them.
func checkDials(t *testing.T, port int, hosts ...string) {
	t.Helper()
	for _, host := range hosts {
		own, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Logf("this machine has no %s: %v", host, err)
			continue
		}
		own.Close()
		deadline := time.Now().Add(20 * time.Second)
		for {
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(port)), time.Second)
			if err == nil {
				conn.Close()
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: %v", host, err)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// TestProxiesListenOnTheirPod: haproxy listens on the pod's address, also an IPv6 one, and on loopback.
func TestProxiesListenOnTheirPod(t *testing.T) {
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("haproxy is not on this machine")
	}
	for _, host := range []string{"::1", "127.0.0.2"} {
		port, health := freePort(t, host), freePort(t, host)
		all := rendered(t, map[string]any{
			"leaderService": map[string]any{"enabled": true}, "tls": map[string]any{"mode": "none"},
			"ports": map[string]any{"http": port},
		})
		env := all.Deployment.Spec.Template.Spec.Containers[0].Env
		if len(env) != 1 || env[0].Name != "POD_IP" || env[0].ValueFrom.FieldRef.FieldPath != "status.podIP" {
			t.Fatalf("the proxies have the variables %+v", env)
		}
		text := all.ConfigMaps[all.Deployment.Name].Data["haproxy.cfg"]
		text = strings.ReplaceAll(text, "8404", strconv.Itoa(health))
		file := filepath.Join(t.TempDir(), "haproxy.cfg")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), bin, "-db", "-f", file)
		cmd.Env = append(os.Environ(), "POD_IP="+host)
		cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Wait() })
		checkDials(t, port, host, "127.0.0.1")
		checkDials(t, health, host)
	}
}

// freePort returns a port that is free on an address of this machine.
func freePort(t *testing.T, host string) int {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skipf("this machine has no %s: %v", host, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
