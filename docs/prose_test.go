package docs_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Bounds of the prose of a page.
const (
	maxMeanWords = 17  // words of a sentence, in the mean
	maxP90Words  = 25  // words of a sentence on a page for users, at the 90th percentile
	maxColumns   = 120 // columns of a line, outside of tables and code

	maxP90ForContributors = 28 // as maxP90Words, on a page for contributors
)

// retired are words that the project no longer uses; the page docs/concepts.md
// has those that replaced them.
var retired = regexp.MustCompile(`(?i)\b(reign|whoever|taken in|set aside|stands? for election|came to nothing|keeper|canary|begins anew)\b`)

// contributorPage reports whether a document is written for contributors. All others
// are for users of NorthStar.
func contributorPage(path string) bool {
	switch path {
	case "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/glossary.md", "docs/raft-hazards.md", "docs/testing.md",
		"docs/test-log.md", "docs/bugs-found.md", "docs/planted-bugs.md":
		return true
	}
	return strings.HasPrefix(path, "docs/decisions/") || strings.HasPrefix(path, "benchmarks/") ||
		strings.HasSuffix(path, "DESIGN.md")
}

// TestProse bounds the length of sentences and lines of every page.
func TestProse(t *testing.T) {
	users, contributors := 0, 0
	for _, d := range documents(t) {
		switch {
		case contributorPage(d.path):
			report(t, d.path, checkProse(d, maxP90ForContributors))
			contributors++
		default:
			report(t, d.path, checkProse(d, maxP90Words))
			users++
		}
	}
	if users < 20 || contributors < 30 {
		t.Errorf("found only %d pages for users and %d for contributors", users, contributors)
	}
}

// checkProse finds sentences and lines that are too long, and retired words.
func checkProse(d document, maxP90 int) (problems []string) {
	paragraphs, lines := d.prose()
	var counts []int
	total := 0
	for _, p := range paragraphs {
		for _, s := range sentences(p) {
			counts, total = append(counts, len(s)), total+len(s)
		}
		if word := retired.FindString(p); word != "" {
			problems = append(problems, fmt.Sprintf("uses the retired word %q", word))
		}
	}
	slices.Sort(counts)
	if n := len(counts); n > 0 {
		if mean := float64(total) / float64(n); mean > maxMeanWords {
			problems = append(problems, fmt.Sprintf("sentences have %.1f words in the mean, at most %d", mean,
				maxMeanWords))
		}
		if p90 := counts[n*9/10]; p90 > maxP90 {
			problems = append(problems, fmt.Sprintf("sentences have %d words at the 90th percentile, at most %d", p90,
				maxP90))
		}
	}
	for _, line := range lines {
		if n := len([]rune(line)); n > maxColumns {
			problems = append(problems, fmt.Sprintf("a line has %d columns, at most %d: %s", n, maxColumns, line))
		}
	}
	return problems
}

var (
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
	listItem   = regexp.MustCompile(`^(?:[-*]|\d+\.) +(.*)$`)
	label      = regexp.MustCompile(`^\*\*[^*]+\.\*\* ?`)
)

// prose returns the paragraphs and list items of a document, with inline code
// as one word and links as their text, and the lines that they consist of.
// Tables, headings, images and code are left out.
func (d document) prose() (paragraphs, lines []string) {
	var current []string
	flush := func() {
		if len(current) > 0 {
			text := inlineCode.ReplaceAllString(strings.Join(current, " "), "Code")
			text = linkTarget.ReplaceAllString(strings.ReplaceAll(text, "![", "["), "]")
			paragraphs = append(paragraphs, label.ReplaceAllString(text, ""))
			current = nil
		}
	}
	inCode := false
	for line := range strings.Lines(d.text) {
		line = strings.TrimRight(line, "\n")
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "```"):
			flush()
			inCode = !inCode
			continue
		case inCode:
			continue
		case text == "" || strings.ContainsAny(text[:1], "#|<") || strings.HasPrefix(text, "!["):
			flush()
			continue
		}
		lines = append(lines, line)
		if m := listItem.FindStringSubmatch(text); m != nil {
			flush()
			text = m[1]
		}
		current = append(current, text)
	}
	flush()
	return paragraphs, lines
}

// sentences splits a paragraph into sentences, each as its words.
func sentences(paragraph string) (all [][]string) {
	var current []string
	words := strings.Fields(paragraph)
	for i, word := range words {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			current = append(current, word)
		}
		ends := i == len(words)-1
		if stop := strings.TrimRight(word, `)"'*]`); !ends && strings.ContainsAny(stop[max(0, len(stop)-1):], ".!?") {
			next := []rune(strings.TrimLeft(words[i+1], `("'*[`))
			ends = len(next) > 0 && (unicode.IsUpper(next[0]) || unicode.IsDigit(next[0]))
		}
		if ends && len(current) > 0 {
			all, current = append(all, current), nil
		}
	}
	return all
}
