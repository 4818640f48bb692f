// Package tests tests the Helm chart: helm's own lint and templates, the types of the Kubernetes API, and the programs,
// which must accept what the chart gives them.
package tests

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the plain manifest again")

const (
	chartDir = "../northstar"
	manifest = "../../kubernetes/northstar.yaml"
)

// values are the settings that are tested: the defaults, the examples, and every mode.
func values(t *testing.T) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{
		"defaults": {},
		"csi": {
			"tls":        map[string]any{"mode": "csi", "dnsNames": []any{"ns.example.com"}},
			"monitoring": map[string]any{"serviceMonitor": true},
		},
		"leader": {"leaderService": map[string]any{"enabled": true}},
		"leader, no TLS": {
			"leaderService": map[string]any{"enabled": true}, "tls": map[string]any{"mode": "none"},
		},
		"leader, csi": {"leaderService": map[string]any{"enabled": true}, "tls": map[string]any{"mode": "csi"}},
		"leader, bundle": {
			"leaderService": map[string]any{"enabled": true},
			"tls":           map[string]any{"mode": "csi", "caBundle": "northstar-ca"},
		},
		"five":  {"replicas": 5, "tls": map[string]any{"mode": "cert-manager"}},
		"names": {"fullnameOverride": "ns", "clusterDomain": "k8s.example.com", "clusterName": "prod"},
		"everything": {
			"imagePullSecrets": []any{map[string]any{"name": "x"}}, "priorityClassName": "high",
			"nodeSelector":   map[string]any{"disk": "ssd"},
			"tolerations":    []any{map[string]any{"key": "dedicated", "operator": "Exists"}},
			"podLabels":      map[string]any{"team": "a"},
			"podAnnotations": map[string]any{"a": "b"},
			"service":        map[string]any{"type": "LoadBalancer", "annotations": map[string]any{"x": "y"}},
			"persistence":    map[string]any{"storageClass": "fast"},
			"monitoring": map[string]any{
				"serviceMonitor": true, "prometheusRule": true, "labels": map[string]any{"release": "prometheus"},
			},
		},
	}
	examples, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(examples) < 2 {
		t.Fatalf("examples %v, error %v", examples, err)
	}
	for _, path := range examples {
		all[filepath.Base(path)] = readValues(t, path)
	}
	return all
}

func readValues(t *testing.T, path string) map[string]any {
	t.Helper()
	v, err := chartutil.ReadValuesFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// render returns the files that the chart makes of values, by name.
func render(t *testing.T, v map[string]any) (map[string]string, error) {
	t.Helper()
	return renderAs(t, v, chartutil.ReleaseOptions{Name: "northstar", Namespace: "default", IsInstall: true})
}

func renderAs(t *testing.T, v map[string]any, options chartutil.ReleaseOptions) (map[string]string, error) {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	full, err := chartutil.ToRenderValues(c, v, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(c, full)
	for path, text := range files {
		if filepath.Ext(path) != ".yaml" || strings.TrimSpace(text) == "" {
			delete(files, path)
		}
	}
	return files, err
}

func TestLint(t *testing.T) {
	for name, v := range values(t) {
		for _, m := range lint.AllWithKubeVersion(chartDir, v, "default", nil).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// objects are what a rendered chart has, by kind.
type objects struct {
	StatefulSet  *apps.StatefulSet
	Deployment   *apps.Deployment // that leads to the leader
	ConfigMaps   map[string]*core.ConfigMap
	Services     []*core.Service
	Policies     map[string]*networking.NetworkPolicy
	Disruption   *policy.PodDisruptionBudget
	Certificates []*certmanager.Certificate
	Monitor      *monitoring.ServiceMonitor
	Rule         *monitoring.PrometheusRule
}

// parse decodes each document into the type of the API, which must have every key of it.
func parse(t *testing.T, files map[string]string) (all objects) {
	t.Helper()
	all.ConfigMaps = map[string]*core.ConfigMap{}
	all.Policies = map[string]*networking.NetworkPolicy{}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		for doc := range strings.SplitSeq(files[path], "\n---\n") {
			doc = strings.TrimPrefix(doc, "---\n")
			var head struct {
				Kind, APIVersion string
				Metadata         struct{ Name string }
			}
			if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
				t.Fatalf("%s: %v\n%s", path, err, doc)
			}
			if head.Kind == "" && strings.TrimSpace(doc) == "" {
				continue
			}
			var into any
			switch head.APIVersion + " " + head.Kind {
			case "apps/v1 StatefulSet":
				all.StatefulSet = &apps.StatefulSet{}
				into = all.StatefulSet
			case "apps/v1 Deployment":
				all.Deployment = &apps.Deployment{}
				into = all.Deployment
			case "v1 ConfigMap":
				m := &core.ConfigMap{}
				all.ConfigMaps[head.Metadata.Name] = m
				into = m
			case "v1 Service":
				s := &core.Service{}
				all.Services = append(all.Services, s)
				into = s
			case "networking.k8s.io/v1 NetworkPolicy":
				p := &networking.NetworkPolicy{}
				all.Policies[head.Metadata.Name] = p
				into = p
			case "policy/v1 PodDisruptionBudget":
				all.Disruption = &policy.PodDisruptionBudget{}
				into = all.Disruption
			case "cert-manager.io/v1 Certificate":
				c := &certmanager.Certificate{}
				all.Certificates = append(all.Certificates, c)
				into = c
			case "monitoring.coreos.com/v1 ServiceMonitor":
				all.Monitor = &monitoring.ServiceMonitor{}
				into = all.Monitor
			case "monitoring.coreos.com/v1 PrometheusRule":
				all.Rule = &monitoring.PrometheusRule{}
				into = all.Rule
			default:
				t.Fatalf("%s: %q %q is of no known type:\n%s", path, head.APIVersion, head.Kind, doc)
			}
			if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
				t.Fatalf("%s: %v\n%s", path, err, doc)
			}
		}
	}
	return all
}

// rendered renders and parses the chart.
func rendered(t *testing.T, v map[string]any) objects {
	t.Helper()
	files, err := render(t, v)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, files)
}

// TestObjects holds every rendering against the types of the API, and its parts against each other.
func TestObjects(t *testing.T) {
	for name, v := range values(t) {
		t.Run(name, func(t *testing.T) {
			all := rendered(t, v)
			set := all.StatefulSet
			pod := set.Spec.Template
			for key, value := range set.Spec.Selector.MatchLabels {
				if pod.Labels[key] != value {
					t.Errorf("the pods do not have the label %s=%s of the selector", key, value)
				}
			}
			ports := map[string]bool{}
			for _, p := range pod.Spec.Containers[0].Ports {
				ports[p.Name] = true
			}
			headless := 0
			for _, s := range all.Services {
				if d := all.Deployment; d != nil && s.Name == d.Name {
					continue // TestLeaderService
				}
				if !maps.Equal(s.Spec.Selector, set.Spec.Selector.MatchLabels) {
					t.Errorf("service %s selects %v", s.Name, s.Spec.Selector)
				}
				for _, p := range s.Spec.Ports {
					if !ports[p.TargetPort.StrVal] {
						t.Errorf("service %s: no port %q", s.Name, p.TargetPort.StrVal)
					}
				}
				if s.Name == set.Spec.ServiceName && s.Spec.ClusterIP == core.ClusterIPNone && s.Spec.PublishNotReadyAddresses {
					headless++
				} else if s.Spec.PublishNotReadyAddresses {
					t.Errorf("service %s has nodes that are not ready", s.Name)
				}
			}
			if headless != 1 || len(all.Services) < 2 {
				t.Errorf("%d services, %d of them headless as the StatefulSet wants it", len(all.Services), headless)
			}
			checkSecurity(t, pod.Spec)
			checkMounts(t, pod.Spec)
		})
	}
}

// checkSecurity holds a pod against the "restricted" Pod Security Standard.
func checkSecurity(t *testing.T, pod core.PodSpec) {
	t.Helper()
	c := pod.Containers[0].SecurityContext
	switch {
	case !*pod.SecurityContext.RunAsNonRoot, *pod.SecurityContext.RunAsUser == 0,
		pod.SecurityContext.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault,
		*c.AllowPrivilegeEscalation, !*c.ReadOnlyRootFilesystem,
		!slices.Equal(c.Capabilities.Drop, []core.Capability{"ALL"}), len(c.Capabilities.Add) > 0:
		t.Errorf("the pod is not restricted: %+v, %+v", pod.SecurityContext, c)
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Error("the pod has a token of the API")
	}
}

// checkMounts checks that each mount has a volume, and that each directory that the arguments name is mounted.
func checkMounts(t *testing.T, pod core.PodSpec) {
	t.Helper()
	volumes := map[string]bool{"data": true} // from volumeClaimTemplates
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	var mounts []string
	for _, m := range pod.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("no volume is called %s", m.Name)
		}
		mounts = append(mounts, m.MountPath)
	}
	for _, arg := range pod.Containers[0].Args {
		_, path, ok := strings.Cut(arg, "=/")
		if ok && !slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix("/"+path, m+"/") }) {
			t.Errorf("%s is in no volume of %v", arg, mounts)
		}
	}
}

// TestLeaderService: the Service leads to proxies, which are none of the nodes, and haproxy reads their configuration.
func TestLeaderService(t *testing.T) {
	for name, v := range values(t) {
		all := rendered(t, v)
		d := all.Deployment
		if d == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			pod := d.Spec.Template
			if !maps.Equal(d.Spec.Selector.MatchLabels, pod.Labels) {
				t.Errorf("the pods have the labels %v", pod.Labels)
			}
			for _, s := range all.Services {
				if toProxy := s.Name == d.Name; maps.Equal(s.Spec.Selector, pod.Labels) != toProxy {
					t.Errorf("service %s selects %v", s.Name, s.Spec.Selector)
				}
			}
			checkSecurity(t, pod.Spec)
			checkMounts(t, pod.Spec)
			text := all.ConfigMaps[d.Name].Data["haproxy.cfg"]
			checkHAProxy(t, text)
			// Pods start again with every change of the configuration.
			hash := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.TrimSuffix(text, "\n"))))
			if got := pod.Annotations["northstar/config"]; got != hash {
				t.Errorf("northstar/config is %s, the hash of haproxy.cfg is %s", got, hash)
			}
		})
	}
}

// checkHAProxy lets haproxy read a configuration, where it is installed.
func checkHAProxy(t *testing.T, text string) {
	t.Helper()
	if !strings.HasSuffix(text, "\n") {
		t.Error("haproxy refuses a file whose last line has no end")
	}
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("haproxy is not on this machine")
	}
	dir := t.TempDir()
	ca := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
		"-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test")
	ca.Dir = dir
	if out, err := ca.CombinedOutput(); err != nil {
		t.Skipf("openssl: %v\n%s", err, out)
	}
	file := filepath.Join(dir, "haproxy.cfg")
	text = strings.ReplaceAll(text, "/etc/northstar/", dir+"/")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(bin, "-c", "-f", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, text)
	}
}

// TestAntiAffinity: two nodes share a machine never, or only when there is no other.
func TestAntiAffinity(t *testing.T) {
	for kind, hard := range map[string]bool{"hard": true, "soft": false} {
		a := rendered(t, map[string]any{"antiAffinity": kind}).StatefulSet.Spec.Template.Spec.Affinity.PodAntiAffinity
		if got := len(a.RequiredDuringSchedulingIgnoredDuringExecution) == 1; got != hard {
			t.Errorf("%s: %+v", kind, a)
		}
		if got := len(a.PreferredDuringSchedulingIgnoredDuringExecution) == 1; got == hard {
			t.Errorf("%s: %+v", kind, a)
		}
	}
}

// TestCSINames: the driver of cert-manager asks for the names by which clients reach a node.
func TestCSINames(t *testing.T) {
	all := rendered(t, values(t)["csi"])
	for _, v := range all.StatefulSet.Spec.Template.Spec.Volumes {
		if v.CSI == nil {
			continue
		}
		names := strings.Split(v.CSI.VolumeAttributes["csi.cert-manager.io/dns-names"], ",")
		for _, want := range []string{
			"${POD_NAME}.northstar-peers.default.svc.cluster.local", "northstar.default.svc", "northstar-leader.default.svc",
			"ns.example.com", "localhost",
		} {
			if !slices.Contains(names, want) {
				t.Errorf("no name %s: %v", want, names)
			}
		}
		return
	}
	t.Error("no volume of the driver")
}

// TestSchema: mistakes in values are refused, each with its place.
func TestSchema(t *testing.T) {
	for want, v := range map[string]map[string]any{
		"replicas":    {"replicas": 8},
		"initial":     {"initialReplicas": 2},
		"nothing":     {"nothing": 1},
		"mode":        {"tls": map[string]any{"mode": "maybe"}},
		"dnsnames":    {"tls": map[string]any{"dnsNames": []any{"no name"}}},
		"persistence": {"persistence": map[string]any{"size": 10}},
		"state-byte":  {"settings": map[string]any{"limits.state-byte": 1}},
		"log.format":  {"settings": map[string]any{"log.format": "text"}},
		"grace":       {"terminationGracePeriodSeconds": 10},
	} {
		if _, err := render(t, v); err == nil {
			t.Errorf("%v is taken", v)
		} else if !strings.Contains(strings.ToLower(err.Error()), want) {
			t.Errorf("%v: %v", v, err)
		}
	}
}

// TestAlertsAreThoseOfPrometheus: the chart has a copy, since it is packed by itself.
func TestAlertsAreThoseOfPrometheus(t *testing.T) {
	a, err := os.ReadFile("../../prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(chartDir, "files/alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Error("files/alerts.yml is not deploy/prometheus/alerts.yml: make manifests copies it")
	}
	rule := rendered(t, map[string]any{"monitoring": map[string]any{"prometheusRule": true}}).Rule
	if n := strings.Count(string(a), "- alert:"); len(rule.Spec.Groups) != 1 || len(rule.Spec.Groups[0].Rules) != n || n == 0 {
		t.Errorf("%d groups, %d alerts in the file", len(rule.Spec.Groups), n)
	}
}

// TestPlainManifest: deploy/kubernetes is the chart with its default values.
func TestPlainManifest(t *testing.T) {
	files, err := render(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, `# A cluster of three, rendered from deploy/helm/northstar by make manifests, for
# those who do not use Helm. Change before use: the namespace (it is in every
# address) and the image. It needs two secrets, made with northstarctl
# (docs/install.md):
#   northstar-tls     ca.crt and, for each node, northstar-0.crt, northstar-0.key, …
#                     each made with --node northstar-0 and
#                     --host northstar-0.northstar-peers.default.svc.cluster.local
#                     --host northstar.default.svc
#                     --host northstar-leader.default.svc, for the chart's leaderService
#   northstar-tokens  tokens.toml
# Chart: %s
`, chartHash(t))
	for _, path := range slices.Sorted(maps.Keys(files)) {
		text.WriteString("---\n" + strings.Trim(files[path], "\n") + "\n")
	}
	lines := strings.Split(text.String(), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return strings.Contains(l, "managed-by: Helm") || strings.Contains(l, "helm.sh/chart:")
	})
	want := strings.Join(lines, "\n")
	if *update {
		if err := os.WriteFile(manifest, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("deploy/kubernetes/northstar.yaml is not what the chart makes: make manifests")
	}
}
