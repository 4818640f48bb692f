package docs_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// parseYAML decodes a file of deploy/, whose merge keys are resolved.
func parseYAML(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, "deploy/"+path)), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// command runs a command to its end in a directory.
func command(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// TestCompose checks the services against each other, and lets the program check the configuration of each node.
func TestCompose(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			Image       string            `yaml:"image"`
			Environment map[string]string `yaml:"environment"`
			Ports       []string          `yaml:"ports"`
			Volumes     []string          `yaml:"volumes"`
			ReadOnly    bool              `yaml:"read_only"`
		} `yaml:"services"`
		Volumes map[string]any `yaml:"volumes"`
	}
	parseYAML(t, "compose/compose.yaml", &file)
	node := programPath(t, "northstar-node")
	nodes := 0
	for name, s := range file.Services {
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s publishes %s beyond this machine", name, p)
			}
		}
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			_, named := file.Volumes[from]
			if _, err := os.Stat(filepath.Join(root, "deploy/compose", from)); err != nil && !named {
				t.Errorf("%s: volume %s: %v", name, v, err)
			}
		}
		if !strings.Contains(s.Image, "northstar:") {
			continue
		}
		nodes++
		cmd := exec.Command(node, "check-config", "--data-dir", t.TempDir())
		cmd.Env = os.Environ()
		for key, value := range s.Environment {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
		if out, err := cmd.CombinedOutput(); err != nil || !s.ReadOnly || s.Environment["NORTHSTAR_ID"] != name {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	if nodes != 3 {
		t.Errorf("%d nodes", nodes)
	}
	var prometheus struct {
		RuleFiles []string `yaml:"rule_files"`
		Scrape    []struct {
			Static []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	parseYAML(t, "compose/prometheus.yml", &prometheus)
	if got := prometheus.Scrape[0].Static[0].Targets; !slices.Equal(got, []string{"n1:7701", "n2:7701", "n3:7701"}) {
		t.Errorf("Prometheus scrapes %v", got)
	}
	for _, path := range []string{"compose/grafana/datasource.yml", "compose/grafana/dashboards.yml"} {
		var any map[string]any
		parseYAML(t, path, &any)
		if any["apiVersion"] != 1 {
			t.Errorf("%s: %v", path, any)
		}
	}
}

// TestEnvoy checks that each route leads to a cluster of three nodes with the right health check. Envoy itself is not
// on the module proxy.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	var file map[string]any
	parseYAML(t, "loadbalancers/envoy.yaml", &file)
	text, err := json.Marshal(file["static_resources"])
	if err != nil {
		t.Fatal(err)
	}
	var static struct {
		Listeners []struct{ Name string }
		Clusters  []struct {
			Name   string
			Checks []struct {
				Interval  string
				NoTraffic string                `json:"no_traffic_interval"`
				HTTP      struct{ Path string } `json:"http_health_check"`
			} `json:"health_checks"`
			Load struct {
				Endpoints []struct {
					Nodes []any `json:"lb_endpoints"`
				}
			} `json:"load_assignment"`
		}
	}
	if err := json.Unmarshal(text, &static); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{"leader": "/health/leader", "ready": "/readyz"}
	for i, c := range static.Clusters {
		if c.Checks[0].HTTP.Path != paths[c.Name] || len(c.Load.Endpoints[0].Nodes) != 3 {
			t.Errorf("cluster %s: %+v", c.Name, c)
		}
		// A leader is found as fast before the first request as after it.
		if check := c.Checks[0]; check.Interval == "" || check.NoTraffic != check.Interval {
			t.Errorf("cluster %s: a check every %s, and every %q before the first request", c.Name, check.Interval,
				check.NoTraffic)
		}
		if static.Listeners[i].Name != c.Name || !strings.Contains(string(text), `"cluster":"`+c.Name+`"`) {
			t.Errorf("no listener leads to %s", c.Name)
		}
	}
	if len(static.Clusters) != 2 {
		t.Errorf("%d clusters", len(static.Clusters))
	}
	// Only what was not sent is sent again.
	for _, want := range []string{`"retry_policy":{`, `"retry_on":"connect-failure"`} {
		if n := strings.Count(string(text), want); n != 2 {
			t.Errorf("%d of the two routes have %s", n, want)
		}
	}
}

// TestCloudInit checks the form of the file, its commands with a shell, and its configuration with the program.
func TestCloudInit(t *testing.T) {
	t.Parallel()
	if !strings.HasPrefix(read(t, "deploy/cloud-init/user-data.yaml"), "#cloud-config\n") {
		t.Fatal("the first line must be #cloud-config")
	}
	var file struct {
		Files []struct{ Path, Permissions, Content string } `yaml:"write_files"`
		Run   []string                                      `yaml:"runcmd"`
	}
	parseYAML(t, "cloud-init/user-data.yaml", &file)
	command(t, "", "sh", "-n", "-c", strings.Join(file.Run, "\n"))
	ctl, dir := programPath(t, "northstarctl"), t.TempDir()
	command(t, dir, ctl, "tls", "ca", "--out", dir)
	command(t, dir, ctl, "tls", "cert", "--ca", dir, "--out", dir, "--node", "n1",
		"--cluster-name", "prod", "--host", "10.0.0.11")
	tokens := "[[token]]\nname = \"a\"\nrole = \"operator\"\nhash = \"sha256:" + strings.Repeat("0a", 32) + "\"\n"
	config := strings.ReplaceAll(file.Files[0].Content, "/etc/northstar/", dir+"/")
	for name, text := range map[string]string{"tokens.toml": tokens, "northstar.toml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file.Files[0].Path = filepath.Join(dir, "northstar.toml")
	command(t, dir, programPath(t, "northstar-node"), "check-config", "--config", file.Files[0].Path)
}
