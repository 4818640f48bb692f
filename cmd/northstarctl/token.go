package main

import (
	"fmt"

	"northstar/api/token"
)

type tokenCmd struct {
	New tokenNewCmd `cmd:"" help:"Make a token and its hash; northstarctl does not store them."`
}

type tokenNewCmd struct {
	Name string `required:"" placeholder:"N" help:"Token name, shown in the audit log."`
	Role string `required:"" placeholder:"R" help:"Permissions: observer, client or operator."`
}

// Run prints {"token","hash"} in either output format. On a terminal it also prints what to do with them.
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
		fmt.Fprintf(a.stderr,
			"Give this token to the user, and add this entry to the auth.tokens file of every node:\n\n"+
				"[[token]]\nname = %q\nrole = %q\nhash = %q\n\n", t.Name, role, hash)
	}
	return a.printJSONLine(struct {
		Token string `json:"token"`
		Hash  string `json:"hash"`
	}{tok, hash})
}
