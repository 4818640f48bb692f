package consensus

import (
	"encoding/json"
	"os"
	"testing"

	"northstar/cluster"
)

// identity.json of the build before, after a recovery, decodes and encodes to the same text.
func TestIdentityOfTheBuildBefore(t *testing.T) {
	want, err := os.ReadFile("testdata/identity-f89d65c.json")
	if err != nil {
		t.Fatal(err)
	}
	var f identityFile
	if err := json.Unmarshal(want, &f); err != nil {
		t.Fatal(err)
	}
	if f.Recovery == nil || len(f.Recovery.Servers) != 4 ||
		f.Recovery.Servers[0] != (cluster.Server{ID: "n1", Address: "127.0.0.1:27701", Suffrage: cluster.Voter}) {
		t.Errorf("recovery: %+v", f.Recovery)
	}
	got, err := json.MarshalIndent(&f, "", "  ")
	if err != nil || string(got)+"\n" != string(want) {
		t.Errorf("got %s, %v", got, err)
	}
}
