package node

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"northstar/api/token"
)

// A load balancer without a token is told how far a follower is behind, also where the views of the cluster need one.
// The leader counts no failed authentication.
func TestFollowerHealth_PrivateViews(t *testing.T) {
	t.Parallel()
	_, hash := token.New()
	file := writeFile(t, fmt.Sprintf("[[token]]\nname = \"a\"\nrole = \"observer\"\nhash = %q\n", hash))
	nodes := newCluster(t, 3, func(i int, c *Config) {
		calm(i, c)
		c.Auth.Tokens, c.Auth.Public = file, false
	})
	lead := startAll(t, nodes)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, n := range nodes {
		want := http.StatusOK
		if n == lead {
			want = http.StatusServiceUnavailable
		}
		eventually(t, "the health check of "+string(n.cfg.ID), func() bool {
			status, _, err := request(client, "GET", "http://"+n.cfg.HTTPAddr+"/health/follower?max_lag=1000", "")
			return err == nil && status == want
		})
	}
	families, err := lead.metrics.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasSuffix(f.GetName(), "auth_failures_total") && f.GetMetric()[0].GetCounter().GetValue() != 0 {
			t.Errorf("the leader counts %v", f)
		}
	}
}
