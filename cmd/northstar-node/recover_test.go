package main

import (
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"northstar/consensus/storage"
)

// TestRecover_Refusals: a refusal is a usage error only if another --confirm would help.
func TestRecover_Refusals(t *testing.T) {
	t.Parallel()
	const inCluster = `{"node_id":"n1","cluster_id":"c-1","generation":{"number":1},"incarnation":"i"}`
	const recovered = `{"node_id":"n1","cluster_id":"c-1","generation":{"number":2},"incarnation":"i","recovery":{}}`
	for name, tc := range map[string]struct {
		identity, confirm string
		code              int
		want              string
	}{
		"another cluster": {inCluster, "c-2", exitUsage, `--confirm: must be the cluster's ID c-1 (got "c-2")`},
		"no cluster": {
			`{"node_id":"n1","generation":{"number":0},"incarnation":"i"}`, "c-1", exitFailed,
			"node n1 belongs to no cluster yet",
		},
		"no member": {inCluster, "c-1", exitFailed, "node n1 is not a member in its own log"},
		"recovered": {recovered, "c-1", exitFailed, "node n1 was recovered to generation 2 and has not been started"},
	} {
		dir := t.TempDir()
		disk, err := storage.Open(storage.Options{Dir: dir, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		if err := disk.Save("identity.json", []byte(tc.identity)); err != nil {
			t.Error(err)
		}
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
		code, _, stderr := invoke(t, nil, "recover", "--data-dir", dir, "--confirm", tc.confirm)
		if code != tc.code || !strings.HasPrefix(stderr, "northstar-node: "+tc.want) {
			t.Errorf("%s: exit code %d, want %d; %q", name, code, tc.code, stderr)
		}
	}
}
