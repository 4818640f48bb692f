package main

import (
	"fmt"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// codeHelp is, for each error, what it means and what to do.
var codeHelp = map[cluster.Code]string{
	cluster.CodeElectionFailed: "The node was not elected: too few voters answered in time, or another node won. An election " +
		"may have been held. Look at northstarctl why and elections show.",
	cluster.CodeNoLeader: "The cluster had no leader that could serve the call, and the call had no effect. " +
		"It can be repeated. If it stays so: northstarctl why.",
	cluster.CodeTransferFailed: "The target does not lead: it is not able to, or did not take over in time. With status 409 " +
		"the old leader goes on. With 504 leadership may have moved: the detail names who leads. A dry run of the same call " +
		"shows the check that the target fails.",
	cluster.CodeSplitBrain: "The node is part of a conflict: two nodes claim to lead. Until that has ended, it serves " +
		"stale reads and watches only. Look at northstarctl splitbrain and the runbook.",
	cluster.CodeTermStale: "The cluster has changed since the plan was made. Make another dry run, and run its plan.",
	cluster.CodeVoteDenied: "The voters refused the candidate, for the reasons shown with the error. A candidate whose log " +
		"is behind cannot win: choose another target.",
	cluster.CodeOutcomeUnknown: "The write may or may not have taken effect. Read before you write again, or repeat the call " +
		"with the same idempotency key: then it is applied once.",
	cluster.CodeFenced: "The fencing token is not the role's current one: the caller has lost the role, and another holder " +
		"may be at work. It should stop.",
	cluster.CodeSessionEnded: "The session was not renewed in time, or was ended; its roles and keys are gone. Start another one.",
	cluster.CodeRoleHeld:     "Another session holds the role. Wait in its queue (--wait), or look at northstarctl role show.",
	cluster.CodeConditionFailed: "The key was not as the caller expected (If-Match, If-None-Match): it has changed since. " +
		"Read it again, and decide again.",
	cluster.CodeHistoryCompacted: "The changes asked for are older than what the cluster keeps. Read the keys, and watch from " +
		"the revision of that list.",
	cluster.CodeQuorumAtRisk: "The change would leave too few healthy voters for a majority: bring the failed nodes back " +
		"first. Or the node is too far behind, or not active yet: wait until it is.",
	cluster.CodeBusy:         "The node had too many requests or connections. Repeat the call later, as Retry-After says.",
	cluster.CodeReadOnly:     "The disk of the node is full or stalled. Free space there; it recovers automatically.",
	cluster.CodeQuorumExists: "A majority of the voters answers, so a recovery would discard data without need.",
	cluster.CodeQuotaExceeded: "The state, or this identity's share of it, is full. Delete keys or end sessions; " +
		"northstarctl status shows the size.",
	cluster.CodeBadRequest:      "The request is malformed; the detail names the field.",
	cluster.CodeNotFound:        "The request names something that does not exist; the detail says what.",
	cluster.CodeUnauthenticated: "The call had no token or certificate that the cluster knows. Give --token-file, or --cert and --key.",
	cluster.CodeForbidden: "The role of the token or certificate does not allow the call: observers read, clients also write, " +
		"operators also use /admin. Sessions of others are for operators only.",
	cluster.CodeInternal: "A defect of NorthStar. The log of the node that answered has the details; please report it.",
}

// explainCode returns what an error means, one paragraph a line.
func explainCode(code cluster.Code) []string {
	again := "The same call should not simply be repeated."
	if code.Retryable() {
		again = "The same call may be repeated."
	}
	return []string{
		fmt.Sprintf("%s (%d, HTTP status %d): %s.", code.Name(), code, code.Status(), code.Title()), codeHelp[code], again,
	}
}

// explainRefusals describes refused calls, one a line, with the meaning of the errors once each if meanings is set.
func explainRefusals(records []apiv1.AuditRecord, meanings bool) (lines []string) {
	seen := map[cluster.Code]bool{}
	for _, r := range records {
		line := fmt.Sprintf("%s: %s by %s (%s, from %s) was answered with %s", formatTime(&r.When), r.What, orDash(r.Who),
			r.Role, r.From, r.Result)
		if r.Detail != "" {
			line += ": " + r.Detail
		}
		lines = append(lines, line+".")
		code := cluster.Code(r.Code)
		if help := codeHelp[code]; meanings && help != "" && !seen[code] {
			lines = append(lines, "  "+help)
		}
		seen[code] = true
	}
	return lines
}
