package cluster

import (
	"strconv"
	"strings"
	"unicode"
)

// Printable returns a text that a client has chosen as a log or a terminal may get it: on one line, with what is not
// graphic as in a Go string.
func Printable(text string) string {
	invisible := func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }
	if strings.IndexFunc(text, invisible) < 0 {
		return text
	}
	quoted := strconv.QuoteToGraphic(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
