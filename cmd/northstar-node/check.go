package main

import (
	"errors"
	"fmt"

	"northstar/node"
)

type checkCommand struct {
	node.Flags
	problems error
}

func (c *checkCommand) run(p *commandEnv) error {
	if c.problems == nil {
		_, err := fmt.Fprintln(p.stdout, "configuration OK")
		return err
	}
	fmt.Fprintln(p.stdout, c.problems)
	return &usageError{errors.New("configuration is invalid")}
}
