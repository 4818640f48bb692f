package mutants

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"northstar/chaos/overlay"
)

var update = flag.Bool("update", false, "rewrite patches whose context has changed")

// context is the number of unchanged lines on either side of a change.
const context = 3

// refitAll writes each patch with the context and the line numbers of the sources below root.
func refitAll(t *testing.T, root string) {
	files, err := filepath.Glob("patches/*.patch")
	if err != nil || len(files) == 0 {
		t.Fatal("no patches", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		fitted, err := refit(root, string(text))
		if err == nil {
			err = os.WriteFile(file, []byte(fitted), 0o600)
		}
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// refit returns a patch with the context that its changes have in the sources now. The changed lines must be there as
// they were; of the context, lines may differ.
func refit(root, text string) (string, error) {
	head, diff, _ := strings.Cut(text, "\n\n")
	var b strings.Builder
	b.WriteString(head + "\n\n")
	var file string
	var source []string // its lines
	var from, grown int // the first line after the previous hunk; how many lines the hunks so far have added
	for _, h := range overlay.Hunks(diff) {
		if h.File != file {
			data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(h.File)))
			if err != nil {
				return "", err
			}
			file, source, from, grown = h.File, strings.SplitAfter(string(data), "\n"), 0, 0
			fmt.Fprintf(&b, "--- a/%s\n+++ b/%s\n", file, file)
		}
		at, change, err := locate(h, source)
		if err != nil {
			return "", err
		}
		removed, added := 0, 0
		for _, line := range change {
			if line[0] != '+' {
				removed++
			}
			if line[0] != '-' {
				added++
			}
		}
		begin, end := max(from, at-context), min(at+removed+context, len(source)-1)
		unchanged := end - begin - removed
		fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@\n", begin+1, removed+unchanged, begin+1+grown, added+unchanged)
		for _, line := range source[begin:at] {
			b.WriteString(" " + line)
		}
		b.WriteString(strings.Join(change, ""))
		for _, line := range source[at+removed : end] {
			b.WriteString(" " + line)
		}
		from, grown = end, grown+added-removed
	}
	return b.String(), nil
}

// locate finds the change of a hunk in a file's lines, with as much of its context as the file still has. The change
// begins and ends with a line that is removed or added.
func locate(h overlay.Hunk, source []string) (at int, change []string, err error) {
	before, after := 0, len(h.Lines)
	for h.Lines[before][0] == ' ' {
		before++
	}
	for h.Lines[after-1][0] == ' ' {
		after--
	}
	for lost := range before + len(h.Lines) - after + 1 {
		for first := max(0, lost-len(h.Lines)+after); first <= min(lost, before); first++ {
			old := overlay.Hunk{Lines: h.Lines[first : len(h.Lines)-lost+first]}.Edit().Old
			text := strings.Join(source, "")
			if old != "" && strings.Count(text, old) == 1 {
				return strings.Count(text[:strings.Index(text, old)], "\n") + before - first, h.Lines[before:after], nil
			}
		}
	}
	return 0, nil, fmt.Errorf("%s has the changed lines no more, or more than once: %q", h.File, h.Lines[before:after])
}

func TestRefit(t *testing.T) {
	root := t.TempDir()
	const head, files = "Mitigation: g\n\n", "--- a/x.go\n+++ b/x.go\n"
	if err := os.WriteFile(filepath.Join(root, "x.go"), []byte("0\nuno\ntwo\nthree\nfour\nfive\nsix\nnine\nend\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	got, err := refit(root, head+files+
		"@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n@@ -9,2 +9,3 @@\n eight\n nine\n+ten\n+eleven\n")
	want := head + files + "@@ -1,6 +1,6 @@\n 0\n uno\n-two\n+2\n three\n four\n five\n" +
		"@@ -7,3 +7,5 @@\n six\n nine\n+ten\n+eleven\n end\n"
	if err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	if _, err := refit(root, head+files+"@@ -1,3 +1,3 @@\n uno\n-zwei\n+2\n three\n"); err == nil {
		t.Error("a change of a line that is not there was fitted")
	}
}
