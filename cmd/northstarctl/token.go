package main

import (
	"fmt"

	"northstar/api/token"
)

type tokenCmd struct {
	New tokenNewCmd `cmd:"" help:"Make a token and its hash; they are stored nowhere."`
}

type tokenNewCmd struct {
	Name string `required:"" placeholder:"N" help:"Who bears it, for the records."`
	Role string `required:"" placeholder:"R" help:"What it may do: observer, client or operator."`
}

// Run prints {"token","hash"} in either form of output, and people see on a
// terminal what to do with them.
func (t *tokenNewCmd) Run(a *app) error {
	role, err := token.ParseRole(t.Role)
	if err != nil {
		return &usageError{fmt.Errorf("--role: %w", err)}
	}
	if err := token.CheckName(t.Name); err != nil {
		return &usageError{fmt.Errorf("--name: %w", err)}
	}
	tok, hash := token.New()
	if terminal(a.stderr) {
		fmt.Fprintf(a.stderr, "Give the token to its bearer, and add to the file of auth.tokens on each node:\n\n[[token]]\nname = %q\nrole = %q\nhash = %q\n\n", t.Name, role, hash)
	}
	return a.printJSONLine(struct {
		Token string `json:"token"`
		Hash  string `json:"hash"`
	}{tok, hash})
}
