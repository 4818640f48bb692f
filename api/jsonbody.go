package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"
)

// decodeJSON reads exactly one JSON object into v, and names the field that is
// wrong. Keys are matched exactly: encoding/json alone would take "Zone" for
// "zone", and the last of two equal keys.
func decodeJSON(body []byte, v any) error {
	if !utf8.Valid(body) {
		return badRequest("body: not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := checkKeys(dec, jsonNames(reflect.TypeOf(v).Elem())); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return badRequest("body: something follows the JSON object")
	}
	if err := json.Unmarshal(body, v); err != nil {
		return jsonProblem(err)
	}
	return nil
}

// checkKeys reads one object and checks its keys: known, and each once.
func checkKeys(dec *json.Decoder, known map[string]bool) error {
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return badRequest("body: want a JSON object")
	}
	seen := make(map[string]bool)
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return jsonProblem(err)
		}
		name, _ := t.(string)
		if !known[name] {
			return badRequest("%s: unknown field", name)
		}
		if seen[name] {
			return badRequest("%s: given twice", name)
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return jsonProblem(err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return jsonProblem(err)
	}
	return nil
}

// jsonNames gives the keys of a struct of apiv1.
func jsonNames(t reflect.Type) map[string]bool {
	names := make(map[string]bool, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names[name] = true
	}
	return names
}

// jsonProblem says which field of a body is wrong.
func jsonProblem(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) && typ.Field != "" {
		return badRequest("%s: want %s, got a JSON %s", typ.Field, jsonType(typ.Type.String()), typ.Value)
	}
	return badRequest("body: %v", err)
}

func jsonType(goType string) string {
	switch {
	case strings.Contains(goType, "int"):
		return "an integer"
	case strings.Contains(goType, "bool"):
		return "a boolean"
	case strings.Contains(goType, "[]"):
		return "an array"
	case strings.Contains(goType, "string"):
		return "a string"
	}
	return "an object"
}
