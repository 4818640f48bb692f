package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
)

// An operator revokes the role of an interactive campaign. The command reports why, fails, and ends its session, so
// that the next holder need not wait.
func TestRoleCampaign_Evicted(t *testing.T) {
	t.Parallel()
	endpoint, c := oneNode(t)
	const ttl = 3 * time.Second
	var stderr bytes.Buffer
	exit := make(chan int, 1)
	go func() {
		exit <- run(t.Context(), []string{"--endpoints", endpoint, "role", "campaign", "job", "--ttl", ttl.String()},
			strings.NewReader(""), io.Discard, &stderr)
	}()
	var held apiv1.Role
	if err := eventually(func() (err error) { held, err = c.GetRole(t.Context(), "job"); return err }); err != nil {
		t.Fatal(err)
	}
	evict(t, endpoint, "job")
	var code int
	select {
	case code = <-exit:
	case <-time.After(testTimeout):
		t.Fatal("it goes on")
	}
	want := fmt.Sprintf("northstarctl: role revoked: renew session %s: ERR_FENCED: ", held.SessionID)
	if code != exitFailed || !strings.HasPrefix(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("exit %d, %q; want %d, %q", code, stderr.String(), exitFailed, want)
	}
	if _, err := c.GetSession(t.Context(), held.SessionID); !errors.Is(err, client.ErrSessionEnded) {
		t.Errorf("its session: %v", err)
	}
}
