// Package docs_test holds the documents and the files in deploy/ against what
// they speak of: the programs' own help, the declared metrics, the keys of the
// configuration, the modules in use. Each check is a function of a text that
// lists what is wrong with it; TestChecksCanFail shows each of them a mistake.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = ".."

// document is one Markdown file.
type document struct {
	path string // from the repository's root
	text string
}

// documents are the Markdown files at the root, in docs/ and in benchmarks/, and the
// design papers of packages.
func documents(t *testing.T) []document {
	t.Helper()
	var paths []string
	for _, pattern := range []string{
		"*.md", "docs/*.md", "docs/*/*.md", "benchmarks/*.md", "*/DESIGN.md",
		"*/*/DESIGN.md", "*/*/README.md",
	} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			rel, err := filepath.Rel(root, f)
			if err != nil {
				t.Fatal(err)
			}
			paths = append(paths, filepath.ToSlash(rel))
		}
	}
	docs := make([]document, 0, len(paths))
	for _, p := range paths {
		docs = append(docs, document{p, read(t, p)})
	}
	if len(docs) < 6 {
		t.Fatalf("found only %d documents", len(docs))
	}
	return docs
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// deployed are the files under deploy/.
func deployed(t *testing.T) []document {
	t.Helper()
	var docs []document
	err := filepath.WalkDir(filepath.Join(root, "deploy"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err == nil {
			docs = append(docs, document{filepath.ToSlash(rel), read(t, rel)})
		}
		return err
	})
	if err != nil || len(docs) < 4 {
		t.Fatalf("found %d files in deploy/, error %v", len(docs), err)
	}
	return docs
}

// block is a fenced block of a document.
type block struct {
	lang string
	text string
}

var inlineCode = regexp.MustCompile("`([^`\n]+)`")

// code splits a document into its fenced blocks and its pieces of inline code.
func (d document) code() (blocks []block, inline []string) {
	var prose strings.Builder
	var open *block
	for line := range strings.Lines(d.text) {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```") && open == nil:
			open = &block{lang: strings.TrimPrefix(trimmed, "```")}
		case strings.HasPrefix(trimmed, "```"):
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line
		default:
			prose.WriteString(line)
		}
	}
	for _, m := range inlineCode.FindAllStringSubmatch(prose.String(), -1) {
		inline = append(inline, m[1])
	}
	return blocks, inline
}

// commandLines are the shell commands of a block: all of a script, what follows
// the prompt in a session, nothing in anything else. Lines that a backslash
// continues are joined.
func (b block) commandLines() []string {
	var lines []string
	session := b.lang == "console"
	if !session && b.lang != "sh" && b.lang != "bash" {
		return nil
	}
	goesOn := false
	for line := range strings.Lines(b.text) {
		line = strings.TrimSpace(line)
		prompt := strings.HasPrefix(line, "$ ")
		if session && !prompt && !goesOn {
			continue
		}
		if prompt {
			line = line[2:]
		}
		more := strings.HasSuffix(line, `\`)
		line = strings.TrimSuffix(line, `\`)
		if goesOn {
			lines[len(lines)-1] += " " + line
		} else {
			lines = append(lines, line)
		}
		goesOn = more
	}
	return lines
}

func report(t *testing.T, where string, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Errorf("%s: %s", where, p)
	}
}

// TestReadmeBeginsWithTheTwoCommands: the first two shell blocks are what a
// newcomer, and .ci/run, execute from a fresh clone.
func TestReadmeBeginsWithTheTwoCommands(t *testing.T) {
	report(t, "README.md", checkTwoCommands(document{"README.md", read(t, "README.md")}))
}

func checkTwoCommands(d document) (problems []string) {
	blocks, _ := d.code()
	want := []block{{"sh", "make demo\n"}, {"sh", "make test\n"}}
	if len(blocks) < 2 || !slices.Equal(blocks[:2], want) {
		problems = append(problems, "the first two blocks must be exactly the shell commands make demo and make test")
	}
	return problems
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
)

func TestLinks(t *testing.T) {
	for _, d := range documents(t) {
		report(t, d.path, checkLinks(d))
	}
}

// checkLinks finds relative links that lead nowhere.
func checkLinks(d document) (problems []string) {
	for _, m := range link.FindAllStringSubmatch(d.text, -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		file, anchor, _ := strings.Cut(m[1], "#")
		target := d.path
		if file != "" {
			target = filepath.ToSlash(filepath.Join(filepath.Dir(d.path), file))
		}
		b, err := os.ReadFile(filepath.Join(root, target))
		if err != nil {
			if _, dirErr := os.ReadDir(filepath.Join(root, target)); dirErr != nil {
				problems = append(problems, "link "+m[1]+" leads nowhere")
			}
			continue
		}
		if anchor != "" && !slices.Contains(anchors(string(b)), anchor) {
			problems = append(problems, "link "+m[1]+": there is no such heading")
		}
	}
	return problems
}

// anchors are the headings of a text as GitHub names them in links.
func anchors(text string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(strings.TrimSpace(m[1])) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-', r == '_', r >= 'a' && r <= 'z', r >= '0' && r <= '9':
				b.WriteRune(r)
			}
		}
		all = append(all, b.String())
	}
	return all
}
