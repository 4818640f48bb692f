package northstar_test

import (
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// privateWords are words and phrases that this project once used in a sense of its own. docs/glossary.md has the
// standard term for each. They are kept out of comments, documents and the texts of programs.
var privateWords = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	`reigns?`, `candidatures?`, `unbar(red)?`, `warrant(ed)?`, `mandates?`, `sightings?`, `recants?`, `vouch(es|ed)?`,
	`outcasts?`, `good ?word`, `canary`, `canaries`, `buried`, `burial`, `hushed`, `outdone`, `summons?`, `whoever`,
	`whatever`, `lately`, `anew`, `all the same`, `as a rule`, `says? whether`, `tells? whether`, `taken in( again)?`,
	`on record`, `goes by`, `go by`, `comes of it`, `came of it`, `told to stand`, `stands? (again )?for election`,
	`stood for election`, `standing for election`, `may stand`, `must not stand`, `by order`, `the leader before`,
	`at once`, `for good`, `for one\b[,;.]`, `somebody`, `nobody`, `keeper`, `parted`,
	`holds good`, `in vain`, `of its own accord`, `begins? anew`, `not any more`, `leads no more`,
}, "|") + `)\b`)

// privateNames are words of that kind that no identifier contains.
var privateNames = regexp.MustCompile(`^(` + strings.Join([]string{
	`reigns?`, `candidatures?`, `unbar`, `warrant`, `mandates?`, `sightings?`, `recants?`, `vouch`, `outcasts?`,
	`canary`, `canaries`, `buried`, `burial`, `hushed`, `outdone`, `summons?`, `riders?`, `deaf`, `doubled`, `anew`,
	`lately`, `told`, `stood`, `stands?`, `keepers?`, `parted`, `patience`, `barred`, `muted`, `judges?`, `nobody`,
	`somebody`, `whoever`, `worlds?`,
}, "|") + `)$`)

// privatePhrases are phrases of that kind that no identifier contains.
var privatePhrases = regexp.MustCompile(`[aA]tOnce|[fF]orGood`)

// nameWords splits an identifier.
var nameWords = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// docVerbs are the verbs with which a Go doc comment does not begin: a function "returns" or "reports whether".
var docVerbs = regexp.MustCompile(`^// [\w.]+ (gives|tells|says) `)

// wordExceptions are the words above where they are names on the wire, in files, or of the library, a text that the
// replicated state keeps (state/storedtexts_test.go), a user of the operating system, or a name in an example.
var wordExceptions = regexp.MustCompile(`json:"[^"]*"|canary_port|"parted"|` + "`parted`" + `|"barred"|` + "`barred`" +
	`|"not told to stand"|"role: nobody holds %q"|"/?nobody"`)

// TestWordsOfTheField finds them in identifiers. TestWordsAcrossLines reads the texts.
func TestWordsOfTheField(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("git", "ls-files", "*.go").Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		text, err := os.ReadFile(path)
		if err != nil || path == "words_test.go" {
			continue // a file may be removed and not committed yet
		}
		for _, c := range texts(t, path, text) {
			switch {
			case c.kind == token.IDENT:
				checkName(t, path, c)
			case c.kind == token.COMMENT && docVerbs.MatchString(c.text):
				t.Errorf("%s:%d: say \"returns\" or \"reports whether\": %s", path, c.line, c.text)
			}
		}
	}
}

func checkName(t *testing.T, path string, name fileText) {
	if found := privatePhrases.FindString(name.text); found != "" {
		t.Errorf("%s:%d: %q in %q is not a phrase of the field", path, name.line, found, name.text)
	}
	for _, word := range nameWords.FindAllString(name.text, -1) {
		if privateNames.MatchString(strings.ToLower(word)) {
			t.Errorf("%s:%d: %q in %q is not a word of the field", path, name.line, word, name.text)
		}
	}
}

// fileText is an identifier, or a line of a comment or of a string literal.
type fileText struct {
	kind token.Token
	line int
	text string
	raw  bool // part of a string literal between backquotes
}

// texts returns the identifiers of a Go file and each line of its comments and string literals.
func texts(t *testing.T, path string, text []byte) []fileText {
	t.Helper()
	if _, err := parser.ParseFile(token.NewFileSet(), path, text, parser.PackageClauseOnly); err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	file := set.AddFile(path, -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	var found []fileText
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return found
		}
		if tok == token.COMMENT || tok == token.STRING || tok == token.IDENT {
			for i, line := range strings.Split(lit, "\n") {
				found = append(found, fileText{tok, set.Position(pos).Line + i, line, strings.HasPrefix(lit, "`")})
			}
		}
	}
}
