package main

import (
	"errors"
	"fmt"
	"strings"

	"northstar/client"
	"northstar/cluster"
)

// Exit codes; the contract defines them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNoLeader    = 3
	exitRefused     = 4
	exitUnknown     = 5
	exitMissing     = 6
	exitCondition   = 7
	exitUnreachable = 8
)

// usageError is an invalid command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// notFoundError is that of something that a command looked for and did not find, such as the election of a term.
type notFoundError struct{ error }

// report prints an error as one line and returns the exit code.
func (a *app) report(err error) int {
	err = a.explainUnreachable(err)
	var ended *commandError
	if err == nil || (errors.As(err, &ended) && ended.text == "") {
		return exitCode(err)
	}
	line := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " ")
	fmt.Fprintln(a.stderr, "northstarctl: "+cluster.Printable(line))
	return exitCode(err)
}

func exitCode(err error) int {
	var usage *usageError
	var ended *commandError
	var unreachable *unreachableError
	var missing *notFoundError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &ended):
		return ended.code
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &unreachable):
		return exitUnreachable
	case errors.Is(err, client.ErrOutcomeUnknown):
		return exitUnknown
	case cluster.IsCode(err, cluster.CodeUnauthenticated), cluster.IsCode(err, cluster.CodeForbidden):
		return exitRefused
	case errors.Is(err, client.ErrNoLeader):
		return exitNoLeader
	case errors.As(err, &missing), errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrSessionEnded):
		return exitMissing
	case errors.Is(err, client.ErrConditionFailed), errors.Is(err, client.ErrFenced),
		errors.Is(err, client.ErrRoleHeld):
		return exitCondition
	case cluster.IsCode(err, cluster.CodeBadRequest): // only the node checks some arguments
		return exitUsage
	}
	return exitFailed
}
