package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Each condition of a write reaches the node. Revision 0 is that of a missing key, as the API reports it.
func TestKV_Conditions(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{ // If-Match and If-None-Match
		"put app/config v":                                "/",
		"put app/config v --if-revision 7":                `"7"/`,
		"put app/config v --if-revision 0":                "/*",
		"put app/config v --if-absent":                    "/*",
		"put app/config v --if-present":                   "*/",
		"put app/config v --if-revision 0 --if-absent":    "",
		"put app/config v --if-revision 0 --if-present":   "",
		"put app/config v --if-revision 7 --if-absent":    "",
		"put app/config v --if-absent --if-present":       "",
		"del app/config --if-revision 7":                  `"7"/`,
		"del app/config --if-revision 0":                  "",
		"del app/config --if-revision 7 --if-present":     "",
		"del app/config --if-revision 7 --fence r=0":      `"7"/`,
		"put app/config v --if-revision -1":               "",
		"put app/config v --if-revision 1 --if-revision=": "",
	} {
		s := &server{}
		got := ""
		s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				got = r.Header.Get("If-Match") + "/" + r.Header.Get("If-None-Match")
			}
			s.serve(w, r)
		}))
		t.Cleanup(s.Close)
		code, _, stderr := ctl(t, s, "", append([]string{"--timeout", "1m", "kv"}, strings.Fields(args)...)...)
		if wanted := want != ""; got != want || (code == exitDone) != wanted || (code == exitUsage) == wanted {
			t.Errorf("%s: sent %q, want %q, exit %d: %s", args, got, want, code, stderr)
		}
	}
}
