package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"northstar/api/problem"
)

// decodeJSON reads exactly one JSON object into v, and names an invalid field. Keys are compared exactly:
// encoding/json alone would accept "Zone" for "zone", and the last of two equal keys.
func decodeJSON(body []byte, v any) error {
	if !utf8.Valid(body) {
		return problem.BadRequest("body: not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := checkKeys(dec, reflect.TypeOf(v).Elem(), ""); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return problem.BadRequest("body: something follows the JSON object")
	}
	if err := json.Unmarshal(body, v); err != nil {
		return jsonProblem(err)
	}
	return nil
}

// checkKeys reads one object of type t, a struct or a map, at path. Each key must be known and occur once.
func checkKeys(dec *json.Decoder, t reflect.Type, path string) error {
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return problem.BadRequest("body: must be a JSON object")
	}
	known := jsonFields(t)
	seen := make(map[string]bool)
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return jsonProblem(err)
		}
		name, _ := tok.(string)
		field, ok := known[name]
		if t.Kind() == reflect.Map {
			field, ok = t.Elem(), true
		}
		if !ok {
			return problem.BadRequest("%s%s: unknown field", path, name)
		}
		if seen[name] {
			return problem.BadRequest("%s%s: given twice", path, name)
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return jsonProblem(err)
		}
		if err := checkNested(value, field, path+name); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return jsonProblem(err)
	}
	return nil
}

// checkNested checks the keys of the objects in one field. json.Unmarshal reports values of the wrong kind.
func checkNested(value json.RawMessage, t reflect.Type, path string) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case (t.Kind() == reflect.Struct || t.Kind() == reflect.Map) && value[0] == '{':
		return checkKeys(json.NewDecoder(bytes.NewReader(value)), t, path+".")
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct && value[0] == '[':
		var items []json.RawMessage
		if err := json.Unmarshal(value, &items); err != nil {
			return jsonProblem(err)
		}
		for i, item := range items {
			if err := checkNested(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// jsonFields returns the keys of a struct of apiv1, with their types. A map has none: it takes any key.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	if t.Kind() != reflect.Struct {
		return nil
	}
	fields := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields[name] = t.Field(i).Type
	}
	return fields
}

func jsonProblem(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) && typ.Field != "" {
		return problem.BadRequest("%s: must be %s (got a JSON %s)", typ.Field, jsonType(typ.Type), typ.Value)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return problem.BadRequest("body: %v", err)
}

func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "a boolean"
	case reflect.Slice:
		return "an array"
	case reflect.String:
		return "a string"
	}
	return "an object"
}
