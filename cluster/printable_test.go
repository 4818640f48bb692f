package cluster

import "testing"

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"worker-a:9000 \\ \"ä\"":    "worker-a:9000 \\ \"ä\"",
		"a\nnode n1 leads":          `a\nnode n1 leads`,
		"\x1b[2Jempty":              `\x1b[2Jempty`,
		"\x1b]0;title\a \"quoted\"": `\x1b]0;title\a "quoted"`,
		"\u009b1m":                  `\u009b1m`,
		"user\u202etxt":             `user\u202etxt`,
		"\xff":                      `\xff`,
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
