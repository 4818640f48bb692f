package overlay

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWrite(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	put(t, filepath.Join(root, "a.go"), "one two three two\n")
	file, err := Write(dir, Set{Root: root, Edits: []Edit{{"a.go", "one", "1"}, {"a.go", "three two", "3 2"}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var overlay struct{ Replace map[string]string }
	if err := json.Unmarshal(b, &overlay); err != nil {
		t.Fatal(err)
	}
	changed, err := os.ReadFile(overlay.Replace[filepath.Join(root, "a.go")])
	if err != nil || string(changed) != "1 two 3 2\n" {
		t.Errorf("%q, %v in %s", changed, err, b)
	}
	if original, _ := os.ReadFile(filepath.Join(root, "a.go")); string(original) != "one two three two\n" {
		t.Errorf("the file itself was changed: %q", original)
	}
}

// What is not there exactly once is refused, with all that is wrong.
func TestWriteRefuses(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	put(t, filepath.Join(root, "a.go"), "one two two\n")
	_, err := Write(dir, Set{Root: root, Edits: []Edit{
		{"a.go", "two", "2"},
		{"a.go", "four", "4"},
		{"a.go", "one", "1"},
		{"b.go", "x", "y"},
	}})
	if err == nil {
		t.Fatal("written")
	}
	for _, want := range []string{`2 times, not once: "two"`, `0 times, not once: "four"`, "b.go"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %s:\n%v", want, err)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) > 0 {
		t.Errorf("%d files were written", len(files))
	}
}
