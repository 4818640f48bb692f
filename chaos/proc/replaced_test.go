package proc

import (
	"bytes"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/testenv"
	"northstar/client"
	"northstar/cluster"
)

// A backup is restored while a session holds a role. The session learns of that by its next renewal, or by its own
// deadline. No other session holds the role before that. A role without a holder is free immediately.
func TestRestoreWaitsForTheHolder(t *testing.T) {
	t.Parallel()
	ttl := testenv.Slowdown() * 4 * time.Second // the holder must live until the restore
	c := newCluster(t, 3)
	start(t, c)
	acquainted(t, c)
	cl := clientOf(t, c)
	var backup bytes.Buffer
	if _, err := cl.SnapshotSave(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	holder, err := cl.NewCandidate(client.CandidateConfig{Role: "r", Session: client.SessionConfig{TTL: ttl}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close(t.Context()) }()
	held, err := holder.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan time.Time, 1)
	go func() {
		<-held.Done()
		stopped <- time.Now()
	}()

	began := time.Now()
	if _, err := cl.SnapshotRestore(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	next := bareSession(t, cl, time.Minute)
	if _, err := cl.CampaignRole(t.Context(), "r", apiv1.Campaign{SessionID: next}); !cluster.IsCode(err,
		cluster.CodeRoleHeld) && time.Since(began) < ttl {
		t.Errorf("without waiting: %v", err)
	}
	if _, err := cl.CampaignRole(t.Context(), "other", apiv1.Campaign{SessionID: next}); err != nil {
		t.Errorf("a role that nobody held: %v", err)
	}
	won := <-campaign(t.Context(), cl, "r", next)
	if won.err != nil || won.role.Token <= held.Token {
		t.Fatalf("%+v after token %d", won, held.Token)
	}
	if waited := won.at.Sub(began); waited < ttl {
		t.Errorf("held by another %v after the restore, and may be held for %v", waited, ttl)
	}
	if end := <-stopped; won.at.Before(end) {
		t.Errorf("held by another %v before the holder has stopped", end.Sub(won.at))
	}
}
