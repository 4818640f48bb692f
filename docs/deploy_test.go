package docs_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	unitFile = "deploy/systemd/northstar.service"
	chartDir = "deploy/helm/northstar"
	manifest = "deploy/kubernetes/northstar.yaml"
)

// maxExposure is the exposure level of the unit, from 0 to 10, that systemd-analyze may find.
const maxExposure = 2.5

var exposure = regexp.MustCompile(`Overall exposure level for northstar.service: ([0-9.]+)`)

// TestUnitIsHardened asks systemd what the unit may do.
func TestUnitIsHardened(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not on this machine")
	}
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager",
		filepath.Join(root, unitFile)).CombinedOutput()
	m := exposure.FindSubmatch(out)
	if m == nil {
		t.Skipf("this systemd does not analyze files: %v\n%.500s", err, out)
	}
	level, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil || level > maxExposure {
		t.Errorf("exposure level %v, at most %v: error %v\n%s", level, maxExposure, err, out)
	}
}

// TestHAProxyReadsItsExample lets haproxy check the example, where it is installed.
func TestHAProxyReadsItsExample(t *testing.T) {
	t.Parallel()
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("haproxy is not on this machine")
	}
	file := filepath.Join(root, "deploy/loadbalancers/haproxy.cfg")
	if out, err := exec.Command(bin, "-c", "-f", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// addressConnections is the row of the table of keys with how many connections a node takes from one address.
var addressConnections = regexp.MustCompile("`limits.connections-per-address` \\|.*?\\| `(\\d+)` \\|")

// serverBound is the bound of a backend's connections to each server.
var serverBound = regexp.MustCompile(`(?m)^  default-server .* maxconn (\d+)$`)

// TestProxiesFitTheLimitOfAnAddress checks that the examples of proxies, which a node sees as one address, open no more
// connections to a node than it takes, with their checks.
func TestProxiesFitTheLimitOfAnAddress(t *testing.T) {
	t.Parallel()
	row := addressConnections.FindStringSubmatch(read(t, "docs/configuration.md"))
	if row == nil {
		t.Fatal("the table has no limits.connections-per-address")
	}
	limit := number(t, row[1])
	haproxy, sum := read(t, "deploy/loadbalancers/haproxy.cfg"), 0
	bounds := serverBound.FindAllStringSubmatch(haproxy, -1)
	for _, m := range bounds {
		sum += number(t, m[1])
	}
	if backends := strings.Count(haproxy, "\nbackend "); len(bounds) != backends || sum > limit-16 || sum == 0 {
		t.Errorf("haproxy: %d of %d backends have a bound, %d connections in all", len(bounds), backends, sum)
	}
	sum = 0
	for _, c := range envoyClusters(t, read(t, "deploy/loadbalancers/envoy.yaml")) {
		if len(c.Breakers.Thresholds) != 1 || c.TLS.Name != "" {
			t.Fatalf("the cluster %s has the thresholds %v, TLS %q", c.Name, c.Breakers.Thresholds, c.TLS.Name)
		}
		bound := c.Breakers.Thresholds[0]
		sum += bound["max_connections"]
		if bound["max_retries"] < bound["max_pending_requests"] {
			t.Errorf("the cluster %s repeats only %d of %d requests", c.Name, bound["max_retries"],
				bound["max_pending_requests"])
		}
	}
	if sum > limit-16 || sum == 0 {
		t.Errorf("envoy: %d connections", sum)
	}
}

// envoyCluster is a part of a cluster in Envoy's configuration.
type envoyCluster struct {
	Name     string
	Breakers struct{ Thresholds []map[string]int } `yaml:"circuit_breakers"`
	TLS      struct {
		Name   string
		Config struct {
			Type   string `yaml:"@type"`
			Common struct {
				Params     map[string]string `yaml:"tls_params"`
				Validation map[string]any    `yaml:"validation_context"`
			} `yaml:"common_tls_context"`
		} `yaml:"typed_config"`
	} `yaml:"transport_socket"`
}

func envoyClusters(t *testing.T, text string) []envoyCluster {
	t.Helper()
	var config struct {
		Static struct{ Clusters []envoyCluster } `yaml:"static_resources"`
	}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Static.Clusters) != 2 {
		t.Fatalf("there are %d clusters", len(config.Static.Clusters))
	}
	return config.Static.Clusters
}

// envoyTLS are the lines of the example that TLS needs.
var envoyTLS = regexp.MustCompile(`(?m)^      # (transport_socket:|  .*)$`)

// TestEnvoyWithTLS checks that the commented lines of the example, without their marks, are TLS 1.3 in each cluster.
func TestEnvoyWithTLS(t *testing.T) {
	t.Parallel()
	text := envoyTLS.ReplaceAllString(read(t, "deploy/loadbalancers/envoy.yaml"), "      $1")
	for _, c := range envoyClusters(t, text) {
		tls := c.TLS.Config
		if !strings.HasSuffix(tls.Type, ".v3.UpstreamTlsContext") || len(tls.Common.Validation) != 2 ||
			tls.Common.Params["tls_maximum_protocol_version"] != "TLSv1_3" {
			t.Errorf("the cluster %s has the TLS settings %+v", c.Name, c.TLS)
		}
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestHAProxyRepeatsNoCallOfAdmin checks that the example repeats what a node has refused with 503, but no call of
// /admin: an election may have been held.
func TestHAProxyRepeatsNoCallOfAdmin(t *testing.T) {
	t.Parallel()
	var calls sync.Map // number of calls, by path
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health/leader" && r.URL.Path != "/readyz" {
			n, _ := calls.LoadOrStore(r.URL.Path, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(node.Close)
	config := regexp.MustCompile(`10\.0\.0\.\d+:7701`).ReplaceAllString(
		read(t, "deploy/loadbalancers/haproxy.cfg"), node.Listener.Addr().String())
	client := &http.Client{Timeout: time.Minute}
	for i, address := range runHAProxy(t, config, "127.0.0.1:7790", "127.0.0.1:7791") {
		for path, repeated := range map[string]bool{fmt.Sprint("/v1/kv/", i): true, fmt.Sprint("/admin/", i): false} {
			resp, err := client.Get("http://" + address + path) // haproxy does not repeat a body that comes late
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			var n int64
			if count, ok := calls.Load(path); ok {
				n = count.(*atomic.Int64).Load()
			}
			if resp.StatusCode != http.StatusServiceUnavailable || n == 0 || (n > 1) != repeated {
				t.Errorf("%s: %d after %d calls, repeated %v", path, resp.StatusCode, n, repeated)
			}
		}
	}
}

// runHAProxy runs haproxy until the test ends, and returns addresses of this machine that take the place of those to
// which the configuration binds. It inherits their listeners, so that they exist before it runs.
func runHAProxy(t *testing.T, config string, binds ...string) (addresses []string) {
	t.Helper()
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("haproxy is not on this machine")
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	cmd := exec.CommandContext(t.Context(), bin, "-db", "-f", file)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	for _, bind := range binds {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		config = strings.Replace(config, "bind "+bind+"\n", fmt.Sprintf("bind fd@%d\n", 3+len(cmd.ExtraFiles)), 1)
		cmd.ExtraFiles, addresses = append(cmd.ExtraFiles, f), append(addresses, l.Addr().String())
	}
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	return addresses
}

// TestManifestIsOfThisChart compares the hash that the plain manifest names with the chart, without Helm. The tests in
// deploy/helm/tests compare the manifest itself.
func TestManifestIsOfThisChart(t *testing.T) {
	t.Parallel()
	h := sha256.New()
	err := filepath.WalkDir(filepath.Join(root, chartDir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(filepath.Join(root, chartDir), path)
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
	if want := fmt.Sprintf("# Chart: %x\n", h.Sum(nil)); !strings.Contains(read(t, manifest), want) {
		t.Errorf("%s is not of this chart, which is %s: run make manifests", manifest, want)
	}
	if read(t, alertsFile) != read(t, chartDir+"/files/alerts.yml") {
		t.Errorf("the chart's alerts are not %s: run make manifests", alertsFile)
	}
}

// oldModule is a line of a go.mod that names this module, or one below it, by its path before a change.
var oldModule = regexp.MustCompile(`(?m)^(module |require |replace |\t)northstar\b.*$`)

// TestModulePath checks that a clone gets another path in one commit, that no package of the old one is left then, and
// that an unknown form of a path changes nothing.
func TestModulePath(t *testing.T) {
	t.Parallel()
	clone := filepath.Join(t.TempDir(), "clone")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = clone
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a",
			"GIT_COMMITTER_EMAIL=a@example.com")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	out, err := exec.Command("git", "clone", "-q", "--depth", "1", "file://"+absolute(t, root), clone).CombinedOutput()
	if err != nil {
		t.Skipf("not a git checkout: %v\n%s", err, out)
	}
	git("config", "user.name", "a")
	git("config", "user.email", "a@example.com")
	before := git("rev-parse", "HEAD")
	makePath := func(path string) error {
		cmd := exec.Command("make", "module-path", "PATH="+path)
		cmd.Dir = clone
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		return err
	}
	if err := makePath("no path"); err == nil || git("rev-parse", "HEAD") != before {
		t.Errorf("an invalid path: error %v", err)
	}
	const path = "git.example.com/me/northstar"
	if err := makePath(path); err != nil {
		t.Fatal(err)
	}
	if git("rev-parse", "HEAD~1") != before || git("status", "--porcelain") != "" {
		t.Errorf("not one commit: %s", git("log", "--oneline"))
	}
	cmd := exec.Command("go", "list", "-e", "-test", "-f", "{{.ImportPath}}{{with .Error}} {{.}}{{end}}", "./...")
	cmd.Dir = clone
	var stderr bytes.Buffer // which also says what is downloaded
	cmd.Stderr = &stderr
	out, err = cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	for line := range strings.Lines(string(out)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(name, path) || rest != "" && !strings.HasSuffix(rest, ".test]") {
			t.Errorf("after the change: %s", line)
		}
	}
	for name := range strings.Lines(git("ls-files", "go.mod", "*/go.mod")) {
		text := git("show", "HEAD:"+strings.TrimSpace(name))
		if line := oldModule.FindString(text); line != "" {
			t.Errorf("%s still has %q", strings.TrimSpace(name), line)
		}
	}
	if !strings.Contains(git("show", "HEAD:Makefile"), "-X "+path+"/node.Version=") {
		t.Error("the Makefile does not set the version of the package's new path")
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
