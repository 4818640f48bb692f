package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// manual is the head of a man page.
type manual struct {
	name, section, version string
	date                   time.Time
}

// helpPage is the help of a program or of a command, in its parts.
type helpPage struct {
	usage, text string
	flags       []helpEntry
	arguments   []helpEntry
	commands    []helpEntry
}

// helpEntry is a flag, an argument or a command with what the help says of it.
type helpEntry struct{ term, text string }

// entryStart begins an entry: its term, and its text after at least two spaces. Text goes on at a deeper indent.
var entryStart = regexp.MustCompile(`^ {2,6}(\S+(?: \S+)*)(?: {2,}(\S.*))?$`)

// parseHelp reads what kong prints for --help.
func parseHelp(help string) (p helpPage) {
	var section *[]helpEntry
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "Usage: "):
			p.usage = strings.TrimPrefix(line, "Usage: ")
		case line == "Flags:":
			section = &p.flags
		case line == "Arguments:":
			section = &p.arguments
		case line == "Commands:":
			section = &p.commands
		case trimmed == "" && section == nil && p.text != "":
			p.text += "\n"
		case trimmed == "" || strings.HasPrefix(line, `Run "`):
		case section == nil && strings.HasPrefix(line, "    "): // an example
			p.text += "\n" + trimmed
		case section == nil:
			p.text = strings.TrimLeft(p.text+" "+trimmed, " ")
		default:
			m := entryStart.FindStringSubmatch(line)
			if m != nil {
				*section = append(*section, helpEntry{m[1], m[2]})
			} else if n := len(*section); n > 0 {
				e := &(*section)[n-1]
				e.text = strings.TrimSpace(e.text + " " + trimmed)
			}
		}
	}
	return p
}

// manPage returns the man page of a program, from the help of it and of each of its commands.
func manPage(m manual, help func(args ...string) (string, error)) ([]byte, error) {
	text, err := help("--help")
	if err != nil {
		return nil, err
	}
	p := parseHelp(text)
	if p.usage == "" || len(p.commands) == 0 {
		return nil, fmt.Errorf("cannot read the help of %s", m.name)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s %s %s %q\n", strings.ToUpper(roff(m.name)), m.section, m.date.Format(time.DateOnly),
		"NorthStar "+m.version)
	first, _, _ := strings.Cut(p.text, ".")
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(m.name), roff(strings.ToLower(first[:1])+first[1:]))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n%s\n", roff(p.usage))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", paragraphs(p.text))
	b.WriteString(".SH OPTIONS\n")
	writeEntries(&b, p.flags)
	b.WriteString(".SH COMMANDS\n")
	common := map[string]bool{}
	for _, f := range p.flags {
		common[f.term] = true
	}
	for _, c := range p.commands {
		words, _, _ := strings.Cut(c.term, " (") // an alias
		text, err := help(append(strings.Fields(words), "--help")...)
		if err != nil {
			return nil, err
		}
		page := parseHelp(text)
		fmt.Fprintf(&b, ".SS %s\n%s\n.PP\n%s\n", roff(c.term), roff(page.usage), paragraphs(page.text))
		writeEntries(&b, page.arguments)
		for _, f := range page.flags {
			if !common[f.term] {
				writeEntries(&b, []helpEntry{f})
			}
		}
	}
	b.WriteString(".SH SEE ALSO\nnorthstarctl(1), northstar\\-node(8)\n")
	return b.Bytes(), nil
}

func writeEntries(b *bytes.Buffer, entries []helpEntry) {
	for _, e := range entries {
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(e.term), roff(e.text))
	}
}

func paragraphs(text string) string {
	return strings.ReplaceAll(roff(strings.TrimSpace(text)), "\n", "\n.PP\n")
}

var roffEscapes = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `"`, `\(dq`, `'`, `\(aq`)

// roff escapes a text, whose lines must not begin with a dot.
func roff(text string) string {
	lines := strings.Split(roffEscapes.Replace(text), "\n")
	for i, line := range lines {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, ".") {
			line = `\&` + line
		}
		lines[i] = line
	}
	return strings.Join(lines, "\n")
}
