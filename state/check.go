package state

import (
	"net/http"
	"unicode/utf8"

	"northstar/cluster"
)

// badRequest returns the error of a command with an invalid field. The text begins with the name of the field.
func badRequest(format string, args ...any) *cluster.Error {
	return cluster.Errorf(cluster.CodeBadRequest, format, args...)
}

// withStatus sets the HTTP status of an error that does not have the usual status of its code.
func withStatus(status int, err *cluster.Error) *cluster.Error {
	err.Status = status
	return err
}

// notFound returns a bad request with status 404.
func notFound(format string, args ...any) *cluster.Error {
	return withStatus(http.StatusNotFound, badRequest(format, args...))
}

func firstError(errs ...*cluster.Error) *cluster.Error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkEach returns the first error that check returns for an element.
func checkEach[T any](list []T, check func(T) *cluster.Error) *cluster.Error {
	for _, v := range list {
		if err := check(v); err != nil {
			return err
		}
	}
	return nil
}

// checkRange checks a number or the length of a list.
func checkRange(field string, n, least, most int) *cluster.Error {
	if n < least || n > most {
		return badRequest("%s: must be %d to %d (got %d)", field, least, most, n)
	}
	return nil
}

// checkBytes checks the length of a text that is not empty.
func checkBytes(field, text string, most int) *cluster.Error {
	if n := len(text); n < 1 || n > most {
		return badRequest("%s: must be 1 to %d bytes (got %d)", field, most, n)
	}
	return nil
}

func checkUTF8(field, text string, most int) *cluster.Error {
	if len(text) > most || !utf8.ValidString(text) {
		return badRequest("%s: must be at most %d bytes of UTF-8 (got %d bytes)", field, most, len(text))
	}
	return nil
}

func checkText(field, text string) *cluster.Error { return checkUTF8(field, text, maxText) }

func checkNode(field string, id cluster.NodeID) *cluster.Error {
	if _, err := cluster.ParseNodeID(string(id)); err != nil {
		return badRequest("%s: %w", field, err)
	}
	return nil
}

// CheckKey checks a key: 1 to MaxKey bytes of UTF-8.
func CheckKey(key string) *cluster.Error {
	return firstError(checkBytes("key", key, MaxKey), checkUTF8("key", key, MaxKey))
}

// CheckSession checks the form of a session ID in the named field.
func CheckSession(field, id string) *cluster.Error { return checkBytes(field, id, MaxSession) }
