package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

// samples holds, for each key, a value other than its default as a flag would
// have it, and as the file would.
var samples = map[string]struct{ flag, file string }{
	"id":              {"n7", `"n7"`},
	"data-dir":        {"/var/lib/northstar", `"/var/lib/northstar"`},
	"http-addr":       {"127.0.0.1:8001", `"127.0.0.1:8001"`},
	"http-advertise":  {"node7.example.com:7701", `"node7.example.com:7701"`},
	"raft-addr":       {"127.0.0.1:8000", `"127.0.0.1:8000"`},
	"raft-advertise":  {"node7.example.com:7700", `"node7.example.com:7700"`},
	"etcd-addr":       {"127.0.0.1:2379", `"127.0.0.1:2379"`},
	"etcd-advertise":  {"node7.example.com:2379", `"node7.example.com:2379"`},
	"debug-addr":      {"127.0.0.1:6060", `"127.0.0.1:6060"`},
	"tracing.otlp":    {"http://127.0.0.1:4317", `"http://127.0.0.1:4317"`},
	"tracing.sample":  {"10%", `"10%"`},
	"cluster-name":    {"prod", `"prod"`},
	"initial-cluster": {"n1=a:7700@a:7701,n2=b:7700@b:7701", `["n1=a:7700@a:7701", "n2=b:7700@b:7701"]`},
	"join":            {"a:7701,b:7701", `["a:7701", "b:7701"]`},
	"join-token":      {"secret", `"secret"`},
	"discover":        {"dns://peers.example.com:7701", `"dns://peers.example.com:7701"`},
	"failover.external-lock": {
		"postgres://northstar@db.example.com/northstar",
		`"postgres://northstar@db.example.com/northstar"`,
	},
	"priority":                {"7", "7"},
	"eligible":                {"false", "false"},
	"zone":                    {"eu", `"eu"`},
	"election.timeout-min":    {"200ms", `"200ms"`},
	"election.timeout-max":    {"400ms", `"400ms"`},
	"election.lease":          {"true", "true"},
	"election.lease-drift":    {"5%", `"5%"`},
	"failover.auto":           {"false", "false"},
	"failover.fast":           {"false", "false"},
	"failover.silence":        {"60ms", `"60ms"`},
	"failover.takeover-delay": {"1m", `"1m"`},
	"failover.hold":           {"2s", `"2s"`},
	"failover.zones":          {"eu-1,eu-2", `["eu-1", "eu-2"]`},
	"members.dead-after":      {"24h", `"24h"`},
	"nodes.retention":         {"24h", `"24h"`},
	"splitbrain.interval":     {"5s", `"5s"`},
	"transfer.timeout":        {"10s", `"10s"`},
	"snapshot.threshold":      {"100", "100"},
	"snapshot.interval":       {"10s", `"10s"`},
	"snapshot.trailing-logs":  {"2000", "2000"},
	"disk.reserve":            {"1GiB", `"1GiB"`},
	"etcd.lease-grace":        {"1s", `"1s"`},
	"etcd.lease-connection":   {"true", "true"},
	"etcd.cert-role":          {"client", `"client"`},
	"etcd.progress-interval":  {"5s", `"5s"`},
	"limits.state-bytes":      {"4GiB", `"4GiB"`},

	"limits.sessions-per-identity":   {"500", "500"},
	"limits.connections-per-address": {"64", "64"},

	"etcd.tls.cert": {"/etc/northstar/etcd.crt", `"/etc/northstar/etcd.crt"`},
	"etcd.tls.key":  {"/etc/northstar/etcd.key", `"/etc/northstar/etcd.key"`},
	"etcd.tls.ca":   {"/etc/northstar/etcd-ca.crt", `"/etc/northstar/etcd-ca.crt"`},
	"tls.cert":      {"/etc/northstar/n7.crt", `"/etc/northstar/n7.crt"`},
	"tls.key":       {"/etc/northstar/n7.key", `"/etc/northstar/n7.key"`},
	"tls.ca":        {"/etc/northstar/ca.crt", `"/etc/northstar/ca.crt"`},
	"auth.tokens":   {"/etc/northstar/tokens.toml", `"/etc/northstar/tokens.toml"`},
	"auth.public":   {"false", "false"},
	"insecure":      {"true", "true"},
	"drain-timeout": {"5s", `"5s"`},
	"log.level":     {"debug", `"debug"`},
	"log.format":    {"json", `"json"`},
}

func environ(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}

var noEnv = environ(nil)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "northstar.toml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// valueOf is the field of a key.
func valueOf(t *testing.T, cfg *Config, key string) any {
	t.Helper()
	return valueIn(t, reflect.ValueOf(cfg).Elem(), key)
}

func valueIn(t *testing.T, v reflect.Value, key string) any {
	t.Helper()
	section, name, dotted := strings.Cut(key, ".")
	if !dotted {
		section, name = "", key
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if prefix, ok := f.Tag.Lookup("prefix"); ok && dotted && prefix == section+"-" {
			return valueIn(t, v.Field(i), name)
		}
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("name") == name {
			return v.Field(i).Interface()
		}
	}
	t.Fatalf("no field of key %s", name)
	return nil
}

// inFile writes one key as a TOML document.
func inFile(key, value string) string {
	if section, name, ok := strings.Cut(key, "."); ok {
		return fmt.Sprintf("# a comment\n[%s]\n%s = %s\n", section, name, value)
	}
	return fmt.Sprintf("# a comment\n\n%s = %s\n", key, value)
}

func TestEveryKeyByFlagEnvironmentAndFile(t *testing.T) {
	defaults := Default()
	for _, key := range Keys() {
		t.Run(key.Name, func(t *testing.T) {
			sample, ok := samples[key.Name]
			if !ok {
				t.Fatal("this key has no sample: add one")
			}
			flag, err := Load([]string{"--" + key.Flag + "=" + sample.flag}, noEnv)
			if err != nil {
				t.Fatal(err)
			}
			env, err := Load(nil, environ(map[string]string{key.Env: sample.flag}))
			if err != nil {
				t.Fatal(err)
			}
			file, err := Load([]string{"--config", writeFile(t, inFile(key.Name, sample.file))}, noEnv)
			if err != nil {
				t.Fatal(err)
			}
			want := valueOf(t, flag, key.Name)
			if reflect.DeepEqual(want, valueOf(t, &defaults, key.Name)) {
				t.Fatalf("the flag changes nothing: %v", want)
			}
			for from, cfg := range map[string]*Config{key.Env: env, "northstar.toml line 3": file, "--" +
				key.Flag: flag} {
				if got := valueOf(t, cfg, key.Name); !reflect.DeepEqual(got, want) {
					t.Errorf("%s gives %v, the flag %v", from, got, want)
				}
				if got := cfg.sources[key.Name]; got != from {
					t.Errorf("Source = %q, want %q", got, from)
				}
			}
		})
	}
	if len(samples) != len(Keys()) {
		t.Errorf("%d samples for %d keys", len(samples), len(Keys()))
	}
}

func TestPrecedence(t *testing.T) {
	file := writeFile(t, "zone = 'file'\npriority = 1\neligible = false\n")
	env := map[string]string{"NORTHSTAR_CONFIG": file}
	check := func(args []string, zone string, priority int, eligible bool) {
		t.Helper()
		cfg, err := Load(args, environ(env))
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Zone != zone || cfg.Priority != priority || cfg.Eligible != eligible {
			t.Errorf("got %q %d %v, want %q %d %v", cfg.Zone, cfg.Priority, cfg.Eligible, zone, priority, eligible)
		}
	}
	check(nil, "file", 1, false)
	env["NORTHSTAR_ZONE"], env["NORTHSTAR_ELIGIBLE"] = "env", "true"
	check(nil, "env", 1, true)
	check([]string{"--zone=flag", "--no-eligible"}, "flag", 1, false)
	env["NORTHSTAR_ZONE"], env["NORTHSTAR_PRIORITY"] = "", "" // as in ${PRIORITY:-} of a compose file
	check(nil, "file", 1, true)
}

func TestBadValuesAreAllListed(t *testing.T) {
	cases := []struct {
		name, file string
		env        map[string]string
		args       []string
		want       []string
	}{
		{
			name: "unknown keys",
			file: "id = 'n1'\nprioritty = 3\n[election]\ntimeout-min = '1s'\ntimeout = '2s'\n[nope]\nx = 1\n[[list]]\ny = 1\n", want: []string{
				"prioritty: unknown key (northstar.toml line 2)",
				"election.timeout: unknown key (northstar.toml line 5)",
				"nope: unknown key (northstar.toml line 6)",
				"list: unknown key (northstar.toml line 8)",
			},
		},
		{
			name: "wrong types",
			file: "id = 7\neligible = 'no'\npriority = '3'\nelection.timeout-min = 150\njoin = [1]\ntls = { cert = 3 }\n[log]\nlevel.x = 'info'\n", want: []string{
				`id = "7": must be a string, in quotes (northstar.toml line 1)`,
				"eligible = no: must be true or false (northstar.toml line 2)",
				"priority = 3: must be a whole number, without quotes (northstar.toml line 3)",
				`election.timeout-min = "150": must be a string, in quotes (northstar.toml line 4)`,
				`join = "[1]": must be a string, or an array of strings (northstar.toml line 5)`,
				`tls.cert = "3": must be a string, in quotes (northstar.toml line 6)`,
				`log.level = "map[x:info]": must be a string, in quotes (northstar.toml line 8)`,
			},
		},
		{
			name: "a section as value", file: "election = 3\n",
			want: []string{"election: unknown key (northstar.toml line 1)"},
		},
		{
			name: "bad values in file and environment",
			file: "\n[election]\ntimeout-min = 'soon'\n[disk]\nreserve = '64 Mebi'\n",
			env: map[string]string{
				"NORTHSTAR_PRIORITY": "high", "NORTHSTAR_INITIAL_CLUSTER": "n1,N2=a:1@b:2",
				"NORTHSTAR_ELECTION_LEASE_DRIFT": "x",
			}, want: []string{
				`priority = high: expected a valid 64 bit int but got "high" (NORTHSTAR_PRIORITY)`,
				`initial-cluster = "n1,N2=a:1@b:2": each member must be ID=RAFT_HOST:PORT@HTTP_HOST:PORT (got "n1"); node ID must be 1 to 63`,
				`election.timeout-min = "soon": expected duration but got "soon"`,
				`disk.reserve = "64 Mebi": unit must be B, kB, MB, GB, TB, KiB, MiB, GiB or TiB (got "Mebi")`,
				`election.lease-drift = "x": must be a percentage such as 10% (NORTHSTAR_ELECTION_LEASE_DRIFT)`,
			},
		},
		{name: "no TOML", file: "id = 'n1'\npriority = = 3\n", want: []string{"column 12 (northstar.toml line 2)"}},
		{name: "twice", file: "id = 'n1'\nid = 'n2'\n", want: []string{"id", "line 2"}},
		{
			name: "secrets stay secret", file: "join-token = ['abc', 3]\n",
			want: []string{"join-token = (secret): must be a string"},
		},
		{
			name: "bad flags, and a bad file",
			file: "prioritty = 3\n",
			args: []string{
				"--priority=high", "--election-timeout-min", "soon", "--eligible=perhaps", "--failover-silence=",
			},
			want: []string{
				"prioritty: unknown key (northstar.toml line 1)",
				`priority = high: expected a valid 64 bit int but got "high" (--priority)`,
				`election.timeout-min = "soon": expected duration but got "soon"`, "(--election-timeout-min)",
				"eligible = perhaps: bool value must be true", "(--eligible)",
				`failover.silence = "": must be auto or a duration such as 60ms (--failover-silence)`,
			},
		},
		{name: "no value", args: []string{"--priority"}, want: []string{"--priority: expected int value"}},
		{
			name: "a flag as value", args: []string{"--priority", "--eligible"},
			want: []string{`--priority: expected int value but got "--eligible" (long flag)`},
		},
		{name: "unknown flag", args: []string{"--prioritty=1"}, want: []string{"unknown flag --prioritty"}},
		{
			name: "no file", args: []string{"--config=/nowhere.toml"},
			want: []string{"config: open /nowhere.toml: no such file"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			args := c.args
			if c.file != "" {
				args = append(args, "--config", writeFile(t, c.file))
			}
			_, err := Load(args, environ(c.env))
			if err == nil {
				t.Fatal("no error")
			}
			wantLines(t, err, c.want)
		})
	}
}

func wantLines(t *testing.T, err error, want []string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("missing: %s", w)
		}
	}
	if t.Failed() {
		t.Logf("got:\n%v", err)
	}
}

// valid is a configuration without problems.
func valid(change func(*Config)) *Config {
	cfg := Default()
	cfg.ID, cfg.DataDir = "n1", "/data"
	if change != nil {
		change(&cfg)
	}
	return &cfg
}

func members(t *testing.T, s string) InitialCluster {
	t.Helper()
	var c InitialCluster
	if err := c.UnmarshalText([]byte(s)); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestValidate(t *testing.T) {
	const three = "n1=127.0.0.1:7700@127.0.0.1:7701,n2=b:1@b:2,n3=c:1@c:2"
	cases := []struct {
		name   string
		change func(*Config)
		want   string // "" for none
	}{
		{"defaults", nil, ""},
		{"initial cluster", func(c *Config) { c.InitialCluster = members(t, three) }, ""},
		{"join", func(c *Config) { c.Join, c.JoinToken = []string{"a:1"}, "t" }, ""},
		{"join and discover", func(c *Config) { c.Join, c.Discover = []string{"a:1"}, "dns+srv://peers" }, ""},
		{"insecure", func(c *Config) {
			c.HTTPAddr, c.HTTPAdvertise, c.RaftAddr, c.Insecure = ":7701", "h:7701", "10.0.0.1:7700", true
		}, ""},
		{"port 0", func(c *Config) { c.HTTPAddr, c.RaftAddr = "127.0.0.1:0", "127.0.0.1:0" }, ""},

		{
			"host with a blank", func(c *Config) { c.Join = []string{"a:1", "b c:2"} },
			`address "b c:2": host must be an IP address, or a name of letters, digits, '.', '-' and '_' (got "b c")`,
		},
		{"host with a slash", func(c *Config) { c.HTTPAdvertise = "h/x:7701" }, `(got "h/x")`},
		{"join at IPv6", func(c *Config) { c.Join = []string{"[fe80::1%eth0]:1", "my_node-1.example.:2"} }, ""},
		{"no id", func(c *Config) { c.ID = "" }, `id = "": must be 1 to 63`},
		{"bad id", func(c *Config) { c.ID = "Node 1" }, `id = "Node 1": must be 1 to 63`},
		{"no data dir", func(c *Config) { c.DataDir = "" }, "data-dir: required"},
		{"cluster name", func(c *Config) { c.ClusterName = "a/b" }, `cluster-name = "a/b": must be 1 to 128`},
		{"cluster name with a port, shown", func(c *Config) { c.ClusterName = "eu:prod" }, ""},
		{
			"cluster name with a port", func(c *Config) { c.ClusterName, c.TLS = "eu:prod", TLSConfig{"c", "k", "ca"} },
			`cluster-name = "eu:prod": must be 1 to 128`,
		},
		{"cluster name with a user, shown", func(c *Config) { c.ClusterName = "a@b" }, ""},
		{
			"cluster name with a user", func(c *Config) { c.ClusterName, c.TLS = "a@b", TLSConfig{"c", "k", "ca"} },
			`cluster-name = "a@b": must be 1 to 128`,
		},
		{"cluster name with an empty part, shown", func(c *Config) { c.ClusterName = "a..b" }, ""},
		{
			"cluster name with an empty part", func(c *Config) { c.ClusterName, c.TLS = "a..b", TLSConfig{"c", "k", "ca"} },
			`cluster-name = "a..b": must be 1 to 128`,
		},
		{"address without port", func(c *Config) { c.HTTPAddr = "localhost" }, `http-addr = "localhost": must be HOST:PORT`},
		{
			"port", func(c *Config) { c.RaftAddr = "127.0.0.1:99999" },
			`raft-addr = "127.0.0.1:99999": port must be 0 to 65535 (got "99999")`,
		},
		{"same address", func(c *Config) { c.RaftAddr = c.HTTPAddr }, "each needs its own port"},
		{
			"all addresses without advertise", func(c *Config) { c.HTTPAddr, c.Insecure = ":7701", true },
			`http-advertise: required, since http-addr = ":7701" listens on all`,
		},
		{
			"advertise 0.0.0.0", func(c *Config) { c.RaftAdvertise = "0.0.0.0:7700" },
			`raft-advertise = "0.0.0.0:7700": address "0.0.0.0:7700": other nodes cannot dial 0.0.0.0`,
		},
		{"advertise ::", func(c *Config) { c.HTTPAdvertise = "[::]:7700" }, "other nodes cannot dial ::"},
		{"advertise port 0", func(c *Config) { c.HTTPAdvertise = "h:0" }, "other nodes cannot dial port 0"},
		{
			"duplicate id", func(c *Config) { c.InitialCluster = members(t, three+",n2=d:1@d:2") },
			"duplicate node ID n2",
		},
		{
			"duplicate address", func(c *Config) { c.InitialCluster = members(t, three+",n4=d:1@b:2") },
			"duplicate address b:2, at n2 and n4",
		},
		{
			"not in the list", func(c *Config) { c.ID, c.InitialCluster = "n9", members(t, three) },
			`does not name this node: its id is "n9"`,
		},
		{
			"own raft address", func(c *Config) { c.RaftAddr, c.InitialCluster = "127.0.0.1:1", members(t, three) },
			"raft address is 127.0.0.1:7700, but it advertises 127.0.0.1:1",
		},
		{
			"own HTTP address", func(c *Config) { c.HTTPAdvertise, c.InitialCluster = "h:1", members(t, three) },
			"HTTP address is 127.0.0.1:7701, but it advertises h:1",
		},
		{
			"initial cluster and join", func(c *Config) {
				c.InitialCluster, c.Join = members(t, three),
					[]string{"a:1"}
			},
			`join = "a:1": cannot be combined`,
		},
		{
			"initial cluster and discover", func(c *Config) {
				c.InitialCluster, c.Discover = members(t, three),
					"dns://x"
			},
			"discover = \"dns://x\": cannot be combined",
		},
		{"join address", func(c *Config) { c.Join = []string{"a"} }, `join = "a": address "a": must be HOST:PORT`},
		{"join token alone", func(c *Config) { c.JoinToken = "t" }, "join-token = (secret): requires join or discover"},
		{"discover scheme", func(c *Config) { c.Discover = "http://x" }, `scheme must be dns or dns+srv (got "http")`},
		{"discover port", func(c *Config) { c.Discover = "dns+srv://x:1" }, "leave it out"},
		{"discover path", func(c *Config) { c.Discover = "dns://x/y" }, "must be dns://NAME[:PORT]"},
		{"priority", func(c *Config) { c.Priority = 256 }, "priority = 256: must be 0 to 255"},
		{"negative priority", func(c *Config) { c.Priority = -1 }, "priority = -1: must be 0 to 255"},
		{
			"timeout relation", func(c *Config) { c.Election.TimeoutMin = 200e6 },
			`election.timeout-max = "300ms": must be twice election.timeout-min, which is 200ms`,
		},
		{
			"timeout bound", func(c *Config) { c.Election.TimeoutMin, c.Election.TimeoutMax = 1e6, 2e6 },
			`election.timeout-min = "1ms": must be 10ms to 1m0s`,
		},
		{"lease drift", func(c *Config) { c.Election.LeaseDrift = 80 }, `election.lease-drift = "80%": must be 0% to 50%`},
		{"transfer timeout", func(c *Config) { c.Transfer.Timeout = 0 }, "transfer.timeout"},
		{
			"hold", func(c *Config) { c.Failover.Hold = 2 * time.Minute },
			`failover.hold = "2m0s": must be 0s to 1m0s`,
		},
		{"no hold", func(c *Config) { c.Failover.Hold = -1 }, "failover.hold"},
		{
			"retention", func(c *Config) { c.Nodes.Retention = time.Second },
			`nodes.retention = "1s": must be 1m0s to 8760h0m0s`,
		},
		{"zone", func(c *Config) { c.Zone = "Zürich, rack 7" }, ""},
		{"long zone", func(c *Config) { c.Zone = strings.Repeat("z", 257) }, "must be at most 256 bytes (got 257)"},
		{"zone on two lines", func(c *Config) { c.Zone = "a\nb" }, `zone = "a\nb": "a\nb" is not printable`},
		{"zone of other bytes", func(c *Config) { c.Zone = "\xff" }, "is not printable"},
		{"zones", func(c *Config) { c.Failover.Zones = []string{"a", "b"} }, ""},
		{"zone", func(c *Config) { c.Failover.Zones = []string{"a\n"} }, "is not printable"},
		{"no zone", func(c *Config) { c.Failover.Zones = []string{"a", ""} }, "failover.zones"},
		{
			"zone twice", func(c *Config) { c.Failover.Zones = []string{"a", "b", "a"} },
			`failover.zones = "a,b,a": must name each zone once`,
		},
		{"zones", func(c *Config) { c.Failover.Zones = make([]string, 65) }, `failover.zones = "65": must be at most 64`},
		{"drain timeout", func(c *Config) { c.DrainTimeout = -1 }, "drain-timeout"},
		{"threshold", func(c *Config) { c.Snapshot.Threshold = 0 }, "snapshot.threshold = 0"},
		{"interval", func(c *Config) { c.Snapshot.Interval = 0 }, "snapshot.interval"},
		{
			"trailing logs", func(c *Config) { c.Snapshot.TrailingLogs = 999 },
			"snapshot.trailing-logs = 999: must be at least 1000",
		},
		{
			"connections", func(c *Config) { c.Limits.ConnectionsPerAddress = 1 },
			"limits.connections-per-address = 1: must be 16 to 1000000",
		},
		{"reserve", func(c *Config) { c.Disk.Reserve = 0 }, "disk.reserve"},
		{
			"state bytes", func(c *Config) { c.Limits.StateBytes = 1 << 10 },
			`limits.state-bytes = "1KiB": must be 1MiB to 1024TiB`,
		},
		{
			"sessions", func(c *Config) { c.Limits.SessionsPerIdentity = 200_001 },
			"limits.sessions-per-identity = 200001: must be 1 to 200000",
		},
		{"half TLS", func(c *Config) { c.TLS.Cert = "c" }, "tls.key: required, since other tls keys are set"},
		{
			"half TLS of the etcd port", func(c *Config) {
				c.EtcdAddr, c.Etcd.TLS.Cert = "127.0.0.1:2379", "/nowhere"
			},
			"etcd.tls.key: required, since other tls keys are set",
		},
		{
			"TLS of the etcd port alone", func(c *Config) {
				c.EtcdAddr, c.Etcd.TLS.CA = "127.0.0.1:2379", "/nowhere"
			},
			"requires tls.cert, tls.key and tls.ca",
		},
		{"no tokens file", func(c *Config) { c.Auth.Tokens = "/nowhere" }, `auth.tokens = "/nowhere": open /nowhere`},
		{
			"exposed HTTP", func(c *Config) { c.HTTPAddr = "10.0.0.1:7701" },
			`http-addr = "10.0.0.1:7701": not a loopback address`,
		},
		{"exposed raft", func(c *Config) { c.RaftAddr = "host:7700" }, `raft-addr = "host:7700": not a loopback address`},
		{
			"tokens do not make plain text safe", func(c *Config) {
				c.HTTPAddr, c.Auth.Tokens = "10.0.0.1:7701",
					"/nowhere"
			},
			"not a loopback address",
		},
		{"log level", func(c *Config) { c.Log.Level = "loud" }, `log.level = "loud"`},
		{"log format", func(c *Config) { c.Log.Format = "xml" }, `log.format = "xml": must be text or json`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := valid(c.change).Validate(time.Now())
			switch {
			case c.want == "" && err != nil:
				t.Fatalf("unexpected: %v", err)
			case c.want != "" && err == nil:
				t.Fatalf("no error, want %s", c.want)
			case c.want != "" && !strings.Contains(err.Error(), c.want):
				t.Fatalf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestValidateListsEveryProblemWithItsSource(t *testing.T) {
	file := writeFile(t, "id = 'N 1'\npriority = 300\n\n[snapshot]\ntrailing-logs = 10\n")
	cfg, err := Load([]string{"--config", file, "--log-format=xml"},
		environ(map[string]string{"NORTHSTAR_RAFT_ADDR": "nowhere"}))
	if err != nil {
		t.Fatal(err)
	}
	err = cfg.Validate(time.Now())
	var p *Problem
	if !errors.As(err, &p) {
		t.Fatalf("want a *Problem, got %v", err)
	}
	wantLines(t, err, []string{
		`id = "N 1": must be 1 to 63`, "(northstar.toml line 1)",
		"data-dir: required",
		`raft-addr = "nowhere": must be HOST:PORT (NORTHSTAR_RAFT_ADDR)`,
		"priority = 300: must be 0 to 255 (northstar.toml line 2)",
		"snapshot.trailing-logs = 10: must be at least 1000 (northstar.toml line 5)",
		`log.format = "xml": must be text or json (--log-format)`,
	})
}

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "10kB": 10000, "64MiB": 64 << 20, "1 GiB": 1 << 30,
		"3B": 3,
	} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s: got %d, %v; want %d", text, s, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "1mb", "99999999999999999999", "999999999TiB"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: got %d, want an error", text, s)
		}
	}
	for s, want := range map[Size]string{0: "0", 1000: "1000", 64 << 20: "64MiB", 1 << 30: "1GiB", 3 << 10: "3KiB"} {
		if s.String() != want {
			t.Errorf("String = %s, want %s", s, want)
		}
	}
}

func TestSilence(t *testing.T) {
	for text, want := range map[string]string{
		"auto": "", "20ms": "", "150ms": "", "19ms": "must be auto, or 20ms to election.timeout-min, which is 150ms",
		"151ms": "must be auto, or 20ms to election.timeout-min, which is 150ms",
		"0s":    "must be auto or a duration such as 60ms", "-1s": "must be auto or a duration such as 60ms",
		"soon": "must be auto or a duration such as 60ms", "": "must be auto or a duration such as 60ms",
	} {
		cfg, err := Load([]string{"--data-dir", t.TempDir(), "--config", writeFile(t, inFile("failover.silence", `"`+text+`"`))}, noEnv)
		if err == nil {
			err = cfg.Validate(time.Now())
		}
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "failover.silence")):
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
		if err == nil && cfg.Failover.Silence.String() != text {
			t.Errorf("%q is printed as %q", text, cfg.Failover.Silence)
		}
	}
}

func TestDefaults(t *testing.T) {
	cfg := Default()
	if cfg.ClusterName != "northstar" || cfg.Priority != cluster.DefaultPriority || !cfg.Eligible ||
		!cfg.Failover.Auto ||
		cfg.Election.TimeoutMax != 2*cfg.Election.TimeoutMin || cfg.Disk.Reserve != 64<<20 ||
		cfg.Election.LeaseDrift != 10 {
		t.Errorf("defaults are not those of the contract: %+v", cfg)
	}
}

// Blanks around the commas between addresses are no part of them.
func TestJoin_Blanks(t *testing.T) {
	t.Parallel()
	cfg, err := Load([]string{"--join", "a:7701, b:7701 ,\tc:7701"}, environ(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Join; !reflect.DeepEqual(got, []string{"a:7701", "b:7701", "c:7701"}) {
		t.Errorf("join %q", got)
	}
	cfg.DataDir = "data"
	if err := cfg.Validate(time.Now()); err != nil {
		t.Error(err)
	}
}

// Some files have all addresses in one element.
func TestArrays_WithCommas(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "join = ['a:1,b:1', 'c:1']\ninitial-cluster = ['n1=a:1@a:2,n2=b:1@b:2']\n")
	cfg, err := Load([]string{"--config", file}, environ(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Join; !reflect.DeepEqual(got, []string{"a:1", "b:1", "c:1"}) {
		t.Errorf("join %q", got)
	}
	if got := cfg.InitialCluster.String(); got != "n1=a:1@a:2,n2=b:1@b:2" {
		t.Errorf("initial cluster %s", got)
	}
}

// A zone may have a comma in its name: an array of the file is not split again.
func TestZones_WithComma(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "[failover]\nzones = ['a,b', 'c']\n")
	cfg, err := Load([]string{"--config", file}, environ(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Failover.Zones; !reflect.DeepEqual(got, []string{"a,b", "c"}) {
		t.Errorf("zones %q", got)
	}
}
