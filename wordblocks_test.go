package northstar_test

import (
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWordsAcrossLines finds privateWords in comments, in the texts of programs, in documents, in test data, in the
// dashboard and in the Makefile, also where a line break divides a phrase.
func TestWordsAcrossLines(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("git", "ls-files", "*.go", "*.md", "api/dashboard/*.js", "api/dashboard/*.css",
		"api/dashboard/*.html", "Makefile", "*testdata*.txt", "*testdata*.golden").Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		text, err := os.ReadFile(path)
		if err != nil || path == "words_test.go" || path == "docs/glossary.md" {
			continue // a file may be removed and not committed yet
		}
		for _, b := range textBlocks(path, text) {
			for line, phrase := range b.privateWords() {
				t.Errorf("%s:%d: %q is not a word of the field", path, line, phrase)
			}
		}
	}
}

// textBlock is a paragraph, a comment, or string literals that are added: its lines, and the number of each.
type textBlock struct {
	lines   []string
	numbers []int
}

func (b *textBlock) add(number int, text string) {
	for i, line := range strings.Split(text, "\n") {
		b.lines = append(b.lines, strings.TrimSpace(blockMark.ReplaceAllString(line, "")))
		b.numbers = append(b.numbers, number+i)
	}
}

// privateWords returns the phrases of a block by the line in which each begins.
func (b *textBlock) privateWords() map[int]string {
	joined := withoutExceptions(strings.Join(b.lines, " "))
	found := map[int]string{}
	for _, at := range privateWords.FindAllStringIndex(joined, -1) {
		i, end := 0, len(b.lines[0])
		for ; end <= at[0]; i++ {
			end += 1 + len(b.lines[i+1])
		}
		found[b.numbers[i]] = joined[at[0]:at[1]]
	}
	return found
}

// withoutExceptions returns a text of the same length with spaces for wordExceptions.
func withoutExceptions(text string) string {
	return wordExceptions.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat(" ", len(s)) })
}

var (
	// blockMark is what begins a line of a comment, and no part of its text.
	blockMark = regexp.MustCompile(`^\s*(//|#+|/\*|\*) ?`)
	// itemMark begins a line of a document that does not continue the line before.
	itemMark = regexp.MustCompile(`^\s*(\||#|` + "```" + `|[-*] |\d+\. )`)
)

func textBlocks(path string, text []byte) []*textBlock {
	if filepath.Ext(path) == ".go" {
		return goBlocks(path, text)
	}
	var blocks []*textBlock
	document, code, last := filepath.Ext(path) == ".md", false, ""
	for i, line := range strings.Split(string(text), "\n") {
		if document && strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		if len(blocks) == 0 || strings.TrimSpace(last) == "" || document && (code || itemMark.MatchString(line)) {
			blocks = append(blocks, &textBlock{})
		}
		blocks[len(blocks)-1].add(i+1, line)
		last = line
	}
	return blocks
}

// goBlocks returns the comments of a Go file, and of a program its string literals, too.
func goBlocks(path string, text []byte) (blocks []*textBlock) {
	set := token.NewFileSet()
	file := set.AddFile(path, -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	last, before, line := token.ILLEGAL, token.ILLEGAL, 0 // the last two tokens, and the line in which the last ended
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return blocks
		}
		at := set.Position(pos).Line
		if tok == token.COMMENT || tok == token.STRING && !strings.HasSuffix(path, "_test.go") {
			continues := tok == token.COMMENT && last == token.COMMENT && at == line+1 ||
				tok == token.STRING && last == token.ADD && before == token.STRING
			if !continues {
				blocks = append(blocks, &textBlock{})
			}
			if tok == token.STRING {
				lit = strings.Trim(withoutExceptions(lit), "\"`")
			}
			blocks[len(blocks)-1].add(at, strings.TrimSpace(lit))
		}
		last, before, line = tok, last, at+strings.Count(lit, "\n")
	}
}

func TestTextBlocks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, text string
		line       int // 0: nothing is found
	}{
		"comment":            {"a.go", "package a\n\n// F does all at\n// once, and more.\nfunc F() {}\n", 3},
		"two comments":       {"a.go", "package a\n\n// F is at\n\n// once was\nfunc F() {}\n", 0},
		"comment in a block": {"a.go", "package a\n\n/* F does all at\n * once.\n */\nfunc F() {}\n", 3},
		"added literals":     {"a.go", "package a\n\nvar a = \"all at \" +\n\t\"once\"\n", 3},
		"other literals":     {"a.go", "package a\n\nvar a = []string{\"at\",\n\t\"once\"}\n", 0},
		"literals of a test": {"a_test.go", "package a\n\nvar a = \"all at \" +\n\t\"once\"\n", 0},
		"an exception":       {"a.go", "package a\n\nvar a = \"nobody\" + \"x\" // \"nobody\"\n", 0},
		"paragraph":          {"a.md", "# All\n\nIt does all\nat\nonce.\n", 4},
		"list":               {"a.md", "- It is at\n- once\n", 0},
		"item":               {"a.md", "1. It is\n2. at\n   once\n", 2},
		"code":               {"a.md", "```\nat\nonce\n```\n", 0},
		"script":             {"a.js", "// It does all at\n// once.\n", 1},
		"Makefile":           {"Makefile", "a: ## all\n\nb: ## 8 at once\n", 3},
	} {
		var lines []int
		for _, b := range textBlocks(c.path, []byte(c.text)) {
			for line := range b.privateWords() {
				lines = append(lines, line)
			}
		}
		if len(lines) > 1 || len(lines) == 1 != (c.line > 0) || len(lines) == 1 && lines[0] != c.line {
			t.Errorf("%s: found in the lines %v, want %d", name, lines, c.line)
		}
	}
}
