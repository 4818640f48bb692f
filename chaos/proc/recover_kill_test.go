package proc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"
)

// A survivor is killed during the call that recovers the quorum: the one that is recovered, or the other one. When it
// runs again, both are voters of the new generation, and none has to be wiped. The call may be repeated on either.
func TestRecoveryIsCompletedAfterAKill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		chosen bool
		after  time.Duration
		repeat bool
	}{
		{"the recovered node, early", true, 5 * time.Millisecond, true},
		{"the recovered node", true, 60 * time.Millisecond, true},
		{"another", false, 15 * time.Millisecond, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := startDrill(t, 5)
			var plan struct {
				TargetID string `json:"target_id"`
			}
			request := map[string]any{
				"survivors": []string{d.left[0].ID, d.left[1].ID}, "confirm": d.clusterID, "force": true,
				"reason": "drill", "dry_run": true,
			}
			d.admin(d.left[0], http.MethodPost, "/admin/recover", request, &plan)
			request["dry_run"] = false
			body, err := json.Marshal(request)
			if err != nil {
				t.Fatal(err)
			}
			call := func(n *Node) (status int) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+n.HTTP+"/admin/recover",
					bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return 0
				}
				req.Header.Set("Content-Type", "application/json")
				client := http.Client{Timeout: 5 * time.Second}
				if resp, err := client.Do(req); err == nil {
					t.Logf("%s answers %d", n.ID, resp.StatusCode)
					_ = resp.Body.Close()
					status = resp.StatusCode
				}
				return status
			}
			victim := slices.IndexFunc(d.left, func(n *Node) bool { return (n.ID == plan.TargetID) == tt.chosen })
			first := make(chan int)
			go func() { first <- call(d.left[1-victim]) }()
			pause(tt.after)
			d.left[victim].Kill()
			// On a busy machine the victim may end before it was asked: then the call is refused, and changes nothing.
			repeat := <-first == http.StatusBadRequest || tt.repeat
			if err := d.StartNode(d.left[victim]); err != nil {
				t.Fatal(err)
			}
			began, asked := time.Now(), 0
			eventually(t, 2*soon, func() error {
				for _, n := range d.left {
					s, err := d.status(n)
					if err == nil && s.Generation == 2 && s.Suffrage == "voter" && s.Lifecycle == "active" {
						continue
					}
					if asked++; repeat && asked%50 == 1 {
						call(d.left[asked/50%2])
					}
					return fmt.Errorf("%s: %+v, %w", n.ID, s, err)
				}
				return nil
			})
			t.Logf("complete after %v", time.Since(began))
		})
	}
}
