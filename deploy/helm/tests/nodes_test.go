package tests

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
)

// chartHash returns a hash of the chart's files, which go test ./docs of the main module compares without Helm.
func chartHash(t *testing.T) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(chartDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(chartDir, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", filepath.ToSlash(rel), len(text), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// TestNodesAcceptTheChart lets northstar-node check what a pod gets: its arguments, its environment, its file of the
// ConfigMap, and a certificate with the names of the cert-manager Certificate. Pods 0 and 2 form the cluster,
// pod 4 joins it.
func TestNodesAcceptTheChart(t *testing.T) {
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin+string(filepath.Separator), "./cmd/...")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, v := range map[string]map[string]any{
		"secret": {"replicas": 5, "etcd": map[string]any{"enabled": true}},
		"cert-manager": {
			"replicas": 5, "clusterName": "prod",
			"tls": map[string]any{"mode": "cert-manager", "dnsNames": []any{"ns.example.com"}},
			"settings": map[string]any{
				"limits.state-bytes": 268435456.0, "failover.fast": false, // a number of a values file is a float
			},
		},
		"csi":    {"replicas": 5, "tls": map[string]any{"mode": "csi"}},
		"bundle": {"replicas": 5, "tls": map[string]any{"mode": "csi", "caBundle": "northstar-ca"}},
		"none":   readValues(t, "../examples/one-machine.yaml"),
	} {
		t.Run(name, func(t *testing.T) {
			all := rendered(t, v)
			for _, i := range []int{0, 2, 4} {
				p := pod{dir: t.TempDir(), bin: bin, name: fmt.Sprintf("northstar-%d", i)}
				p.configure(t, all)
				p.certify(t, all, i)
				p.check(t, all.StatefulSet.Spec.Template.Spec.Containers[0])
			}
		})
	}
}

// pod is a directory with what a pod has mounted.
type pod struct{ dir, bin, name string }

func (p pod) run(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %s %s: %v\n%s", p.name, program, strings.Join(args, " "), err, out)
	}
}

func (p pod) configure(t *testing.T, all objects) {
	t.Helper()
	for _, dir := range []string{
		"etc/northstar/config", "etc/northstar/tls", "etc/northstar/ca", "etc/northstar/tokens", "var/lib/northstar",
	} {
		if err := os.MkdirAll(filepath.Join(p.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range all.ConfigMaps[all.StatefulSet.Name].Data {
		if err := os.WriteFile(filepath.Join(p.dir, "etc/northstar/config", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tokens := "[[token]]\nname = \"a\"\nrole = \"operator\"\nhash = \"sha256:" + strings.Repeat("0a", 32) + "\"\n"
	if err := os.WriteFile(filepath.Join(p.dir, "etc/northstar/tokens/tokens.toml"), []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
}

// certify makes the certificate of a pod, and checks that the chart's Certificate asks for the same names.
func (p pod) certify(t *testing.T, all objects, i int) {
	t.Helper()
	cluster := ""
	for _, arg := range all.StatefulSet.Spec.Template.Spec.Containers[0].Args {
		if name, ok := strings.CutPrefix(arg, "--cluster-name="); ok {
			cluster = name
		}
	}
	host := p.name + ".northstar-peers.default.svc.cluster.local"
	tls := filepath.Join(p.dir, "etc/northstar/tls")
	p.run(t, nil, "northstarctl", "tls", "ca", "--out", tls)
	if err := os.Link(filepath.Join(tls, "ca.crt"), filepath.Join(p.dir, "etc/northstar/ca/ca.crt")); err != nil {
		t.Fatal(err)
	}
	p.run(t, nil, "northstarctl", "tls", "cert", "--ca", tls, "--out", tls, "--node", p.name, "--cluster-name", cluster,
		"--host", host)
	for _, ext := range []string{"crt", "key"} { // as the driver of cert-manager names them
		data, err := os.ReadFile(filepath.Join(tls, p.name+"."+ext))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tls, "tls."+ext), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if len(all.Certificates) == 0 {
		return
	}
	c := all.Certificates[i].Spec
	if !slices.Equal(c.URIs, []string{"northstar://" + cluster + "/node/" + p.name}) {
		t.Errorf("the Certificate has the URIs %v", c.URIs)
	}
	for _, name := range []string{
		host, "northstar", "northstar.default.svc", "northstar.default.svc.cluster.local", "ns.example.com",
	} {
		if !slices.Contains(c.DNSNames, name) {
			t.Errorf("the Certificate has not the name %s", name)
		}
	}
	secrets := all.StatefulSet.Spec.Template.Spec.Volumes[1].Projected.Sources
	if got := secrets[i].Secret.Name; got != c.SecretName || len(secrets) != len(all.Certificates) {
		t.Errorf("%s: secret %s is mounted, the Certificate writes %s", p.name, got, c.SecretName)
	}
}

// check runs check-config with the container's command line, with paths below the pod's directory.
func (p pod) check(t *testing.T, c core.Container) {
	t.Helper()
	args := []string{"check-config"}
	for _, arg := range c.Args {
		arg = strings.ReplaceAll(arg, "$(POD)", p.name)
		args = append(args, strings.Replace(arg, "=/", "="+p.dir+"/", 1))
	}
	var env []string
	for _, e := range c.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	p.run(t, env, "northstar-node", args...)
}
