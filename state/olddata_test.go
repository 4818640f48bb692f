package state

import (
	"compress/gzip"
	"net/http"
	"os"
	"testing"

	"northstar/cluster"
)

// Idempotency keys that the build before has recorded are known for the rest of their time. The state's time decides:
// it stands still in the backup.
func TestIdempotencyKeyOfTheBuildBefore(t *testing.T) {
	t.Parallel()
	f, err := os.Open("../node/testdata/f89d65c/backup.snapshot.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{})
	if _, err := s.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	c := withIdempotency(put("old/idempotent", "another"), "loopback\nonce", "another")
	c.Now = s.View().Time().UnixNano()
	result := apply(s, c)
	if e := result[0].Err; e == nil || e.Code != cluster.CodeBadRequest || e.Status != http.StatusUnprocessableEntity {
		t.Errorf("another request under a recorded idempotency key: %+v", result)
	}
}
