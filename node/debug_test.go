package node

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// Profiles are served on loopback alone, to loopback names alone.
func TestDebugAddr(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, func(_ int, c *Config) { c.DebugAddr = "127.0.0.1:0" })[0]
	n.start()
	url := "http://" + n.debugListener.Addr().String()
	want(t, plain, "GET", url+"/debug/pprof/", "", 200, "goroutine")
	want(t, plain, "GET", url+"/debug/pprof/goroutine?debug=1", "", 200, "serveDebug")
	want(t, plain, "GET", url+"/metrics", "", 404, "")
	want(t, plain, "GET", "http://"+n.httpAddr+"/debug/pprof/", "", 404, "") // the API has none
	req, err := http.NewRequest(http.MethodGet, url+"/debug/pprof/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "rebound.example.com:6060"
	resp, err := plain.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("another host name: %d", resp.StatusCode)
	}
}

func TestDebugAndTracingKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*Config)
		want   string // "": valid
	}{
		{func(c *Config) { c.DebugAddr = "localhost:6060" }, ""},
		{func(c *Config) { c.DebugAddr = "[::1]:6060" }, ""},
		{func(c *Config) { c.DebugAddr = "10.0.0.1:6060" }, "debug-addr = \"10.0.0.1:6060\": not a loopback address"},
		{func(c *Config) { c.DebugAddr = ":6060" }, "not a loopback address"},
		{func(c *Config) { c.DebugAddr = "0.0.0.0:6060"; c.Insecure = true }, "not a loopback address"},
		{func(c *Config) { c.DebugAddr = "nonsense" }, "must be HOST:PORT"},
		{func(c *Config) { c.DebugAddr = c.HTTPAddr }, "is the same as another address"},
		{func(c *Config) { c.Tracing.OTLP = "http://127.0.0.1:4317" }, ""},
		{func(c *Config) { c.Tracing.OTLP = "https://collector.example.com:4317" }, ""},
		{func(c *Config) { c.Tracing.OTLP = "127.0.0.1:4317" }, "tracing.otlp = \"127.0.0.1:4317\": must be http://HOST:PORT"},
		{func(c *Config) { c.Tracing.OTLP = "http://127.0.0.1" }, "must be http://HOST:PORT"},
		{func(c *Config) { c.Tracing.OTLP = "http://127.0.0.1:4317/v1/traces" }, "must be http://HOST:PORT"},
		{func(c *Config) { c.Tracing.Sample = 101 }, "tracing.sample = \"101%\": must be 0% to 100%"},
	} {
		cfg := Default()
		cfg.ID, cfg.DataDir = "n1", t.TempDir()
		c.change(&cfg)
		err := cfg.Validate(time.Now())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v, %+v: %v, want %q", cfg.DebugAddr, cfg.Tracing, err, c.want)
		}
	}
}
