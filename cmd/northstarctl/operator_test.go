package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"

	"northstar/chaos/proc"
)

// operator is someone who has a cluster of real nodes and this program, and nothing else.
type operator struct {
	t *testing.T
	*proc.Cluster
	endpoints string
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	bin, err := proc.Program(t.TempDir(), "northstar-node")
	if err != nil {
		t.Fatal(err)
	}
	c, err := proc.NorthStar(bin, 3, "--election-timeout-min", "1s", "--election-timeout-max", "2s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		c.Close()
	})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, n := range c.Nodes {
		all = append(all, n.HTTP)
	}
	return &operator{t, c, strings.Join(all, ",")}
}

// try types a command line, and returns the exit code and what is printed.
func (o *operator) try(ctx context.Context, line string) (code int, text string) {
	var out bytes.Buffer
	args := append(shellWord.FindAllString(line, -1), "--endpoints", o.endpoints, "--timeout", "5s")
	for i := range args {
		args[i] = strings.Trim(args[i], `"`)
	}
	code = run(ctx, args, strings.NewReader(""), &out, &out)
	return code, out.String()
}

// types types a command line until it succeeds and prints each of the texts.
func (o *operator) types(line string, want ...string) (text string) {
	o.t.Helper()
	err := eventually(func() error {
		var code int
		if code, text = o.try(o.t.Context(), line); code != exitDone {
			return fmt.Errorf("exit %d", code)
		}
		return printed(text, want)
	})
	o.t.Logf("$ northstarctl %s\n%s", line, text)
	if err != nil {
		o.t.Fatal(err)
	}
	return text
}

func printed(text string, want []string) error {
	for _, w := range want {
		if !regexp.MustCompile(w).MatchString(text) {
			return fmt.Errorf("it does not say %q", w)
		}
	}
	return nil
}

// find returns what the group of a pattern is in a text.
func (o *operator) find(text, pattern string) string {
	o.t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		o.t.Fatalf("there is no %s", pattern)
	}
	return found[1]
}

// planned types a command with --dry-run, and then again with the plan that this has printed.
func (o *operator) planned(line string, want ...string) {
	o.t.Helper()
	plan := o.find(o.types(line+" --dry-run", `(?m)^plan +`, `(?m)^risk +`), `(?m)^plan +(\S+)`)
	code, text := o.try(o.t.Context(), line+" --plan "+plan)
	o.t.Logf("$ northstarctl %s --plan %s\n%s", line, plan, text)
	if err := errors.Join(printed(text, want)); err != nil || code != exitDone {
		o.t.Fatalf("exit %d: %v", code, err)
	}
}

// campaign types "role campaign" in the background, as a program would that wants the role.
func (o *operator) campaign(role, name string) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		args := []string{
			"--endpoints", o.endpoints, "role", "campaign", role, "--name", name, "--ttl", "3s", "--wait", "1m",
		}
		run(ctx, args, strings.NewReader(""), io.Discard, io.Discard)
	})
	o.t.Cleanup(func() { cancel(); running.Wait() })
}

// What an operator must be able to do with this program alone: find out why the last failover happened, move the leader
// after a dry run, take a role from its holder, see that the quorum is lost, and recover it. Where an answer says what
// to type next, the test types that.
func TestOperator(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	old, err := o.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	o.types("status", "3 of 3 voters healthy, 1 may fail")
	first := o.types("elections ls")
	if logs := o.Logs(); strings.Count(first, "\n") == 2 && strings.Contains(logs, "[WARN]") {
		t.Errorf("a first start with one election warns:\n%s", logs)
	}

	old.Kill()
	// On a busy machine another election may follow the one that the failure caused.
	o.types("why", `Node n\d leads`, `the previous leader, `+old.ID+`|leader `+old.ID+` is dead`, `without a leader for \d+ ms`,
		`Votes: 2 of 3 voters granted`)
	o.types("elections ls", "leader "+old.ID)
	o.types("elections show", "Recorded reason: ")
	if err := o.StartNode(old); err != nil {
		t.Fatal(err)
	}
	o.types("status", "3 of 3 voters healthy, 1 may fail")

	o.planned(`transfer --to `+old.ID+` --reason "the rack is repaired"`, "leadership moved from n. to "+old.ID)
	o.types("leader", "(?m)^"+old.ID)
	o.types("audit", "the rack is repaired")

	o.campaign("crane", "crane-a")
	o.types("role show crane", "crane-a")
	o.campaign("crane", "crane-b")
	o.types("role show crane", "(?m)^ +1 +crane-b")
	o.planned(`role evict crane --reason "crane-a hangs"`, "crane-a")
	o.types("role show crane", "(?m)^crane +crane-b")
	o.types("role history crane", "crane-a.*evicted")

	for _, n := range o.Nodes {
		if n != old {
			n.Kill()
		}
	}
	err = eventually(func() error {
		code, text := o.try(t.Context(), "status")
		if code != exitNoLeader {
			return fmt.Errorf("status: exit %d\n%s", code, text)
		}
		return printed(text, []string{"quorum +LOST: 1 of 3 voters", "next +northstarctl why"})
	})
	if err != nil {
		t.Fatal(err)
	}
	why := o.types("why", "The quorum is LOST", "--survivors "+old.ID)
	o.planned(o.find(why, "northstarctl (recover .*) --dry-run")+` --reason "two disks are lost" --yes`, "generation 2 of cluster")
	o.types("status", `leader +`+old.ID, "1 of 1 voters healthy, none may fail")
	o.types("kv put after recovery", "revision")
}
