package stream_test

import (
	"strings"
	"testing"

	"northstar/api/stream"
)

func FuzzParseOffsets(f *testing.F) {
	for _, s := range []string{"n1=boot-1", "n2=b-z,n1=c-0", "n1=", "=", "n1=a,n1=b", strings.Repeat("n=1,", 2000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, seq string) {
		p, ok := stream.ParseOffsets(seq)
		if !ok {
			return
		}
		again, ok := stream.ParseOffsets(p.String())
		if !ok || again.String() != p.String() || again.Owner != p.Owner {
			t.Errorf("%q is read as %q", seq, p.String())
		}
	})
}
