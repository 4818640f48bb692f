package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/mattn/go-isatty"
	"go.yaml.in/yaml/v3"

	"northstar/cluster"
)

// printResult prints a result: as JSON or YAML, or with text.
func (a *app) printResult(v any, people func() error) error {
	switch a.Output {
	case "yaml":
		doc, err := toYAML(v)
		if err != nil {
			return err
		}
		return a.printf("%s", doc)
	case "table":
		return people()
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	return a.printf("%s", escapeControls(out.Bytes()))
}

// escapeControls escapes in a JSON text what the encoder leaves and a terminal takes for a command or YAML does not
// allow: U+007F to U+009F, U+FFFE and U+FFFF. A client may have chosen the text.
func escapeControls(text []byte) []byte {
	unsafe := func(r rune) bool { return r >= 0x7f && r <= 0x9f || r == 0xfffe || r == 0xffff }
	if bytes.IndexFunc(text, unsafe) < 0 {
		return text
	}
	var out bytes.Buffer
	for _, r := range string(text) {
		if unsafe(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.Bytes()
}

// marshal returns the JSON form of a value, on one line.
func marshal(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return escapeControls(text), err
}

// printf prints text on stdout.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.stdout, format, args...)
	return err
}

// printItem prints item i, from 0, of a streamed array.
func (a *app) printItem(i int, v any) error {
	text, err := marshal(v)
	if err != nil {
		return err
	}
	return a.printf("%s%s", []string{"[\n", ",\n"}[min(i, 1)], text)
}

// closeArray ends the array of n items of printItem.
func (a *app) closeArray(n int) error {
	return a.printf("%s", []string{"[]\n", "\n]\n"}[min(n, 1)])
}

// printStreamed prints one of many results: one line of JSON, or one YAML document.
func (a *app) printStreamed(v any) error {
	if a.Output == "json" {
		return a.printJSONLine(v)
	}
	doc, err := toYAML(v)
	if err != nil {
		return err
	}
	return a.printf("---\n%s", doc)
}

// toYAML returns the JSON form of a value as YAML: the same names and order. JSON is YAML, in another style.
func toYAML(v any) ([]byte, error) {
	data, err := marshal(v)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	setBlockStyle(&doc)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func setBlockStyle(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		setBlockStyle(child)
	}
}

// printJSONLine prints one of many results as one line of JSON.
func (a *app) printJSONLine(v any) error {
	text, err := marshal(v)
	if err != nil {
		return err
	}
	return a.printf("%s\n", text)
}

// tableOf prints a table with one row for each item.
func tableOf[T any](a *app, header []string, items []T, row func(T) []any) error {
	rows := make([][]any, len(items))
	for i, item := range items {
		rows[i] = row(item)
	}
	return a.table(header, rows)
}

// table prints rows under a header, without borders.
func (a *app) table(header []string, rows [][]any) error {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatUpper
	t.SetStyle(style)
	head := make(table.Row, len(header))
	for i, h := range header {
		head[i] = h
	}
	t.AppendHeader(head)
	for _, r := range rows {
		row := make(table.Row, len(r))
		for i, cell := range r {
			row[i] = safe(cell)
		}
		t.AppendRow(row)
	}
	for line := range strings.Lines(t.Render() + "\n") {
		if _, err := fmt.Fprintln(a.stdout, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// ownColour matches a text with the codes of colour around it.
var ownColour = regexp.MustCompile(`(?s)^(\x1b\[3[0-9]m)(.*)(\x1b\[0m)$`)

// safe returns a cell of a table as a terminal may get it. A client may have chosen the text.
func safe(cell any) any {
	s, ok := cell.(string)
	if !ok {
		return cell
	}
	if m := ownColour.FindStringSubmatch(s); m != nil {
		return m[1] + cluster.Printable(m[2]) + m[3]
	}
	return cluster.Printable(s)
}

// colour colours s if stdout is a terminal.
func (a *app) colour(c text.Color, s string) string {
	if !terminal(a.stdout) || os.Getenv("NO_COLOR") != "" {
		return s
	}
	return text.Colors{c}.Sprint(s)
}

var colours = map[string]text.Color{
	"ok": text.FgGreen, "low": text.FgGreen, "unreachable": text.FgYellow, "medium": text.FgYellow,
}

// paint colours a verdict or a risk: red by default.
func (a *app) paint(word string) string { return a.colour(cmp.Or(colours[word], text.FgRed), word) }

func terminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// progressDelay is how long an operation may take before a progress line.
const progressDelay = time.Second

// progress prints the running operation on stderr after progressDelay: on a terminal as a line with a counter,
// which it erases at the end, else once. The returned function ends it.
func (a *app) progress(what string) func() {
	start := time.Now()
	stop := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		tick := time.NewTicker(progressDelay)
		defer tick.Stop()
		for shown := false; ; {
			select {
			case <-stop:
				if shown && terminal(a.stderr) {
					fmt.Fprint(a.stderr, "\r\x1b[K")
				}
				return
			case <-tick.C:
				if terminal(a.stderr) {
					fmt.Fprintf(a.stderr, "\r\x1b[K%s … %d s", what, int(time.Since(start).Seconds()))
				} else if !shown {
					fmt.Fprintln(a.stderr, what+" …")
				}
				shown = true
			}
		}
	})
	return sync.OnceFunc(func() { close(stop); ended.Wait() })
}

var errNotConfirmed = errors.New("aborted: not confirmed")

// confirm asks before an operation that can lose data.
func (a *app) confirm(format string, args ...any) error {
	if a.Yes {
		return nil
	}
	fmt.Fprintf(a.stderr, format+" Continue? [y/N] ", args...)
	line, err := bufio.NewReader(io.LimitReader(a.input(), 1024)).ReadString('\n')
	if err != nil {
		fmt.Fprintln(a.stderr)
	}
	if a.ctx.Err() != nil {
		return errNotConfirmed
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return errNotConfirmed
}

// input returns stdin. Reading ends with the command's context: Ctrl-C ends a command that waits for input, too.
func (a *app) input() io.Reader { return interruptible{a.ctx, a.stdin} }

// interruptible is a reader whose Read returns when ctx ends. What arrives later is lost.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(p []byte) (int, error) {
	var n int
	var err error
	data, ended := make([]byte, len(p)), make(chan struct{})
	go func() { defer close(ended); n, err = i.r.Read(data) }()
	select {
	case <-ended:
		return copy(p, data[:n]), err
	case <-i.ctx.Done():
		return 0, context.Cause(i.ctx)
	}
}

func orDash(s string) string { return cmp.Or(s, "-") }

// formatTime returns a time as the tables have it.
func formatTime(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05.000Z")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func ms(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprintf("%d ms", *n)
}
