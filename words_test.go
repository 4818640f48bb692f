package northstar_test

import (
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// privateWords are words and phrases that this project once used in a sense of its own. docs/glossary.md has the
// standard term for each. They are kept out of comments and documents.
var privateWords = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	`reigns?`, `candidatures?`, `unbar(red)?`, `warrant(ed)?`, `mandates?`, `sightings?`, `recants?`, `vouch(es|ed)?`,
	`outcasts?`, `good ?word`, `canary`, `canaries`, `buried`, `burial`, `hushed`, `outdone`, `summons?`, `whoever`,
	`whatever`, `lately`, `anew`, `all the same`, `as a rule`, `says? whether`, `tells? whether`, `taken in( again)?`,
	`on record`, `goes by`, `go by`, `comes of it`, `came of it`, `told to stand`, `stands? (again )?for election`,
	`stood for election`, `standing for election`, `may stand`, `must not stand`, `by order`, `the leader before`,
	`at once`, `for good`, `for one\b[,;.]`, `somebody`, `nobody`, `keeper`, `parted`,
	`holds good`, `in vain`, `of its own accord`, `begins? anew`, `not any more`, `leads no more`,
}, "|") + `)\b`)

// docVerbs are the verbs with which a Go doc comment does not begin: a function "returns" or "reports whether".
var docVerbs = regexp.MustCompile(`^// [\w.]+ (gives|tells|says) `)

// wordExceptions are the words above where they are names on the wire, in files, or of the library.
var wordExceptions = regexp.MustCompile(`canary_port|"parted"|` + "`parted`" + `|"barred"|` + "`barred`")

func TestWordsOfTheField(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*.go", "*.md").Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // removed and not committed yet
		}
		if path == "words_test.go" || path == "docs/glossary.md" {
			continue
		}
		if filepath.Ext(path) == ".md" {
			for i, line := range strings.Split(string(text), "\n") {
				checkWords(t, path, i+1, line)
			}
			continue
		}
		for _, c := range comments(t, path, text) {
			checkWords(t, path, c.line, c.text)
			if docVerbs.MatchString(c.text) {
				t.Errorf("%s:%d: say \"returns\" or \"reports whether\": %s", path, c.line, c.text)
			}
		}
	}
}

func checkWords(t *testing.T, path string, line int, text string) {
	if found := privateWords.FindString(wordExceptions.ReplaceAllString(text, "")); found != "" {
		t.Errorf("%s:%d: %q is not a word of the field: %s", path, line, found, strings.TrimSpace(text))
	}
}

type comment struct {
	line int
	text string
}

// comments returns each line of the comments of a Go file.
func comments(t *testing.T, path string, text []byte) []comment {
	t.Helper()
	if _, err := parser.ParseFile(token.NewFileSet(), path, text, parser.PackageClauseOnly); err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	file := set.AddFile(path, -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	var found []comment
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return found
		}
		if tok == token.COMMENT {
			for i, line := range strings.Split(lit, "\n") {
				found = append(found, comment{set.Position(pos).Line + i, line})
			}
		}
	}
}
