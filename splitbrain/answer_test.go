package splitbrain_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/splitbrain"
)

// FuzzReadAnswer checks responses from arbitrary servers at a node's HTTP address. Each one is either valid input of
// Detect, or an error.
func FuzzReadAnswer(f *testing.F) {
	f.Add(200, "c1", "2 r", `{"leader_id":"n1","term":7,"observed_by":"n2"}`)
	f.Add(200, "", "", `{"leader_id":"n1","term":7,"observed_by":"n2"}`)
	f.Add(503, "", "", `{"code":4002}`)
	f.Add(503, "", "", `{"code":4017}`)
	f.Add(200, "", "1", `<html>`)
	f.Add(500, "", "", ``)
	f.Fuzz(func(t *testing.T, status int, clusterID, generation, body string) {
		header := http.Header{apiv1.HeaderCluster: {clusterID}, apiv1.HeaderGeneration: {generation}}
		a, err := splitbrain.ReadAnswer("n1", status, header, []byte(body))
		switch {
		case err != nil:
		case a.LeaderID == "" && a != (splitbrain.Answer{By: "n1"}):
			t.Errorf("no leader, but %+v", a)
		case a.LeaderID != "" && (status != http.StatusOK || !json.Valid([]byte(body))):
			t.Errorf("%+v of %d %s", a, status, body)
		default:
			if back, err := cluster.ParseGeneration(a.Generation.HeaderValue()); a.LeaderID != "" &&
				(err != nil || back != a.Generation) {
				t.Errorf("generation %+v comes back as %+v, %v", a.Generation, back, err)
			}
		}
	})
}
