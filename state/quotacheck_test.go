package state

import (
	"fmt"
	"strings"
	"testing"

	"northstar/cluster"
)

// What a leader refuses before the log is refused in the log, too, with the same text.
func TestRefusesGrowth(t *testing.T) {
	t.Parallel()
	s := full(t)
	mustApply(t, s, withIdempotency(put("k0000", "short"), NodeIdempotencyPrefix+"known", "f"))
	large := strings.Repeat("w", 20000)
	key, absent := "k0001", put("k0001", large)
	absent.Put.IfAbsent = true
	fenced := put("n", large)
	fenced.Fence = &FencingToken{Role: "r", Token: 1}
	tied := put("n", large)
	tied.Put.Session = "nobody"
	ofNode := withIdempotency(put("n", large), NodeIdempotencyPrefix+"x", "f")
	known := withIdempotency(put("n", large), NodeIdempotencyPrefix+"known", "f")
	forgotten := withIdempotency(put("n", large), NodeIdempotencyPrefix+"forgotten", "f")
	forgotten.Idempotency.After = 1
	s.view.Load().idempotency.forgotten = 2
	for name, tc := range map[string]struct {
		cmd  Command
		code cluster.Code // 0: it has room, or another result
	}{
		"a key":                   {put("n", large), cluster.CodeQuotaExceeded},
		"a larger value":          {put(key, large), cluster.CodeQuotaExceeded},
		"a smaller value":         {put(key, "v"), 0},
		"a failed condition":      {absent, 0},
		"a failed fence":          {fenced, 0},
		"an ended session":        {tied, 0},
		"an invalid key":          {put("", large), 0},
		"a deletion":              {del(key), 0},
		"a transaction":           {txnCommand(Txn{Success: []Op{putOp("n", large)}}), cluster.CodeQuotaExceeded},
		"one that makes room":     {txnCommand(Txn{Success: []Op{delOp("k", "l"), putOp("n", large)}}), 0},
		"one that does not":       {txnCommand(Txn{Success: []Op{putOp(key, "v")}}), 0},
		"a repeated command":      {known, 0},
		"a forgotten command":     {forgotten, 0},
		"a new one of a node":     {ofNode, cluster.CodeQuotaExceeded},
		"a client's, to remember": {withIdempotency(put("n", large), "client/1", "f"), 0},
	} {
		view := s.View()
		got := view.RefusesGrowth(&tc.cmd)
		if tc.code == 0 && got != nil || tc.code != 0 && (got == nil || got.Code != tc.code) {
			t.Errorf("%s: %v, want %d", name, got, tc.code)
		}
		if got == nil {
			continue
		}
		if applied := apply(s, tc.cmd)[0].Err; applied == nil || applied.Error() != got.Error() {
			t.Errorf("%s: refused with %v, and in the log with %v", name, got, applied)
		}
	}
	if got := New(Options{}).View().RefusesGrowth(&fenced); got != nil {
		t.Errorf("without limits: %v", got)
	}
}

// The question changes nothing of the state: what is applied afterwards is the same as without it.
func TestRefusesGrowth_OnlyReads(t *testing.T) {
	t.Parallel()
	asked, other := full(t), full(t)
	for i := range 200 {
		cmd := put(fmt.Sprintf("k%04d", i%7), strings.Repeat("v", i*80))
		if i%2 == 0 {
			cmd = txnCommand(Txn{Success: []Op{delOp("k0003", ""), putOp(cmd.Put.Key, string(cmd.Put.Value))}})
		}
		refused := asked.View().RefusesGrowth(&cmd)
		a, b := apply(asked, cmd)[0], apply(other, cmd)[0]
		quota := a.Err != nil && a.Err.Code == cluster.CodeQuotaExceeded
		if (refused != nil) != quota || (a.Err == nil) != (b.Err == nil) || a.Revision != b.Revision {
			t.Fatalf("%d: asked %v, applied %v and %v", i, refused, a, b)
		}
	}
	if a, b := snapshotOf(t, asked), snapshotOf(t, other); string(a) != string(b) {
		t.Error("the states differ")
	}
}
