// Command roleholder is the process that the roles benchmark kills: it holds a role
// with a session that is attached to a connection, until its input ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"northstar/client"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "roleholder:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	fs := flag.NewFlagSet("holder", flag.ContinueOnError)
	endpoints := fs.String("endpoints", "", "nodes' HTTP addresses, comma-separated")
	role := fs.String("role", "", "to campaign for")
	if err := fs.Parse(args); err != nil {
		return err
	}
	c, err := client.New(client.Config{Endpoints: strings.Split(*endpoints, ",")})
	if err != nil {
		return err
	}
	defer c.Close()
	k, err := c.NewCandidate(client.CandidateConfig{Role: *role, Session: client.SessionConfig{Attach: true}})
	if err != nil {
		return err
	}
	if _, err := k.Campaign(ctx); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "elected"); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return k.Close(ctx)
}
