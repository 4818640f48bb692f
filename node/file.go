package node

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// maxFileBytes limits the size of the configuration file.
const maxFileBytes = 1 << 20

// readFile reads a TOML file, "" for none. The errors list every unknown key and wrong type, in line order.
func readFile(name string) (*file, []error) {
	f := &file{name: name, values: map[string]fileValue{}}
	if name == "" {
		return f, nil
	}
	data, err := os.ReadFile(name)
	if err == nil && len(data) > maxFileBytes {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxFileBytes)
	}
	if err != nil {
		f.broken = true
		return f, []error{&Problem{Key: "config", Message: err.Error()}}
	}
	tree := map[string]any{}
	if err := toml.Unmarshal(data, &tree); err != nil {
		f.broken = true
		var decode *toml.DecodeError
		if errors.As(err, &decode) {
			line, column := decode.Position()
			return f, []error{&Problem{
				Message: fmt.Sprintf("%s, column %d", strings.TrimPrefix(err.Error(), "toml: "), column),
				Source:  f.source(line),
			}}
		}
		return f, []error{&Problem{Key: "config", Value: strconv.Quote(name), Message: err.Error()}}
	}
	r := fileReader{file: f, lines: linesOf(data), known: map[string]Key{}, sections: map[string]bool{}}
	for _, k := range Keys() {
		r.known[k.Name] = k
		for i, c := range k.Name {
			if c == '.' {
				r.sections[k.Name[:i]] = true
			}
		}
	}
	r.take(tree, "")
	slices.SortStableFunc(r.problems, func(a, b *Problem) int { return cmp.Compare(a.line, b.line) })
	errs := make([]error, len(r.problems))
	for i, p := range r.problems {
		errs[i] = p
	}
	return f, errs
}

type fileReader struct {
	file     *file
	lines    map[string]int
	known    map[string]Key
	sections map[string]bool
	problems []*Problem
}

func (r *fileReader) take(tree map[string]any, section string) {
	for name, value := range tree {
		full := name
		if section != "" {
			full = section + "." + name
		}
		table, isTable := value.(map[string]any)
		key, known := r.known[full]
		switch {
		case isTable && r.sections[full]:
			r.take(table, full)
		case !known:
			r.problem(full, "", "unknown key")
		default:
			text, ok := key.text(value)
			if !ok {
				r.problem(full, key.show(fmt.Sprint(value)), "must be "+key.expectedValues())
				continue
			}
			r.file.values[full] = fileValue{text: text, line: r.lines[full]}
		}
	}
}

func (r *fileReader) problem(key, value, message string) {
	line := r.lines[key]
	r.problems = append(r.problems, &Problem{
		Key: key, Value: value, Source: r.file.source(line), Message: message, line: line,
	})
}

// text returns the value of a key as a flag would have it, and false if the type is wrong.
func (k Key) text(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, k.kind == reflect.String || k.kind == reflect.Slice
	case int64:
		return strconv.FormatInt(v, 10), k.kind == reflect.Int
	case bool:
		return strconv.FormatBool(v), k.kind == reflect.Bool
	case []any:
		parts := make([]string, len(v))
		for i, item := range v {
			s, ok := item.(string)
			if !ok {
				return "", false
			}
			parts[i] = s
		}
		if k.Name == "failover.zones" { // no other list has commas in its elements
			return kong.JoinEscaped(parts, ','), true
		}
		return strings.Join(parts, ","), k.kind == reflect.Slice
	}
	return "", false
}

func (k Key) expectedValues() string {
	switch k.kind {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number, without quotes"
	case reflect.Slice:
		return "a string, or an array of strings"
	}
	return "a string, in quotes"
}

// linesOf returns the line of each key and table of a valid TOML document.
func linesOf(data []byte) map[string]int {
	lines := map[string]int{}
	var p unstable.Parser
	p.Reset(data)
	section := ""
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			section = keyLine(&p, e, "", lines)
		case unstable.KeyValue:
			keyLines(&p, e, section, lines)
		}
	}
	return lines
}

// keyLines records the line of a key, and of those in its inline table.
func keyLines(p *unstable.Parser, e *unstable.Node, section string, lines map[string]int) {
	full := keyLine(p, e, section, lines)
	if e.Value().Kind != unstable.InlineTable {
		return
	}
	for it := e.Value().Children(); it.Next(); {
		keyLines(p, it.Node(), full, lines)
	}
}

// keyLine records the line of a dotted key and of each of its prefixes, and returns its full name.
func keyLine(p *unstable.Parser, e *unstable.Node, section string, lines map[string]int) string {
	full := section
	for it := e.Key(); it.Next(); {
		if full != "" {
			full += "."
		}
		full += string(it.Node().Data)
		if _, ok := lines[full]; !ok {
			lines[full] = p.Shape(it.Node().Raw).Start.Line
		}
	}
	return full
}
