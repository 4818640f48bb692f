package node

import (
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Key is one key of Config with its names in file, environment and flags.
type Key struct {
	Name    string // in the file: section.key
	Flag    string // without the dashes
	Env     string
	Default string // "" when there is none
	Help    string
	kind    reflect.Kind // of the field, in the file: Bool, Int, Slice, or String for all text forms
	secret  bool
}

// Keys lists all keys in the order of Config's fields.
func Keys() []Key { return keys() }

var keys = sync.OnceValue(func() []Key { return collectKeys(reflect.TypeFor[Config](), "") })

func collectKeys(t reflect.Type, section string) []Key {
	var all []Key
	for i := range t.NumField() {
		f := t.Field(i)
		if prefix, ok := f.Tag.Lookup("prefix"); ok {
			all = append(all, collectKeys(f.Type, strings.TrimSuffix(prefix, "-"))...)
			continue
		}
		name, ok := f.Tag.Lookup("name")
		if !ok {
			continue
		}
		if section != "" {
			name = section + "." + name
		}
		key := Key{
			Name: name, Default: f.Tag.Get("default"), Help: f.Tag.Get("help"), kind: fileKind(f.Type),
			secret: strings.HasSuffix(name, "token") || name == keyExternalLock,
		}
		key.Flag = strings.ReplaceAll(name, ".", "-")
		key.Env = "NORTHSTAR_" + strings.ToUpper(strings.ReplaceAll(key.Flag, "-", "_"))
		if key.kind == reflect.Bool && key.Default == "" {
			key.Default = "false"
		}
		all = append(all, key)
	}
	return all
}

// fileKind returns how the file writes a field: durations, sizes and other values with a unit are text.
func fileKind(t reflect.Type) reflect.Kind {
	switch {
	case t.PkgPath() != "" && t.Kind() != reflect.Slice:
		return reflect.String
	case t.Kind() == reflect.Int, t.Kind() == reflect.Uint64:
		return reflect.Int
	}
	return t.Kind()
}

func keyOfFlag(flag string) (Key, bool) {
	for _, k := range keys() {
		if k.Flag == flag {
			return k, true
		}
	}
	return Key{}, false
}

// show returns a value as it may be printed.
func (k Key) show(value string) string {
	switch {
	case k.secret && value != "":
		return "(secret)"
	case k.kind == reflect.Int, k.kind == reflect.Bool:
		return value
	}
	return strconv.Quote(value)
}
